/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Writes a checkpoint in which the transforms of calibration are fused: the same
 * tensor names, shapes, dtypes and shards as the source, so that any engine that
 * loads the source loads it; beside it quantmla.json and quantmla.safetensors for
 * this project's workers (docs/format.md, 7). Formulas: client/model/fuse.h.
 *
 * Tensors are changed in double and cast once, to the dtype they had. FP8 tensors
 * with block scales stay FP8: the blocks that change get new codes and scales.
 *
 * One tensor at a time is in memory. The output grows in a directory beside the
 * final one and takes its name by a rename when everything is on the disk.
 */
#ifndef QMW_FUSE_CHECKPOINT_H
#define QMW_FUSE_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/transform.h"
#include "common/digest.h"

struct qmw_fuse_job {
	const char *source;                 /**< checkpoint directory */
	const char *output;                 /**< must not exist, or be an empty directory */
	const struct qmw_transform *layers; /**< of each cache layer */
	uint32_t count;
	const char *recipe;     /**< free text, below 96 bytes */
	const char *method;     /**< "default", "paper", "rtn", … below 32 bytes */
	const char *cache;      /**< the packed format it is meant for: "c4r4", "c2r4", … */
	const char *quantiser;  /**< "default" or "paper"; NULL: "default" */
	const char *created_by; /**< command line; NULL: none */
	const char *figures;    /**< JSON array for "layers", or NULL */
	/** After each tensor, may be NULL; false ends the run (QMLA_ERR_CANCELLED). */
	bool (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_total);
	void *user;
};

struct qmw_fuse_report {
	uint8_t source_digest[QMC_SHA256_BYTES]; /**< as qmw_checkpoint_digest */
	uint8_t digest[QMC_SHA256_BYTES];        /**< of the fused weights */
	uint64_t bytes;                          /**< of weight files */
	uint32_t changed;                        /**< tensors with other values than before */
	double cast_error;    /**< largest |W' - cast(W')|_F / |W'|_F of a changed tensor */
	char cast_worst[512]; /**< its name */
};

/**
 * Blocks; one thread. @p report may be NULL. Logs what is wrong, and leaves nothing at
 * job->output: QMLA_ERR_INVALID_ARGUMENT (layers or dimensions do not fit the model, R
 * not orthogonal, a scale not positive), QMLA_ERR_ALREADY_EXISTS, QMLA_ERR_NO_SPACE,
 * QMLA_ERR_NOT_FOUND (a tensor), QMLA_ERR_FORMAT (its shape), QMLA_ERR_UNSUPPORTED (its
 * dtype), QMLA_ERR_CORRUPT (values that are not finite), QMLA_ERR_IO, QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmw_fuse_checkpoint(const struct qmw_fuse_job *job, struct qmw_fuse_report *report);

#endif /* QMW_FUSE_CHECKPOINT_H */
