/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What one attention sub-layer's cache rows are like and how its output depends on them,
 * over the calibration tokens: means, second moments, and the operator H = E[J^T J] of
 * paper.md's error model, from Rademacher probes r in the shape of the output:
 * g = d<r, Y>/drow has E[g g^T] = J^T J.
 */
#ifndef QMW_CALIBRATE_SENSITIVITY_H
#define QMW_CALIBRATE_SENSITIVITY_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/samples.h"

/** Means over tokens; u is the latent without weight, k the key before the rotation. */
struct qmw_sensitivity {
	uint32_t content_dim, rope_dim;
	uint64_t tokens;
	double *content_mean, *rope_mean;     /**< E u [d_c], E k [d_r] */
	double *content_moment, *rope_moment; /**< E u u^T, E k k^T (the mean is in) */
	double *content, *rope;               /**< H_C [d_c][d_c], H_R [d_r][d_r] */
	double *cross;                        /**< E g_u g_k^T of the same probes [d_c][d_r] */
};

/**
 * Measures over the training sequences of @p samples with @p probes probes a sequence.
 * QMLA_ERR_CORRUPT: a value is not finite (logged with the layer).
 */
qmla_status_t qmw_sensitivity_measure(const struct qmw_samples *samples, uint32_t probes,
				      struct qmw_sensitivity *sensitivity);
void qmw_sensitivity_free(struct qmw_sensitivity *sensitivity); /**< accepts a zeroed one */

#endif /* QMW_CALIBRATE_SENSITIVITY_H */
