/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Proves that a fused checkpoint is the same function as its source while nothing is
 * quantised: each attention sub-layer in double, before the cast, and the whole model's
 * loss with the weights as they were written.
 */
#ifndef QMW_VERIFY_H
#define QMW_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/transform.h"

#define QMW_VERIFY_LAYER_BOUND 1e-10 /**< relative error of a sub-layer's output, in double */
#define QMW_VERIFY_LOSS_BOUND  2e-3  /**< nats a token */

struct qmw_verify_job {
	const char *source, *fused;         /**< checkpoint directories */
	const struct qmw_transform *layers; /**< what was fused */
	uint32_t count;
	const uint32_t *tokens; /**< [sequences][length] */
	uint32_t sequences, length;
	uint32_t threads;  /**< 0: all processors */
	double loss_bound; /**< nats a token; 0: QMW_VERIFY_LOSS_BOUND */
	/** After each decoder layer of either model, may be NULL; false ends the run. */
	bool (*progress)(void *user, uint32_t done, uint32_t of);
	void *user;
};

struct qmw_verify_report {
	double layer_error;             /**< largest |Y' - Y|_F / |Y|_F of a sub-layer */
	uint32_t worst_layer;           /**< where */
	double source_nats, fused_nats; /**< mean loss a token */
	double drift;                   /**< |fused - source| */
	bool differs;                   /**< one of the two is beyond its bound */
};

/**
 * Streams both checkpoints, one decoder layer in memory at a time. Blocks. @p report, not NULL, is
 * written whenever both were measured, also when they differ: QMLA_ERR_INTERNAL then, and
 * an error is logged. Else as qmw_stream_open, QMLA_ERR_INVALID_ARGUMENT, QMLA_ERR_CANCELLED.
 */
qmla_status_t qmw_verify(const struct qmw_verify_job *job, struct qmw_verify_report *report);

#endif /* QMW_VERIFY_H */
