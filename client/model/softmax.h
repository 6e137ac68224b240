/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Softmax of one row of scores in float32, vectorised for the processor it runs on. Pure;
 * any thread.
 */
#ifndef QMW_SOFTMAX_H
#define QMW_SOFTMAX_H

#include <stdint.h>

/**
 * x_t = exp(scale (x_t - max)) / sum for t < @p count, 0 for @p count <= t < @p total, in
 * place. exp to 2e-7; one of at least one and finite scores. The sum is of sixteen lanes, so
 * its last bit may differ from a plain loop's.
 */
void qmw_softmax(float *x, uint32_t count, uint32_t total, float scale);

#endif /* QMW_SOFTMAX_H */
