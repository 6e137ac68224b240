/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The RoPE pairs' angles and scales of the default method: those that make the error of
 * feedback rounding with one scale for all coordinates small (feedback_model.h). Keys are
 * quantised before the rotation by position, so that angles matter. In double.
 */
#ifndef QMW_CALIBRATE_PAIR_FLOW_H
#define QMW_CALIBRATE_PAIR_FLOW_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/rope.h"

struct qmw_pair_flow {
	uint32_t steps; /**< 150 */
	double rate;    /**< 0.02, cosine to zero */
	double noise;   /**< .014: E r^2 over the common variance at 4 bits */
	double damping; /**< 2e-3: share of the mean diagonal added to H */
};

struct qmw_pair_flow qmw_pair_flow_defaults(void);

/**
 * log J at @p angle and @p log_scale [d_r / 2] for the sensitivity @p h and @p covariance
 * [d_r][d_r] of keys before the transform, and its gradients (NULL together: not wanted).
 * QMLA_ERR_INVALID_ARGUMENT: @p h is not positive semidefinite. QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmw_pair_flow_loss(const struct qmw_pair_flow *flow, const struct qmw_rope *rope,
				 const double *h, const double *covariance, const double *angle,
				 const double *log_scale, double *loss, double *angle_gradient,
				 double *log_scale_gradient);

/**
 * Starts from s_j = (h_j a_j^2)^(1/8) / a_j (quantisation.md's closed form with p = 6; h_j
 * and a_j^2 the pair's traces) and angles of zero, and descends; keeps the best. @p scale
 * has a geometric mean of one.
 */
qmla_status_t qmw_pair_flow_run(const struct qmw_pair_flow *flow, const struct qmw_rope *rope,
				const double *h, const double *covariance, double *angle,
				double *scale);

/** @p out [d_r][d_r] = T^-1 H T^-T: a sensitivity in the transformed keys' coordinates. */
void qmw_pair_flow_sensitivity(const struct qmw_rope *rope, const double *angle,
			       const double *scale, const double *h, double *out);

#endif /* QMW_CALIBRATE_PAIR_FLOW_H */
