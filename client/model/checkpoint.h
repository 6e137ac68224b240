/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The weight files of a checkpoint directory: model.safetensors, or the shards
 * that model.safetensors.index.json names. All headers are checked on opening.
 */
#ifndef QMW_CHECKPOINT_H
#define QMW_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "common/digest.h"

struct qmw_checkpoint;
struct qmw_safetensors;
struct qmw_tensor;

/**
 * Logs the file at fault. QMLA_ERR_NOT_FOUND (no weights, a shard or a tensor missing),
 * QMLA_ERR_FORMAT (a tensor also in another shard than the index says), and what safetensors.h
 * gives.
 */
qmla_status_t qmw_checkpoint_open(const char *directory, struct qmw_checkpoint **checkpoint);
void qmw_checkpoint_close(struct qmw_checkpoint *checkpoint); /**< accepts NULL */

/** SHA-256 over the SHA-256 digests of the weight files in ascending order of their names. Reads
 * all of them, a piece at a time. Errors as qmw_source_read. */
qmla_status_t qmw_checkpoint_digest(const struct qmw_checkpoint *checkpoint,
				    uint8_t digest[QMC_SHA256_BYTES]);

/** True when a tensor of this name is in one of the files. */
bool qmw_checkpoint_has(const struct qmw_checkpoint *checkpoint, const char *name);

/**
 * Reads tensor @p name as float32 into malloc'ed @p values after checking that
 * its shape is [@p rows, @p columns], or [@p rows] when @p columns is 0. An F8_E4M3
 * tensor is multiplied by its blocks' scales, "<name>_scale_inv". Logs the tensor.
 * QMLA_ERR_NOT_FOUND, QMLA_ERR_FORMAT (other shape), QMLA_ERR_UNSUPPORTED (dtype), QMLA_ERR_CORRUPT
 * (not finite), QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmw_checkpoint_read(const struct qmw_checkpoint *checkpoint, const char *name,
				  uint64_t rows, uint64_t columns, float **values);

/** As read, rows [@p first, @p first + @p count) of a tensor [@p rows, @p columns] into the
 * caller's
 * @p values [count][columns]. */
qmla_status_t qmw_checkpoint_read_rows(const struct qmw_checkpoint *checkpoint, const char *name,
				       uint64_t rows, uint64_t columns, uint64_t first,
				       uint64_t count, float *values);

/** The tensor of this name, NULL when there is none; the checkpoint's. */
const struct qmw_tensor *qmw_checkpoint_tensor(const struct qmw_checkpoint *checkpoint,
					       const char *name);

/** The same after checking its shape, with its file's path for messages. Errors as read. */
qmla_status_t qmw_checkpoint_find(const struct qmw_checkpoint *checkpoint, const char *name,
				  uint64_t rows, uint64_t columns, const struct qmw_tensor **found,
				  const char **path);

/** Checks that tensor @p name is there, of this shape and of a dtype that can be read; reads
 * nothing. Errors as read. */
qmla_status_t qmw_checkpoint_check(const struct qmw_checkpoint *checkpoint, const char *name,
				   uint64_t rows, uint64_t columns);

/** The weight files in ascending order of their names: @p index below count. */
uint32_t qmw_checkpoint_files(const struct qmw_checkpoint *checkpoint);
const struct qmw_safetensors *qmw_checkpoint_file(const struct qmw_checkpoint *checkpoint,
						  uint32_t index);

/** Checks a tensor's shape as qmw_checkpoint_read does, for one file. Logs. */
qmla_status_t qmw_tensor_check_shape(const struct qmw_tensor *tensor, const char *path,
				     uint64_t rows, uint64_t columns);

#endif /* QMW_CHECKPOINT_H */
