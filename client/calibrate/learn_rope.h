/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The paper's RoPE path: an angle and a log-scale for each frequency pair, learned by the
 * error of the positional scores (paper.md, "Objectives", "Calibration").
 */
#ifndef QMW_CALIBRATE_LEARN_ROPE_H
#define QMW_CALIBRATE_LEARN_ROPE_H

#include <qmla/status.h>

#include "client/calibrate/learn.h"
#include "client/calibrate/samples.h"
#include "client/calibrate/transform.h"

/**
 * Learns rope_angle and rope_scale of @p transform (its dimensions are set). @p amplitude
 * [d_r / 2]: 99.9th percentile of the magnitude of each pair's rotated coordinates.
 */
qmla_status_t qmw_learn_rope(const struct qmw_samples *samples,
			     const struct qmw_learn_options *options, const double *amplitude,
			     struct qmw_transform *transform, struct qmw_learn_result *result);

#endif /* QMW_CALIBRATE_LEARN_ROPE_H */
