/* SPDX-License-Identifier: Apache-2.0 */
/** @file How large a sub-layer's cached channels get: their 99.9th percentiles. */
#ifndef QMW_CALIBRATE_AMPLITUDE_H
#define QMW_CALIBRATE_AMPLITUDE_H

#include <qmla/status.h>

#include "client/calibrate/samples.h"

/**
 * Percentiles over the training sequences: @p content [d_c] of |u|, @p rope [d_r / 2] of the
 * magnitudes of both coordinates of a pair, of the key after the rotation, or with
 * @p rope_mean [d_r] of the key before it less the mean. Either output may be NULL.
 */
qmla_status_t qmw_amplitude_measure(const struct qmw_samples *samples, const double *rope_mean,
				    double *content, double *rope);

#endif /* QMW_CALIBRATE_AMPLITUDE_H */
