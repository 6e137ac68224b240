/* SPDX-License-Identifier: Apache-2.0 */
/** @file Picks the next token: greedy, or temperature and top-p with a seed. */
#ifndef QMW_SAMPLE_H
#define QMW_SAMPLE_H

#include <stdint.h>

struct qmw_sampler {
	float temperature; /**< 0: greedy; ties go to the lowest id */
	float top_p;       /**< 0 or 1: off */
	uint64_t state;    /**< seed; advances with each draw (splitmix64) */
};

/** @p logits [vocab] is used as scratch. @p scratch [vocab] of indices. */
uint32_t qmw_sample(struct qmw_sampler *sampler, float *logits, uint32_t *scratch, uint32_t vocab);

#endif /* QMW_SAMPLE_H */
