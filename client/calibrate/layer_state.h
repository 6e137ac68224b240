/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A learned sub-layer on the disk, so that a killed run continues behind it: the transform
 * and its figures in full precision, with a SHA-256 over everything. Not an exchange
 * format: read by the program that wrote it, on the same kind of machine.
 */
#ifndef QMW_CALIBRATE_LAYER_STATE_H
#define QMW_CALIBRATE_LAYER_STATE_H

#include <qmla/status.h>

#include "client/calibrate/method.h"
#include "client/calibrate/transform.h"
#include "common/digest.h"

/** Writes @p path at once or not at all; @p tag says what run and layer it is of. Logs. */
qmla_status_t qmw_layer_state_save(const char *path, const uint8_t tag[QMC_SHA256_BYTES],
				   const struct qmw_transform *transform,
				   const struct qmw_layer_figures *figures);

/**
 * Reads it back. QMLA_ERR_NOT_FOUND (not there, not logged), QMLA_ERR_CORRUPT (another
 * run's, damaged: logged as a warning, the layer is to be learned again), QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmw_layer_state_load(const char *path, const uint8_t tag[QMC_SHA256_BYTES],
				   struct qmw_transform *transform,
				   struct qmw_layer_figures *figures);

#endif /* QMW_CALIBRATE_LAYER_STATE_H */
