/* SPDX-License-Identifier: Apache-2.0 */
/** @file The default method's content path: rotation, scales and rounding matrices. */
#ifndef QMW_CALIBRATE_RECIPE_CONTENT_H
#define QMW_CALIBRATE_RECIPE_CONTENT_H

#include <stdbool.h>

#include <qmla/status.h>

#include "client/calibrate/joint.h"
#include "client/calibrate/method.h"
#include "client/calibrate/rotation_flow.h"
#include "client/calibrate/transform.h"

/**
 * Fills rotation, content_scale, content_feedback and content_weight of @p transform, and
 * cross_feedback, whose RoPE pairs are there already. @p noise [d_c][d_r] from
 * qmw_recipe_rope.
 */
qmla_status_t qmw_recipe_content(const struct qmw_joint *joint, const struct qmw_rope *rope,
				 const struct qmw_rotation_flow *flow, const double *noise,
				 struct qmw_transform *transform,
				 struct qmw_layer_figures *figures);

/** @p out [d_c] = @p mean R S. */
void qmw_recipe_content_mean(const struct qmw_transform *transform, const double *mean,
			     double *out);

#endif /* QMW_CALIBRATE_RECIPE_CONTENT_H */
