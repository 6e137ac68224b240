/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The default method, from the paper's own error model and without training on the loss:
 * means, a content rotation with scales and RoPE pair transforms that suit feedback rounding,
 * the rounding matrices of both paths, and how content takes back RoPE errors (docs/calibration.md
 * has the formulas).
 */
#ifndef QMW_CALIBRATE_RECIPE_H
#define QMW_CALIBRATE_RECIPE_H

#include <stdbool.h>

#include <qmla/status.h>

#include "client/calibrate/method.h"
#include "client/calibrate/sensitivity.h"

#define QMW_RECIPE_TEXT "means, rotation, scales and RoPE pairs for joint feedback rounding"

/** Measures the sensitivities and fills all of @p transform. */
qmla_status_t qmw_recipe_learn(const struct qmw_samples *samples,
			       const struct qmw_method_options *options,
			       struct qmw_transform *transform, struct qmw_layer_figures *figures);

/**
 * The same from what was measured, for a cache of @p content_bits, with
 * @p damping times the usual damping. A path that the output
 * does not depend on, or whose rows never change, gets its mean and nothing else. @p go_on
 * may be NULL; false gives QMLA_ERR_CANCELLED.
 */
qmla_status_t qmw_recipe_solve(const struct qmw_sensitivity *sensitivity,
			       const struct qmw_rope *rope, uint32_t content_bits, double damping,
			       bool (*go_on)(void *user), void *user,
			       struct qmw_transform *transform, struct qmw_layer_figures *figures);

#endif /* QMW_CALIBRATE_RECIPE_H */
