/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The content rotation of the default method: R in O(n) that makes the error of feedback
 * rounding small when every coordinate has a scale of its own (feedback_model.h), by a
 * descent along the group with momentum. In double, deterministic, on the calling thread.
 */
#ifndef QMW_CALIBRATE_ROTATION_FLOW_H
#define QMW_CALIBRATE_ROTATION_FLOW_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

struct qmw_rotation_flow {
	uint32_t iterations; /**< 200 */
	double rate;         /**< 0.3, cosine to zero */
	double momentum;     /**< 0.9 */
	double noise;        /**< k: E r^2 over the target's variance; .0115 at 4 bits, .14 at 2 */
	/** Asked after each iteration, may be NULL; false ends it: QMLA_ERR_CANCELLED. */
	bool (*go_on)(void *user);
	void *user;
};

struct qmw_rotation_flow qmw_rotation_flow_defaults(uint32_t content_bits);

/**
 * Moves @p rotation R [n][n] (orthogonal) to lower J(R^T H R, R^T Sigma R) for a positive
 * definite @p h and @p covariance [n][n]; the best of the iterations is kept, and made
 * orthogonal to rounding. @p before and @p after get J.
 */
qmla_status_t qmw_rotation_flow_run(const struct qmw_rotation_flow *flow, uint32_t n,
				    const double *h, const double *covariance, double *rotation,
				    double *before, double *after);

#endif /* QMW_CALIBRATE_ROTATION_FLOW_H */
