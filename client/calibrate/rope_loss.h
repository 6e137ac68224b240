/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The paper's RoPE objective over several sequences: normalised error of the causal
 * positional scores of all heads with quantised keys, with its gradient (straight through
 * the rounding). Keys are quantised after the rotation by position, as the paper stores
 * them.
 */
#ifndef QMW_CALIBRATE_ROPE_LOSS_H
#define QMW_CALIBRATE_ROPE_LOSS_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/samples.h"

/**
 * Mean loss of the sequences @p indices at @p angle and @p log_scale [d_r / 2] and its
 * gradients; those may be NULL together: the loss alone.
 */
qmla_status_t qmw_rope_loss(const struct qmw_samples *samples, const uint32_t *indices,
			    uint32_t count, const double *angle, const double *log_scale,
			    double *loss, double *angle_gradient, double *log_scale_gradient);

#endif /* QMW_CALIBRATE_ROPE_LOSS_H */
