/* SPDX-License-Identifier: Apache-2.0 */
/* A model run a layer at a time is the model: hidden states give its logits, bit by bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/model/forward.h"
#include "client/model/internal.h"
#include "client/model/numeric.h"
#include "client/model/stream.h"
#include "tests/unit/client/model/fixture.h"

#define COUNT 138u

static const char *const cases[] = {
	FIXTURE_GOLDEN "v3-bf16-yarn-qlora-bias-sharded",
	FIXTURE_GOLDEN "v3-f32-half-qlora-eps-tied",
	FIXTURE_GOLDEN "v2-f16-rope32-qlora",
	FIXTURE_GOLDEN "v3-moe-groups-f32",
	FIXTURE_GOLDEN "v3-moe-fp8",
	FIXTURE_GOLDEN "longcat-f32",
	FIXTURE_GOLDEN "minicpm3-bf16",
	FIXTURE_GOLDEN "longcat-lite-bf16",
};

static void fill_tokens(uint32_t tokens[COUNT], uint32_t vocab)
{
	uint64_t seed = 11;

	for (uint32_t i = 0; i < COUNT; i++)
		tokens[i] = (uint32_t)((fixture_random(&seed) + 1) / 2 * (float)vocab);
}

/* The whole model's residual stream behind every cache layer, [layers][COUNT][hidden]. */
struct whole {
	struct qmw_model *model;
	struct qmw_context *context;
	struct qmw_sequence *sequence;
	uint32_t tokens[COUNT];
};

static void whole_open(const char *directory, struct whole *whole)
{
	const struct qmw_model_options options = {
		.cache = QMW_CACHE_F32, .threads = 2, .ignore_calibration = true};
	struct qmw_forward_item item;

	assert_int_equal(qmw_model_open(directory, &options, &whole->model), QMLA_OK);
	assert_int_equal(qmw_context_create(whole->model, COUNT, &whole->context), QMLA_OK);
	assert_int_equal(qmw_sequence_create(whole->model, COUNT, &whole->sequence), QMLA_OK);
	fill_tokens(whole->tokens, qmw_model_info(whole->model)->vocab);
	item = (struct qmw_forward_item){
		.sequence = whole->sequence, .tokens = whole->tokens, .count = COUNT};
	assert_int_equal(qmw_plan(whole->context, NULL, &item, 1), QMLA_OK);
	qmw_forward_begin(whole->context);
}

static void whole_close(struct whole *whole)
{
	qmw_sequence_destroy(whole->sequence);
	qmw_context_destroy(whole->context);
	qmw_model_close(whole->model);
}

struct visit {
	struct qmw_stream *stream;
	uint32_t calls, next;
	const float *hidden; /**< what the sub-layer will be given */
};

/* The norm of the residual stream before the decoder layer's first sub-layer, written out. */
static void check_input(const struct visit *visit, uint32_t cache_layer, const float *input)
{
	const struct qmw_config *c = qmw_stream_config(visit->stream);
	char name[QMW_TENSOR_NAME_BYTES];
	float *weight;

	qmw_module_name(c, cache_layer, "input_layernorm", "weight", name);
	assert_int_equal(qmw_checkpoint_read(qmw_stream_checkpoint(visit->stream), name, c->hidden,
					     0, &weight),
			 QMLA_OK);
	for (uint32_t r = 0; r < COUNT; r++) {
		const float *x = visit->hidden + (size_t)r * c->hidden;
		double square = 0;

		for (uint32_t i = 0; i < c->hidden; i++)
			square += (double)x[i] * x[i];
		for (uint32_t i = 0; i < c->hidden; i++) {
			double y = x[i] / sqrt(square / c->hidden + c->norm_eps) * weight[i];

			assert_true(fabs(input[(size_t)r * c->hidden + i] - y) <
				    1e-5 * (1 + fabs(y)));
		}
	}
	free(weight);
}

/* The weights belong to the layer, and the input is the norm of the residual stream. */
static qmla_status_t see(void *user, uint32_t cache_layer,
			 const struct qmw_attention_weights *weights, const float *input,
			 uint32_t n)
{
	struct visit *visit = user;
	uint32_t hidden = qmw_stream_config(visit->stream)->hidden;

	assert_int_equal(cache_layer, visit->next++);
	assert_int_equal(n, COUNT);
	assert_ptr_equal(weights, qmw_stream_attention(visit->stream, cache_layer));
	for (uint32_t i = 0; i < n * hidden; i++)
		assert_true(isfinite(input[i]));
	if (cache_layer % qmw_stream_config(visit->stream)->sublayers == 0)
		check_input(visit, cache_layer, input);
	visit->calls++;
	return QMLA_OK;
}

static qmla_status_t refuse(void *user, uint32_t cache_layer,
			    const struct qmw_attention_weights *weights, const float *input,
			    uint32_t n)
{
	(void)user, (void)cache_layer, (void)weights, (void)input, (void)n;
	return QMLA_ERR_CANCELLED;
}

