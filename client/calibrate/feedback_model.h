/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The error that feedback rounding leaves, as a differentiable function of a sensitivity H
 * and a covariance Sigma in cache coordinates. With H = A^T D A (A unit lower triangular,
 * factor.h) and B = A^-1, rounding errors r_i reach the row as e = B r and cost sum D_i r_i^2;
 * target i is wider than coordinate i by sum_{j<i} B_ij^2 E r_j^2. In double. Pure.
 */
#ifndef QMW_CALIBRATE_FEEDBACK_MODEL_H
#define QMW_CALIBRATE_FEEDBACK_MODEL_H

#include <stdint.h>

#include <qmla/status.h>

/** Factors of a sensitivity [n][n], all owned. */
struct qmw_feedback_model {
	uint32_t n;
	double *a;    /**< A, unit lower triangular */
	double *b;    /**< A^-1 */
	double *d;    /**< D [n] */
	double *work; /**< [3][n][n] */
};

/** QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_feedback_model_init(struct qmw_feedback_model *model, uint32_t n);
void qmw_feedback_model_fini(struct qmw_feedback_model *model); /**< accepts a zeroed one */

/** Factors @p h [n][n] as it is. QMLA_ERR_INVALID_ARGUMENT: not positive definite. */
qmla_status_t qmw_feedback_model_set(struct qmw_feedback_model *model, const double *h);

/**
 * One scale a coordinate, each fitted to its target (the content path): with noise
 * E r_i^2 = k tau_i^2, tau^2 = (I - k B.^2)^-1 @p variance (strictly lower part of B.^2).
 * Writes @p tau2 [n] and returns J = sum D_i tau_i^2; the error is k J.
 */
double qmw_feedback_scaled(const struct qmw_feedback_model *model, double k, const double *variance,
			   double *tau2);

/** V of qmw_feedback_common below: a rounding error's variance is k V. */
double qmw_feedback_common_width(const struct qmw_feedback_model *model, double k,
				 const double *variance);

/**
 * Gradients of qmw_feedback_scaled's J: @p to_h [n][n] (symmetric) with respect to H and
 * @p to_variance [n]. @p tau2 as it left them.
 */
void qmw_feedback_scaled_gradient(const struct qmw_feedback_model *model, double k,
				  const double *tau2, double *to_h, double *to_variance);

/**
 * One scale for all coordinates, fitted to the larger ones (the RoPE path): v_i = variance_i
 * + k V0 sum_{j<i} B_ij^2, V = (mean v^3)^(1/3), V0 the same of the variances alone. Returns
 * log J, J = V sum D_i, and unless NULL its gradients as above.
 */
double qmw_feedback_common(const struct qmw_feedback_model *model, double k, const double *variance,
			   double *to_h, double *to_variance);

#endif /* QMW_CALIBRATE_FEEDBACK_MODEL_H */
