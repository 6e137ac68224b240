/* SPDX-License-Identifier: Apache-2.0 */
/* The attention operator computes what Hugging Face transformers does, for every family. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/attention.h"
#include "client/model/safetensors.h"
#include "client/model/stream.h"

#define GOLDEN  QMLA_SOURCE_DIR "/tests/golden/"
#define OUTPUTS QMLA_SOURCE_DIR "/tests/unit/client/calibrate/attention_golden.safetensors"
#define LENGTH  150

static const uint32_t rows[] = {0, 1, 5, 63, 64, 127, 128, 149};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

struct run {
	const struct qmw_safetensors *golden;
	const char *name;
	struct qmw_stream *stream;
	uint32_t seen;
	double worst;
};

/* Relative error of the golden rows of one sub-layer. */
static double compare(const struct run *run, uint32_t layer, const float *output, uint32_t hidden)
{
	char name[128];
	const struct qmw_tensor *tensor;
	float *golden = malloc(ROWS * hidden * sizeof(*golden));
	double error = 0, energy = 0;

	snprintf(name, sizeof(name), "%s/%u", run->name, layer);
	tensor = qmw_safetensors_find(run->golden, name);
	assert_non_null(tensor);
	assert_int_equal(tensor->elements, ROWS * hidden);
	assert_int_equal(qmw_tensor_to_float(tensor, OUTPUTS, golden), QMLA_OK);
	for (size_t i = 0; i < ROWS * hidden; i++) {
		double d =
			(double)output[rows[i / hidden] * hidden + i % hidden] - (double)golden[i];

		error += d * d;
		energy += (double)golden[i] * (double)golden[i];
	}
	free(golden);
	return sqrt(error / energy);
}

static qmla_status_t visit(void *user, uint32_t layer, const struct qmw_attention_weights *weights,
			   const float *input, uint32_t n)
{
	struct run *run = user;
	const struct qmw_config *config = qmw_stream_config(run->stream);
	float *output = malloc((size_t)n * config->hidden * sizeof(*output));
	struct qmw_operator *op;
	struct qmw_passage *passage;

	assert_int_equal(qmw_operator_create(config, qmw_stream_rope(run->stream), weights, &op),
			 QMLA_OK);
	assert_int_equal(qmw_passage_create(op, input, n, &passage), QMLA_OK);
	assert_int_equal(qmw_passage_output(passage, NULL, output), QMLA_OK);
	run->worst = fmax(run->worst, compare(run, layer, output, config->hidden));
	run->seen++;
	qmw_passage_destroy(passage);
	qmw_operator_destroy(op);
	free(output);
	return QMLA_OK;
}

static void check_model(struct run *run)
{
	char path[512];
	uint32_t tokens[LENGTH], first = 0, count = 0, layers;
	float *hidden;

	snprintf(path, sizeof(path), GOLDEN "%s", run->name);
	for (uint32_t i = 0; i < LENGTH; i++)
		tokens[i] = (i * 37 + 11) % 97;
	assert_int_equal(qmw_stream_open(path, 1, &run->stream), QMLA_OK);
	layers = qmw_stream_cache_layers(run->stream);
	hidden = malloc((size_t)LENGTH * qmw_stream_config(run->stream)->hidden * sizeof(*hidden));
	assert_int_equal(qmw_stream_embed(run->stream, tokens, LENGTH, hidden), QMLA_OK);
	for (uint32_t layer = 0; first + count < layers; layer++) {
		qmw_stream_layer_span(run->stream, layer, &first, &count);
		assert_int_equal(qmw_stream_load(run->stream, layer), QMLA_OK);
		assert_int_equal(qmw_stream_run(run->stream, hidden, LENGTH, visit, run), QMLA_OK);
	}
	assert_int_equal(run->seen, layers);
	free(hidden);
	qmw_stream_close(run->stream);
}

static void test_every_family_attends_as_transformers_does(void **state)
{
	struct qmw_safetensors *golden;
	uint32_t models = 0;

	(void)state;
	assert_int_equal(qmw_safetensors_load(OUTPUTS, &golden), QMLA_OK);
	for (uint32_t i = 0; i < qmw_safetensors_count(golden); i++) {
		char name[QMW_TENSOR_NAME_MAX];
		char *slash;
		struct run run = {.golden = golden, .name = name};

		snprintf(name, sizeof(name), "%s", qmw_safetensors_at(golden, i)->name);
		slash = strchr(name, '/');
		assert_non_null(slash);
		if (strcmp(slash, "/0") != 0)
			continue;
		*slash = '\0';
		check_model(&run);
		print_message("%-34s %.1e\n", name, run.worst);
		assert_true(run.worst < 5e-6);
		models++;
	}
	assert_true(models >= 18);
	qmw_safetensors_close(golden);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_family_attends_as_transformers_does),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
