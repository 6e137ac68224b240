/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runtime against Hugging Face transformers: golden files of every
 * configuration switch (tests/golden/README.md) and of mla-s on real text.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/model/model.h"
#include "client/model/numeric.h"
#include "client/model/safetensors.h"

#define GOLDEN QMLA_SOURCE_DIR "/tests/golden/"
#define MLA_S  QMLA_SOURCE_DIR "/tests/data/mla-s"

static const struct {
	const char *name;
	bool bf16; /**< the file also holds logits of a run in BF16 */
	/** A rounded activation may choose another expert: such rows are a few, and counted. */
	bool experts;
} cases[] = {
	{"v3-bf16-dc512", true, false},
	{"v3-f32-half-qlora-eps-tied", false, false},
	{"v3-bf16-yarn-qlora-bias-sharded", true, false},
	{"v3-f16-half-yarn-mscale", false, false},
	{"v3-bf16-half-bias", true, false},
	{"v3-f32-rope32-yarn", false, false},
	{"v2-bf16-tied", true, false},
	{"v2-f32-yarn-qlora-bias-sharded", false, false},
	{"v2-f16-rope32-qlora", false, false},
	{"v2-bf16-published-config-sharded", true, false},
	{"minicpm3-bf16", true, false},
	{"v2-moe-greedy-bf16", true, true},
	{"v2-moe-groups-f32", false, true},
	{"v3-moe-groups-f32", false, true},
	{"v3-moe-moonlight-bf16", true, true},
	{"kimi-k2-published-config-f32", false, true},
	{"v3-moe-fp8", false, true},
	{"glm-moe-bf16", true, true},
	{"longcat-f32", false, true},
	{"longcat-bf16", true, true},
	{"longcat-lite-bf16", true, true},
};

struct golden {
	struct qmw_safetensors *file;
	uint32_t count;
	uint32_t *tokens;
};

/* A tensor that is missing, or of another type or size, fails the test. */
static const uint8_t *golden_bytes(const struct golden *golden, const char *name,
				   enum qmw_dtype dtype, uint64_t elements)
{
	const struct qmw_tensor *tensor = qmw_safetensors_find(golden->file, name);

	if (!tensor)
		fail_msg("the golden file has no tensor %s", name);
	assert_int_equal(tensor->dtype, dtype);
	assert_int_equal(tensor->elements, elements);
	return tensor->data;
}

static const float *golden_floats(const struct golden *golden, const char *name, uint64_t elements)
{
	return (const float *)(const void *)golden_bytes(golden, name, QMW_DTYPE_F32, elements);
}

static void golden_open(const char *name, struct golden *golden)
{
	const struct qmw_tensor *tokens;
	char path[512];

	snprintf(path, sizeof(path), GOLDEN "%s/golden.safetensors", name);
	assert_int_equal(qmw_safetensors_load(path, &golden->file), QMLA_OK);
	tokens = qmw_safetensors_find(golden->file, "tokens");
	assert_non_null(tokens);
	golden->count = (uint32_t)tokens->elements;
	golden->tokens = calloc(golden->count, sizeof(*golden->tokens));
	for (uint32_t i = 0; i < golden->count; i++) {
		int64_t token = 0;

		if (tokens->dtype == QMW_DTYPE_I64)
			memcpy(&token, tokens->data + 8 * (size_t)i, 8);
		else
			token = tokens->data[i];
		golden->tokens[i] = (uint32_t)token;
	}
}

static void golden_close(struct golden *golden)
{
	free(golden->tokens);
	qmw_safetensors_close(golden->file);
}

