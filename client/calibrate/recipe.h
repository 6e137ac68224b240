/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The default method, in closed form from the paper's own error model: means, a rotation,
 * per-pair RoPE scales and the rounding matrices of both paths (docs/calibration.md).
 */
#ifndef QMW_CALIBRATE_RECIPE_H
#define QMW_CALIBRATE_RECIPE_H

#include <qmla/status.h>

#include "client/calibrate/method.h"
#include "client/calibrate/sensitivity.h"

#define QMW_RECIPE_TEXT "means, Hadamard, feedback rounding, RoPE pair scales"

/** Measures the sensitivities and fills all of @p transform. */
qmla_status_t qmw_recipe_learn(const struct qmw_samples *samples,
			       const struct qmw_method_options *options,
			       struct qmw_transform *transform, struct qmw_layer_figures *figures);

/**
 * The same from what was measured: @p amplitude [d_r / 2] of the centred key's pairs. A
 * sensitivity of zero (a path that the output does not read) gives plain rounding.
 */
qmla_status_t qmw_recipe_solve(const struct qmw_sensitivity *sensitivity,
			       const struct qmw_rope *rope, const double *amplitude,
			       struct qmw_transform *transform, struct qmw_layer_figures *figures);

#endif /* QMW_CALIBRATE_RECIPE_H */
