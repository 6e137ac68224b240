/* SPDX-License-Identifier: Apache-2.0 */
/* The data of one tensor of a safetensors file. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/safetensors.h"
#include "common/log.h"
#include "kernels/numeric.h"

#define COMPONENT "model"
#define PIECE     ((size_t)64 << 10) /* elements converted at a time */

uint32_t qmw_tensor_element_bytes(const struct qmw_tensor *tensor)
{
	return tensor->elements ? (uint32_t)((tensor->end - tensor->begin) / tensor->elements) : 1;
}

qmla_status_t qmw_tensor_read(const struct qmw_tensor *tensor, uint64_t begin, uint64_t length,
			      void *bytes)
{
	if (begin > tensor->end - tensor->begin || length > tensor->end - tensor->begin - begin)
		return QMLA_ERR_INVALID_ARGUMENT;
	return qmw_source_read(tensor->source, tensor->offset + begin, length, bytes);
}

/* OCP 8-bit floating point, E4M3: bias 7, subnormals, no infinity, S.1111.111 is NaN. */
static float e4m3_to_float(uint8_t code)
{
	int exponent = code >> 3 & 15, mantissa = code & 7;
	float value;

	if ((code & 0x7f) == 0x7f)
		return NAN;
	value = exponent ? ldexpf((float)(8 + mantissa), exponent - 10)
			 : ldexpf((float)mantissa, -9);
	return code & 0x80 ? -value : value;
}

static void convert_e4m3(const uint8_t *bytes, size_t count, float *values)
{
	float table[256];

	for (uint32_t code = 0; code < 256; code++)
		table[code] = e4m3_to_float((uint8_t)code);
	for (size_t i = 0; i < count; i++)
		values[i] = table[bytes[i]];
}

static void convert(enum qmw_dtype dtype, const uint8_t *bytes, size_t count, float *values)
{
	uint16_t half;

	switch (dtype) {
	case QMW_DTYPE_F32:
		memcpy(values, bytes, count * sizeof(*values));
		return;
	case QMW_DTYPE_F8_E4M3:
		convert_e4m3(bytes, count, values);
		return;
	default:
		for (size_t i = 0; i < count; i++) {
			memcpy(&half, bytes + 2 * i, sizeof(half));
			values[i] = dtype == QMW_DTYPE_BF16 ? qmk_bf16_to_float(half)
							    : qmk_fp16_to_float(half);
		}
	}
}

static qmla_status_t check_finite(const struct qmw_tensor *tensor, const char *path, uint64_t first,
				  size_t count, const float *values)
{
	for (size_t i = 0; i < count; i++) {
		if (isfinite(values[i]))
			continue;
		qmc_error(COMPONENT,
			  "%s: tensor %s holds a NaN or infinity at element %" PRIu64
			  ": the checkpoint is damaged",
			  path, tensor->name, first + i);
		return QMLA_ERR_CORRUPT;
	}
	return QMLA_OK;
}

qmla_status_t qmw_tensor_range_to_float(const struct qmw_tensor *tensor, const char *path,
					uint64_t first, uint64_t count, float *values)
{
	uint32_t element = qmw_tensor_element_bytes(tensor);
	qmla_status_t status = QMLA_OK;
	uint8_t *piece;

	if (tensor->dtype > QMW_DTYPE_F8_E4M3) {
		qmc_error(COMPONENT,
			  "%s: tensor %s has dtype %s; only BF16, F16, F32 and F8_E4M3 are "
			  "supported, convert the checkpoint",
			  path, tensor->name, tensor->dtype_name);
		return QMLA_ERR_UNSUPPORTED;
	}
	piece = malloc((count < PIECE ? (size_t)count : PIECE) * element + 1);
	if (!piece)
		return QMLA_ERR_NO_MEMORY;
	for (uint64_t i = 0; i < count && !status; i += PIECE) {
		size_t n = count - i < PIECE ? (size_t)(count - i) : PIECE;

		status = qmw_tensor_read(tensor, (first + i) * element, (uint64_t)n * element,
					 piece);
		if (status)
			break;
		convert(tensor->dtype, piece, n, values + i);
		status = check_finite(tensor, path, first + i, n, values + i);
	}
	free(piece);
	return status;
}

qmla_status_t qmw_tensor_to_float(const struct qmw_tensor *tensor, const char *path, float *values)
{
	return qmw_tensor_range_to_float(tensor, path, 0, tensor->elements, values);
}

void qmw_shape_format(const uint64_t *shape, uint32_t rank, char text[192])
{
	int used = snprintf(text, 192, "[");

	for (uint32_t i = 0; i < rank && used < 170; i++)
		used += snprintf(text + used, (size_t)(192 - used), "%s%" PRIu64, i ? ", " : "",
				 shape[i]);
	snprintf(text + used, (size_t)(192 - used), "]");
}
