/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Writes one safetensors file front to back: the header first, then the tensors' bytes in
 * the header's order, hashed on the way. A file counts only once finish has succeeded:
 * until then, and after any failure, destroy removes it.
 */
#ifndef QMW_SAFETENSORS_WRITE_H
#define QMW_SAFETENSORS_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/safetensors.h"
#include "common/digest.h"

struct qmw_safetensors_writer;

/** A tensor to be written; little-endian, row-major. */
struct qmw_tensor_spec {
	const char *name;
	enum qmw_dtype dtype; /**< F32, F16, BF16 or I64 */
	uint32_t rank;
	uint64_t shape[QMW_TENSOR_RANK_MAX];
};

/**
 * Creates @p path (it must not exist) and writes the header of @p specs, whose data will follow in
 * this order. Logs the path: QMLA_ERR_ALREADY_EXISTS, QMLA_ERR_PERMISSION, QMLA_ERR_NO_SPACE,
 * QMLA_ERR_IO, QMLA_ERR_INVALID_ARGUMENT (a name twice, a dtype that cannot be written).
 */
qmla_status_t qmw_safetensors_write(const char *path, const struct qmw_tensor_spec *specs,
				    uint32_t count, struct qmw_safetensors_writer **writer);

/** As write, with the bytes of another file's header: 8 bytes of length and the JSON, @p data_bytes
 * of data to follow. */
qmla_status_t qmw_safetensors_write_like(const char *path, const void *header, size_t bytes,
					 uint64_t data_bytes,
					 struct qmw_safetensors_writer **writer);

/** Appends data. QMLA_ERR_INVALID_ARGUMENT beyond the header's sizes, QMLA_ERR_NO_SPACE,
 * QMLA_ERR_IO. */
qmla_status_t qmw_safetensors_append(struct qmw_safetensors_writer *writer, const void *data,
				     size_t bytes);

/** Flushes to the disk and closes; the file is complete. @p digest [32] gets its SHA-256, may be
 * NULL. QMLA_ERR_INVALID_ARGUMENT when data is missing. */
qmla_status_t qmw_safetensors_finish(struct qmw_safetensors_writer *writer,
				     uint8_t digest[QMC_SHA256_BYTES]);

/** Frees it; removes the file unless it was finished. Accepts NULL. */
void qmw_safetensors_writer_destroy(struct qmw_safetensors_writer *writer);

#endif /* QMW_SAFETENSORS_WRITE_H */