/* All logits of @count tokens, computed in chunks. */
static float *run(const char *directory, const struct qmw_model_options *options,
		  const uint32_t *tokens, uint32_t count, uint32_t chunk)
{
	struct qmw_model *model;
	struct qmw_context *context;
	struct qmw_sequence *sequence;
	uint32_t vocab;
	float *logits;

	assert_int_equal(qmw_model_open(directory, options, &model), QMLA_OK);
	assert_int_equal(qmw_context_create(model, chunk, &context), QMLA_OK);
	assert_int_equal(qmw_sequence_create(model, count, &sequence), QMLA_OK);
	vocab = qmw_model_info(model)->vocab;
	logits = malloc((size_t)count * vocab * sizeof(*logits));
	for (uint32_t i = 0; i < count; i += chunk) {
		struct qmw_forward_item item = {.sequence = sequence,
						.tokens = tokens + i,
						.count = count - i < chunk ? count - i : chunk,
						.all_logits = true,
						.logits = logits + (size_t)i * vocab};

		assert_int_equal(qmw_model_forward(model, context, NULL, &item, 1), QMLA_OK);
	}
	assert_int_equal(qmw_sequence_length(sequence), count);
	qmw_sequence_destroy(sequence);
	qmw_context_destroy(context);
	qmw_model_close(model);
	return logits;
}

static double relative_error(const float *a, const float *reference, size_t count)
{
	double difference = 0, norm = 0;

	for (size_t i = 0; i < count; i++) {
		difference += pow((double)a[i] - reference[i], 2);
		norm += pow(reference[i], 2);
	}
	return sqrt(difference / norm);
}

/* Rows that are further off than @limit: with experts, those that chose another one. */
static double check_rows(const float *logits, const float *expected, uint32_t rows, double limit,
			 uint32_t *other)
{
	double sum = 0;

	*other = 0;
	for (uint32_t r = 0; r < rows; r++) {
		double error =
			relative_error(logits + (size_t)r * 256, expected + (size_t)r * 256, 256);

		if (error < limit)
			sum += error * error;
		else
			(*other)++;
	}
	return sqrt(sum / (rows - *other));
}

/* Greedy tokens are equal. */
static void check_argmax(const float *logits, const float *expected, uint32_t rows)
{
	for (uint32_t r = 0; r < rows; r++)
		assert_int_equal(qmw_argmax(logits + (size_t)r * 256, 256),
				 qmw_argmax(expected + (size_t)r * 256, 256));
}

static void check_case(size_t index, const struct qmw_model_options *options, const char *reference,
		       double limit)
{
	const char *name = cases[index].name;
	bool exact = options->cache == QMW_CACHE_F32;
	bool experts = cases[index].experts && !exact;
	struct golden golden;
	char directory[512];
	const float *expected;
	uint32_t other = 0;
	double error;
	float *logits;

	golden_open(name, &golden);
	expected = golden_floats(&golden, reference, (uint64_t)golden.count * 256);
	snprintf(directory, sizeof(directory), GOLDEN "%s", name);
	logits = run(directory, options, golden.tokens, golden.count, 100);
	if (exact)
		check_argmax(logits, expected, golden.count);
	limit = experts ? 2 * limit : limit;
	if (experts)
		error = check_rows(logits, expected, golden.count, 2 * limit, &other);
	else
		error = relative_error(logits, expected, (size_t)golden.count * 256);
	print_message("%-36s %-12s relative error %.2e (limit %.0e), other experts in %u rows\n",
		      name, reference, error, limit, other);
	assert_true(error < limit);
	assert_true(other <= golden.count / 8);
	free(logits);
	golden_close(&golden);
}

static void test_float32(void **state)
{
	const struct qmw_model_options options = {.cache = QMW_CACHE_F32, .threads = 1};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check_case(i, &options, "logits", 1e-4);
}

/* A BF16 cache, everything else exact: nearer to the float32 run than a BF16 run is. */
static void test_bf16_cache(void **state)
{
	const struct qmw_model_options options = {.cache = QMW_CACHE_BF16, .threads = 1};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		check_case(i, &options, "logits", 1e-2);
		if (cases[i].bf16)
			check_case(i, &options, "logits_bf16", 1e-2);
	}
}

/* Rounding where a BF16 implementation rounds. */
static void test_bf16_everywhere(void **state)
{
	const struct qmw_model_options options = {
		.cache = QMW_CACHE_BF16, .round_bf16 = true, .threads = 1};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (cases[i].bf16)
			check_case(i, &options, "logits_bf16", 1e-2);
}

struct agreement {
	uint32_t positions, different, near_ties;
	double last_error; /**< largest relative error of the sequences' last logits */
	double loss_error; /**< largest difference of a mean loss, nats */
};

