/* SPDX-License-Identifier: Apache-2.0 */
/** @file The default method's RoPE path: pairs, mean and rounding matrices. */
#ifndef QMW_CALIBRATE_RECIPE_ROPE_H
#define QMW_CALIBRATE_RECIPE_ROPE_H

#include <qmla/status.h>

#include "client/calibrate/joint.h"
#include "client/calibrate/method.h"
#include "client/calibrate/transform.h"

/**
 * Fills rope_angle, rope_scale, rope_feedback and rope_weight of @p transform from S_k.
 * @p noise [d_c][d_r] gets how a unit of each RoPE rounding error widens the content that
 * takes it back (in coordinates of u), times its size: E over errors is the rows' squares.
 */
qmla_status_t qmw_recipe_rope(const struct qmw_joint *joint, const struct qmw_rope *rope,
			      struct qmw_transform *transform, struct qmw_layer_figures *figures,
			      double *noise);

/** @p out [d_r] = @p mean through the pairs' transform. */
void qmw_recipe_rope_mean(const struct qmw_rope *rope, const struct qmw_transform *transform,
			  const double *mean, double *out);

#endif /* QMW_CALIBRATE_RECIPE_ROPE_H */