static void check_logits(struct qmw_stream *stream, const struct whole *whole, const float *hidden)
{
	uint32_t vocab = qmw_model_info(whole->model)->vocab;
	float *ours = malloc(sizeof(*ours) * COUNT * vocab);
	float *theirs = malloc(sizeof(*theirs) * COUNT * vocab);
	struct qmw_forward_item item = {
		.tokens = whole->tokens, .count = COUNT, .all_logits = true, .logits = theirs};

	assert_int_equal(qmw_sequence_create(whole->model, COUNT, &item.sequence), QMLA_OK);
	assert_int_equal(qmw_model_forward(whole->model, whole->context, NULL, &item, 1), QMLA_OK);
	assert_int_equal(qmw_stream_logits(stream, hidden, COUNT, ours), QMLA_OK);
	assert_memory_equal(ours, theirs, sizeof(*ours) * COUNT * vocab);
	qmw_sequence_destroy(item.sequence);
	free(ours);
	free(theirs);
}

static void check_case(const char *directory)
{
	struct qmw_stream *stream;
	struct whole whole = {0};
	struct visit visit = {0};
	uint32_t hidden;
	size_t bytes;
	float *states;

	whole_open(directory, &whole);
	assert_int_equal(qmw_stream_open(directory, 1, &stream), QMLA_OK);
	hidden = qmw_stream_config(stream)->hidden;
	bytes = sizeof(*states) * COUNT * hidden;
	states = malloc(bytes);
	assert_int_equal(qmw_stream_embed(stream, whole.tokens, COUNT, states), QMLA_OK);
	memcpy(whole.context->hidden, states, bytes);
	visit.stream = stream;
	visit.hidden = states;
	for (uint32_t i = 0; i < qmw_stream_layers(stream); i++) {
		uint32_t first, count;

		qmw_stream_layer_span(stream, i, &first, &count);
		assert_int_equal(qmw_stream_load(stream, i), QMLA_OK);
		assert_non_null(qmw_stream_attention(stream, first));
		assert_null(qmw_stream_attention(stream, first + count));
		assert_int_equal(qmw_stream_run(stream, states, COUNT, refuse, NULL),
				 QMLA_ERR_CANCELLED);
		assert_int_equal(qmw_stream_run(stream, states, COUNT, see, &visit), QMLA_OK);
		for (uint32_t k = first; k < first + count; k++)
			assert_int_equal(qmw_forward_layer(whole.context, k), QMLA_OK);
		assert_memory_equal(states, whole.context->hidden, bytes);
	}
	assert_int_equal(visit.calls, qmw_stream_cache_layers(stream));
	check_logits(stream, &whole, states);
	free(states);
	qmw_stream_close(stream);
	whole_close(&whole);
}

static void test_equals_whole(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check_case(cases[i]);
}

static void test_arguments(void **state)
{
	struct qmw_stream *stream;
	uint32_t token = 256;
	float *values;

	(void)state;
	assert_int_equal(qmw_stream_open(cases[0], 1, &stream), QMLA_OK);
	values = calloc(qmw_stream_config(stream)->max_position + 1,
			sizeof(*values) * qmw_stream_config(stream)->hidden);
	assert_null(qmw_stream_attention(stream, 0));
	assert_int_equal(qmw_stream_run(stream, values, 1, NULL, NULL), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_stream_embed(stream, &token, 1, values), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_stream_load(stream, qmw_stream_layers(stream)),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_stream_load(stream, 0), QMLA_OK);
	assert_int_equal(qmw_stream_run(stream, values, qmw_stream_config(stream)->max_position + 1,
					NULL, NULL),
			 QMLA_ERR_INVALID_ARGUMENT);
	free(values);
	qmw_stream_close(stream);
}

/* Names and shapes are known to be wrong before any layer is read. */
static void test_checked_on_opening(void **state)
{
	struct qmw_stream *stream;
	char directory[256];

	(void)state;
	fixture_make(directory);
	fixture_copy(FIXTURE_GOLDEN "v3-bf16-half-bias", directory);
	fixture_replace_header(directory, "model.safetensors",
			       "model.layers.1.mlp.down_proj.weight",
			       "model.layers.1.mlp.down_proj.wrong!");
	assert_int_equal(qmw_stream_open(directory, 1, &stream), QMLA_ERR_NOT_FOUND);
	fixture_remove(directory);
}

/* A file that shrinks while the stream is open is an error of that load, not a crash. */
static void test_truncated_later(void **state)
{
	struct qmw_stream *stream;
	char directory[256], path[512];
	size_t length;

	(void)state;
	fixture_make(directory);
	fixture_copy(FIXTURE_GOLDEN "v3-bf16-half-bias", directory);
	assert_int_equal(qmw_stream_open(directory, 1, &stream), QMLA_OK);
	assert_int_equal(qmw_stream_load(stream, 1), QMLA_OK);
	free(fixture_read(directory, "model.safetensors", &length));
	snprintf(path, sizeof(path), "%s/model.safetensors", directory);
	assert_int_equal(truncate(path, (off_t)length - 2), 0);
	assert_int_equal(qmw_stream_load(stream, 0), QMLA_ERR_CORRUPT);
	assert_null(qmw_stream_attention(stream, 1));
	qmw_stream_close(stream);
	fixture_remove(directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_equals_whole),
		cmocka_unit_test(test_arguments),
		cmocka_unit_test(test_checked_on_opening),
		cmocka_unit_test(test_truncated_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
