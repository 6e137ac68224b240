/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * One safetensors file: 8 bytes header length (little-endian), a JSON header
 * {name: {dtype, shape, data_offsets}}, then the data, which the tensors fill
 * without gap or overlap. Every field is checked before any tensor is used;
 * what is wrong is logged with the file's and the tensor's name.
 *
 * Only the header is kept in memory: a tensor's data is read from the open file
 * when it is asked for (source.h).
 */
#ifndef QMW_SAFETENSORS_H
#define QMW_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/source.h"
#include "common/digest.h"

#define QMW_TENSOR_RANK_MAX        8u
#define QMW_TENSOR_NAME_MAX        512u
#define QMW_SAFETENSORS_HEADER_MAX (UINT64_C(100) << 20)

enum qmw_dtype {
	QMW_DTYPE_F32,
	QMW_DTYPE_F16,
	QMW_DTYPE_BF16,
	QMW_DTYPE_F8_E4M3, /**< finite-only: 448 is the largest, 0x7f and 0xff are NaN */
	QMW_DTYPE_I64,
	QMW_DTYPE_OTHER, /**< known to the format, not to us */
};

struct qmw_tensor {
	const char *name;
	enum qmw_dtype dtype;
	char dtype_name[12];
	uint32_t rank;
	uint64_t shape[QMW_TENSOR_RANK_MAX];
	uint64_t elements;
	uint64_t begin, end; /**< in the data part */
	const struct qmw_source *source;
	uint64_t offset;     /**< of its data in the source */
	const uint8_t *data; /**< of a parsed or loaded file: unaligned, little-endian; lives as
				long as the file. NULL of an opened one */
};

struct qmw_safetensors;

/** Opens @p path, reads and checks its header. QMLA_ERR_NOT_FOUND, QMLA_ERR_IO, QMLA_ERR_FORMAT,
 * QMLA_ERR_CORRUPT (truncated), QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_safetensors_open(const char *path, struct qmw_safetensors **file);

/** As open, all of it read into memory: for small files. */
qmla_status_t qmw_safetensors_load(const char *path, struct qmw_safetensors **file);

/** As open, from memory that the caller keeps; @p label stands for the path in messages. */
qmla_status_t qmw_safetensors_parse(const void *bytes, uint64_t length, const char *label,
				    struct qmw_safetensors **file);

void qmw_safetensors_close(struct qmw_safetensors *file); /**< accepts NULL */

/** The path or label it was opened with; the file's. */
const char *qmw_safetensors_path(const struct qmw_safetensors *file);

/** Number of tensors. */
uint32_t qmw_safetensors_count(const struct qmw_safetensors *file);

/** Tensor @p index < count, in the order of the header; the file's. */
const struct qmw_tensor *qmw_safetensors_at(const struct qmw_safetensors *file, uint32_t index);

/** NULL when there is none of this name. */
const struct qmw_tensor *qmw_safetensors_find(const struct qmw_safetensors *file, const char *name);

/** SHA-256 of the whole file, read a piece at a time. */
qmla_status_t qmw_safetensors_digest(const struct qmw_safetensors *file,
				     uint8_t digest[QMC_SHA256_BYTES]);

/** Bytes of one element. */
uint32_t qmw_tensor_element_bytes(const struct qmw_tensor *tensor);

/** Copies @p length stored bytes from byte @p begin of its data on. Errors as qmw_source_read. */
qmla_status_t qmw_tensor_read(const struct qmw_tensor *tensor, uint64_t begin, uint64_t length,
			      void *bytes);

/**
 * Expands a tensor to float32. Logs and gives QMLA_ERR_UNSUPPORTED for a dtype
 * other than F32, F16, BF16 and F8_E4M3 (without its scales), QMLA_ERR_CORRUPT for a
 * NaN or an infinity, or a file that has changed. @p values [elements]. @p path names the
 * file in messages.
 */
qmla_status_t qmw_tensor_to_float(const struct qmw_tensor *tensor, const char *path, float *values);

/** As to_float, elements [@p first, @p first + @p count) only. */
qmla_status_t qmw_tensor_range_to_float(const struct qmw_tensor *tensor, const char *path,
					uint64_t first, uint64_t count, float *values);

/** "[512, 256]" */
void qmw_shape_format(const uint64_t *shape, uint32_t rank, char text[192]);

#endif /* QMW_SAFETENSORS_H */
