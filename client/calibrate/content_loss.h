/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The paper's content objective over several sequences: normalised error of the
 * sub-layer's output with quantised content and exact RoPE keys, with its gradient
 * (straight through the rounding).
 */
#ifndef QMW_CALIBRATE_CONTENT_LOSS_H
#define QMW_CALIBRATE_CONTENT_LOSS_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/samples.h"

/**
 * Mean loss of the sequences @p indices and its gradients, the samples' outputs being there:
 * @p log_scale [d_c], @p rotation [d_c][d_c] (NULL: identity). Either gradient may be NULL
 * together: the loss alone. Means over the sequences.
 */
qmla_status_t qmw_content_loss(const struct qmw_samples *samples, const uint32_t *indices,
			       uint32_t count, uint32_t content_bits, const double *rotation,
			       const double *log_scale, double *loss, double *rotation_gradient,
			       double *log_scale_gradient);

#endif /* QMW_CALIBRATE_CONTENT_LOSS_H */
