/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The paper's content path: a Cayley rotation and log-scales learned by the error of the
 * sub-layer's output with quantised content and exact RoPE keys (paper.md, "Objectives",
 * "Calibration").
 */
#ifndef QMW_CALIBRATE_LEARN_CONTENT_H
#define QMW_CALIBRATE_LEARN_CONTENT_H

#include <qmla/status.h>

#include "client/calibrate/learn.h"
#include "client/calibrate/samples.h"
#include "client/calibrate/transform.h"

/**
 * Learns rotation and content_scale of @p transform (its dimensions are set). The samples'
 * outputs must be there. @p amplitude [d_c]: 99.9th percentile of each channel.
 */
qmla_status_t qmw_learn_content(const struct qmw_samples *samples,
				const struct qmw_learn_options *options, const double *amplitude,
				struct qmw_transform *transform, struct qmw_learn_result *result);

#endif /* QMW_CALIBRATE_LEARN_CONTENT_H */