static void compare_text(const struct golden *golden, const char *kind, uint32_t sequence,
			 const float *logits, struct agreement *agreement)
{
	char name[64];
	const float *top, *second, *last, *total, *target;
	const uint8_t *argmax;
	double loss = 0, expected = 0, error;

	snprintf(name, sizeof(name), "argmax_%s", kind);
	argmax = golden_bytes(golden, name, QMW_DTYPE_OTHER, 2 * 2048) + (size_t)sequence * 2048;
	snprintf(name, sizeof(name), "top_%s", kind);
	top = golden_floats(golden, name, 2 * 2048) + (size_t)sequence * 2048;
	snprintf(name, sizeof(name), "second_%s", kind);
	second = golden_floats(golden, name, 2 * 2048) + (size_t)sequence * 2048;
	snprintf(name, sizeof(name), "last_logits_%s", kind);
	last = golden_floats(golden, name, 2 * 32 * 256) + (size_t)sequence * 32 * 256;
	snprintf(name, sizeof(name), "logsumexp_%s", kind);
	total = golden_floats(golden, name, 2 * 2048) + (size_t)sequence * 2048;
	snprintf(name, sizeof(name), "target_logit_%s", kind);
	target = golden_floats(golden, name, 2 * 2047) + (size_t)sequence * 2047;
	for (uint32_t i = 0; i < 2048; i++) {
		const float *row = logits + (size_t)i * 256;

		agreement->positions++;
		if (qmw_argmax(row, 256) != argmax[i]) {
			agreement->different++;
			agreement->near_ties += top[i] - second[i] < 0.1f;
		}
		if (i == 2047)
			break;
		loss += qmw_log_sum_exp(row, 256) - row[golden->tokens[sequence * 2048 + i + 1]];
		expected += total[i] - target[i];
	}
	error = relative_error(logits + (size_t)2016 * 256, last, (size_t)32 * 256);
	agreement->last_error = fmax(agreement->last_error, error);
	agreement->loss_error = fmax(agreement->loss_error, fabs(loss - expected) / 2047);
}

static struct agreement compare_mla_s(const struct qmw_model_options *options, const char *kind)
{
	struct agreement agreement = {0};
	struct golden golden;

	golden_open("mla-s", &golden);
	assert_int_equal(golden.count, 4096);
	for (uint32_t s = 0; s < 2; s++) {
		float *logits = run(MLA_S, options, golden.tokens + (size_t)s * 2048, 2048, 512);

		compare_text(&golden, kind, s, logits, &agreement);
		free(logits);
	}
	golden_close(&golden);
	print_message("mla-s against %s: %u of %u greedy bytes differ (%u near ties), "
		      "last logits %.2e, loss %.2e nats\n",
		      kind, agreement.different, agreement.positions, agreement.near_ties,
		      agreement.last_error, agreement.loss_error);
	return agreement;
}

static void test_mla_s_float32(void **state)
{
	const struct qmw_model_options options = {.cache = QMW_CACHE_F32};
	struct agreement a = compare_mla_s(&options, "f32");

	(void)state;
	assert_true(a.last_error < 1e-4);
	assert_true(a.loss_error < 1e-5);
	assert_true(a.different <= a.positions / 1000);
}

static void test_mla_s_bf16_cache(void **state)
{
	const struct qmw_model_options options = {.cache = QMW_CACHE_BF16};
	struct agreement a = compare_mla_s(&options, "f32");

	(void)state;
	assert_true(a.last_error < 1e-2);
	assert_true(a.loss_error < 1e-3);
	assert_true(a.different <= a.positions / 200); /* 99.5 % */
	a = compare_mla_s(&options, "bf16");
	assert_true(a.last_error < 1e-2);
	assert_true(a.loss_error < 1e-3);
	assert_true(a.different - a.near_ties <= a.positions / 200);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_float32),          cmocka_unit_test(test_bf16_cache),
		cmocka_unit_test(test_bf16_everywhere),  cmocka_unit_test(test_mla_s_float32),
		cmocka_unit_test(test_mla_s_bf16_cache),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
