/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/mlp.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/model/fp8.h"

#define NAME_BYTES 256

struct shape {
	const struct qmw_checkpoint *checkpoint;
	const char *prefix;
	uint32_t hidden, width;
	bool biased;
};

static void name_of(const struct shape *s, const char *what, const char *suffix,
		    char name[NAME_BYTES])
{
	snprintf(name, NAME_BYTES, "%s.%s%s", s->prefix, what, suffix);
}

void qmw_mlp_prefix(const struct qmw_config *config, uint32_t cache_layer,
		    char prefix[QMW_TENSOR_NAME_BYTES])
{
	if (config->sublayers == 1)
		snprintf(prefix, QMW_TENSOR_NAME_BYTES, "model.layers.%" PRIu32 ".mlp",
			 cache_layer);
	else
		snprintf(prefix, QMW_TENSOR_NAME_BYTES, "model.layers.%" PRIu32 ".mlps.%" PRIu32,
			 cache_layer / config->sublayers, cache_layer % config->sublayers);
}

static qmla_status_t check(const struct shape *s, const char *what, uint64_t outputs,
			   uint64_t inputs)
{
	char name[NAME_BYTES];
	qmla_status_t status;

	name_of(s, what, ".weight", name);
	status = qmw_checkpoint_check(s->checkpoint, name, outputs, inputs);
	if (status || !s->biased)
		return status;
	name_of(s, what, ".bias", name);
	return qmw_checkpoint_check(s->checkpoint, name, outputs, 0);
}

qmla_status_t qmw_mlp_check(const struct qmw_checkpoint *checkpoint, const char *prefix,
			    uint32_t hidden, uint32_t width, bool biased)
{
	const struct shape s = {checkpoint, prefix, hidden, width, biased};
	qmla_status_t status = check(&s, "gate_proj", width, hidden);

	if (!status)
		status = check(&s, "up_proj", width, hidden);
	return status ? status : check(&s, "down_proj", hidden, width);
}

/* One projection into the caller's @weights [outputs][inputs] and @bias [outputs]. */
static qmla_status_t read_into(const struct shape *s, const char *what, uint64_t outputs,
			       uint64_t inputs, float *weights, float *bias)
{
	char name[NAME_BYTES];
	qmla_status_t status;

	name_of(s, what, ".weight", name);
	status =
		qmw_checkpoint_read_rows(s->checkpoint, name, outputs, inputs, 0, outputs, weights);
	if (status || !s->biased)
		return status;
	name_of(s, what, ".bias", name);
	return qmw_checkpoint_read_rows(s->checkpoint, name, outputs, 0, 0, outputs, bias);
}

/* gate_proj and up_proj as one matrix: one pass over the input. */
static qmla_status_t read_gate_up(const struct shape *s, float *weights, float *bias,
				  struct qmw_matrix *matrix)
{
	size_t half = (size_t)s->width * s->hidden;
	qmla_status_t status = read_into(s, "gate_proj", s->width, s->hidden, weights, bias);

	if (!status)
		status = read_into(s, "up_proj", s->width, s->hidden, weights + half,
				   bias + s->width);
	if (!status)
		status = qmw_matrix_init(matrix, 2 * s->width, s->hidden, weights, s->hidden,
					 s->biased ? bias : NULL);
	return status;
}

static qmla_status_t read_down(const struct shape *s, float *weights, float *bias,
			       struct qmw_matrix *matrix)
{
	qmla_status_t status = read_into(s, "down_proj", s->hidden, s->width, weights, bias);

	return status ? status
		      : qmw_matrix_init(matrix, s->hidden, s->width, weights, s->width,
					s->biased ? bias : NULL);
}

/* All three projections are FP8: they stay so. */
static bool is_fp8(const struct shape *s)
{
	static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
	char name[NAME_BYTES];

	for (int i = 0; i < 3; i++) {
		name_of(s, names[i], ".weight", name);
		if (s->biased || !qmw_fp8_stored(s->checkpoint, name))
			return false;
	}
	return true;
}

/* One projection's codes and scales behind @row rows of others. */
static qmla_status_t read_codes(const struct shape *s, const char *what, uint64_t row,
				uint64_t outputs, uint64_t inputs, uint8_t *codes, float *scales)
{
	uint64_t blocks = (inputs + QMW_FP8_BLOCK - 1) / QMW_FP8_BLOCK;
	char name[NAME_BYTES];

	name_of(s, what, ".weight", name);
	return qmw_fp8_read(s->checkpoint, name, outputs, inputs, codes + row * inputs,
			    scales + row * blocks);
}

static qmla_status_t read_fp8(const struct shape *s, struct qmw_mlp *mlp)
{
	size_t rows = 2 * (size_t)s->width > s->hidden ? 2 * (size_t)s->width : s->hidden;
	size_t inputs = s->hidden > s->width ? s->hidden : s->width;
	uint8_t *codes = malloc(2 * (size_t)s->width * s->hidden);
	float *scales = malloc(rows * (inputs / QMW_FP8_BLOCK + 1) * sizeof(*scales));
	qmla_status_t status = codes && scales ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (!status)
		status = read_codes(s, "gate_proj", 0, s->width, s->hidden, codes, scales);
	if (!status)
		status = read_codes(s, "up_proj", s->width, s->width, s->hidden, codes, scales);
	if (!status)
		status = qmw_matrix_init_codes(&mlp->gate_up, 2 * s->width, s->hidden, codes,
					       scales);
	if (!status)
		status = read_codes(s, "down_proj", 0, s->hidden, s->width, codes, scales);
	if (!status)
		status = qmw_matrix_init_codes(&mlp->down, s->hidden, s->width, codes, scales);
	free(codes);
	free(scales);
	return status;
}

static qmla_status_t read_float(const struct shape *s, struct qmw_mlp *mlp)
{
	float *weights = malloc(2 * (size_t)s->hidden * s->width * sizeof(*weights) + 1);
	float *bias = malloc((2 * (size_t)s->width + s->hidden) * sizeof(*bias));
	qmla_status_t status = weights && bias ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (!status)
		status = read_gate_up(s, weights, bias, &mlp->gate_up);
	if (!status)
		status = read_down(s, weights, bias, &mlp->down);
	free(weights);
	free(bias);
	return status;
}

qmla_status_t qmw_mlp_read(const struct qmw_checkpoint *checkpoint, const char *prefix,
			   uint32_t hidden, uint32_t width, bool biased, uint64_t *parameters,
			   struct qmw_mlp *mlp)
{
	const struct shape s = {checkpoint, prefix, hidden, width, biased};
	qmla_status_t status;

	*mlp = (struct qmw_mlp){.width = width};
	status = is_fp8(&s) ? read_fp8(&s, mlp) : read_float(&s, mlp);
	if (status)
		qmw_mlp_free(mlp);
	else
		*parameters +=
			3 * (uint64_t)hidden * width + (biased ? 2 * (uint64_t)width + hidden : 0);
	return status;
}

void qmw_mlp_free(struct qmw_mlp *mlp)
{
	qmw_matrix_fini(&mlp->gate_up);
	qmw_matrix_fini(&mlp->down);
	*mlp = (struct qmw_mlp){0};
}
