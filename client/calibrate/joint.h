/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * One sensitivity for both paths of a sub-layer, and what is left of it for the RoPE keys
 * when the content, rounded after them, takes back what it can:
 *
 *   e^T H e = r^T D r + e_k^T S_k e_k,   r = A e_u + X e_k,   S_k = H_k - H_x^T H_u^-1 H_x
 *
 * All divided by the mean diagonal of H_u. Checkpoint coordinates (u, k). In double.
 */
#ifndef QMW_CALIBRATE_JOINT_H
#define QMW_CALIBRATE_JOINT_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/sensitivity.h"
#include "client/model/rope.h"

struct qmw_joint {
	uint32_t content_dim, rope_dim;
	double *content;                              /**< H_u + damping I [d_c][d_c] */
	double *cross;                                /**< H_x [d_c][d_r] */
	double *response;                             /**< G = H_u^-1 H_x [d_c][d_r] */
	double *rope;                                 /**< S_k [d_r][d_r] */
	double *content_covariance, *rope_covariance; /**< centred */
};

/**
 * From what was measured; @p damping is added to H_u's diagonal after the division.
 * QMLA_ERR_INVALID_ARGUMENT: H_u has no trace. QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmw_joint_init(const struct qmw_sensitivity *sensitivity, double damping,
			     struct qmw_joint *joint);
void qmw_joint_fini(struct qmw_joint *joint); /**< accepts a zeroed one */

/** Trace of a square matrix. */
double qmw_trace(const double *matrix, uint32_t n);

/**
 * @p rows [count][d_r] in place: derivatives with respect to k become ones with respect to
 * the transformed z_k = k T, a row v -> v T^-T.
 */
void qmw_joint_turn_rows(const struct qmw_rope *rope, const double *angle, const double *scale,
			 uint32_t count, double *rows);

#endif /* QMW_CALIBRATE_JOINT_H */
