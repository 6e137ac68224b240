/* SPDX-License-Identifier: Apache-2.0 */
/* A hostile weight file: header, and the values of every tensor that passes. */
#include <stdlib.h>

#include "client/model/checkpoint.h"
#include "client/model/safetensors.h"
#include "common/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_tensor(const struct qmw_tensor *tensor)
{
	float *values = malloc(tensor->elements * sizeof(*values) + 1);
	char shape[192];

	qmw_shape_format(tensor->shape, tensor->rank, shape);
	(void)qmw_tensor_check_shape(tensor, "input", 2, 0);
	if (values)
		(void)qmw_tensor_to_float(tensor, "input", values);
	free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct qmw_safetensors *file;

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	if (qmw_safetensors_parse(data, size, "input", &file))
		return 0;
	for (uint32_t i = 0; i < qmw_safetensors_count(file); i++) {
		const struct qmw_tensor *tensor = qmw_safetensors_at(file, i);

		/* A dtype that is not ours has sizes of its own: never expanded. */
		if (qmw_safetensors_find(file, tensor->name) != tensor)
			abort();
		if (tensor->elements <= size)
			read_tensor(tensor);
	}
	qmw_safetensors_close(file);
	return 0;
}
