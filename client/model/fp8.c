/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/fp8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/matrix.h"
#include "client/model/safetensors.h"
#include "common/log.h"

#define COMPONENT "model"

/* The scales of an FP8 tensor: [ceil(rows / 128)][ceil(columns / 128)], "<name>_scale_inv". */
static qmla_status_t find_scales(const struct qmw_checkpoint *self, const char *name, uint64_t rows,
				 uint64_t columns, const struct qmw_tensor **scales,
				 const char **path)
{
	char scale_name[QMW_TENSOR_NAME_MAX + 16];

	snprintf(scale_name, sizeof(scale_name), "%s_scale_inv", name);
	return qmw_checkpoint_find(self, scale_name, (rows + QMW_FP8_BLOCK - 1) / QMW_FP8_BLOCK,
				   (columns + QMW_FP8_BLOCK - 1) / QMW_FP8_BLOCK, scales, path);
}

qmla_status_t qmw_fp8_check(const struct qmw_checkpoint *checkpoint, const char *name,
			    uint64_t rows, uint64_t columns)
{
	const struct qmw_tensor *scales;
	const char *path;

	return find_scales(checkpoint, name, rows, columns, &scales, &path);
}

qmla_status_t qmw_fp8_scale(const struct qmw_checkpoint *self, const char *name, uint64_t rows,
			    uint64_t columns, uint64_t first, uint64_t count, float *values)
{
	uint64_t blocks = (columns + QMW_FP8_BLOCK - 1) / QMW_FP8_BLOCK;
	const struct qmw_tensor *tensor;
	const char *path;
	qmla_status_t status = find_scales(self, name, rows, columns, &tensor, &path);
	float *scales;

	if (status)
		return status;
	scales = malloc(tensor->elements * sizeof(*scales) + 1);
	if (!scales)
		return QMLA_ERR_NO_MEMORY;
	status = qmw_tensor_to_float(tensor, path, scales);
	for (uint64_t r = 0; r < count && !status; r++) {
		const float *row = scales + (first + r) / QMW_FP8_BLOCK * blocks;

		for (uint64_t k = 0; k < columns; k++)
			values[r * columns + k] *= row[k / QMW_FP8_BLOCK];
	}
	free(scales);
	return status;
}

bool qmw_fp8_stored(const struct qmw_checkpoint *checkpoint, const char *name)
{
	const struct qmw_tensor *tensor = qmw_checkpoint_tensor(checkpoint, name);

	return tensor && tensor->dtype == QMW_DTYPE_F8_E4M3;
}

static qmla_status_t check_codes(const struct qmw_tensor *tensor, const char *path,
				 const uint8_t *codes)
{
	for (uint64_t i = 0; i < tensor->elements; i++) {
		if ((codes[i] & 0x7f) != 0x7f)
			continue;
		qmc_error(COMPONENT,
			  "%s: tensor %s holds a NaN at element %" PRIu64
			  ": the checkpoint is damaged",
			  path, tensor->name, i);
		return QMLA_ERR_CORRUPT;
	}
	return QMLA_OK;
}

qmla_status_t qmw_fp8_read(const struct qmw_checkpoint *checkpoint, const char *name, uint64_t rows,
			   uint64_t columns, uint8_t *codes, float *scales)
{
	uint64_t blocks = (columns + QMW_FP8_BLOCK - 1) / QMW_FP8_BLOCK;
	const struct qmw_tensor *tensor, *scale_tensor;
	const char *path, *scale_path;
	qmla_status_t status = qmw_checkpoint_find(checkpoint, name, rows, columns, &tensor, &path);

	if (!status)
		status = find_scales(checkpoint, name, rows, columns, &scale_tensor, &scale_path);
	if (!status)
		status = qmw_tensor_read(tensor, 0, rows * columns, codes);
	if (!status)
		status = check_codes(tensor, path, codes);
	/* From the last row back, so that no block is overwritten before its rows have it. */
	if (!status)
		status = qmw_tensor_to_float(scale_tensor, scale_path, scales);
	for (uint64_t r = rows; r-- > 0 && !status;)
		memmove(scales + r * blocks, scales + r / QMW_FP8_BLOCK * blocks,
			blocks * sizeof(*scales));
	return status;
}
