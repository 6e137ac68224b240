/* SPDX-License-Identifier: Apache-2.0 */
/* Scores against those that follow from transformers' golden files. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/model/eval.h"
#include "client/model/safetensors.h"
#include "tests/unit/client/model/fixture.h"

#define LENGTH 2048u

static char *text;
static struct qmw_safetensors *golden;

static const float *floats(const char *name)
{
	return (const float *)(const void *)qmw_safetensors_find(golden, name)->data;
}

static struct qmw_model *open_model(enum qmw_cache_kind cache)
{
	const struct qmw_model_options options = {.cache = cache};
	struct qmw_model *model;

	assert_int_equal(qmw_model_open(FIXTURE_MLA_S, &options, &model), QMLA_OK);
	return model;
}

/* Mean over sequences of their mean loss, from transformers' logsumexp and target logits. */
static double golden_bits(uint32_t sequences)
{
	const float *total = floats("logsumexp_f32"), *target = floats("target_logit_f32");
	double bits = 0;

	for (uint32_t s = 0; s < sequences; s++) {
		double loss = 0;

		for (uint32_t i = 0; i + 1 < LENGTH; i++)
			loss += (double)total[s * LENGTH + i] - target[s * (LENGTH - 1) + i];
		bits += loss / (LENGTH - 1) / log(2);
	}
	return bits / sequences;
}

static void test_bits_per_byte(void **state)
{
	struct qmw_eval_options options = {.length = LENGTH};
	struct qmw_model *exact = open_model(QMW_CACHE_F32), *packed = open_model(QMW_CACHE_PACKED);
	struct qmw_eval_text result;

	(void)state;
	assert_int_equal(qmw_eval_text(exact, NULL, (const uint8_t *)text, 4096, &options, &result),
			 QMLA_OK);
	assert_int_equal(result.sequences, 2);
	assert_true(result.positions == 2 * 2047);
	assert_false(result.compared);
	assert_true(fabs(result.bits_per_byte - golden_bits(2)) < 1e-5);

	options.max_sequences = 1;
	assert_int_equal(
		qmw_eval_text(packed, exact, (const uint8_t *)text, 4096, &options, &result),
		QMLA_OK);
	print_message("C4R4: %.4f bits, exact %.4f, KL %.5f, same greedy byte %.4f\n",
		      result.bits_per_byte, result.reference_bits, result.kl, result.top1);
	assert_int_equal(result.sequences, 1);
	assert_true(result.compared);
	assert_true(fabs(result.reference_bits - golden_bits(1)) < 1e-5);
	assert_true(result.kl > 1e-5 && result.kl < 0.02);
	assert_true(result.top1 > 0.95 && result.top1 < 1);
	assert_true(fabs(result.bits_per_byte - result.reference_bits) < 0.02);

	options.length = 512;
	assert_int_equal(
		qmw_eval_text(exact, exact, (const uint8_t *)text, 4096, &options, &result),
		QMLA_OK);
	assert_true(result.kl == 0 && result.top1 == 1);
	qmw_model_close(exact);
	qmw_model_close(packed);
}

/* Spans of one byte: right exactly where transformers' greedy byte is the text's. */
static void test_recall(void **state)
{
	const uint8_t *argmax = qmw_safetensors_find(golden, "argmax_f32")->data;
	struct qmw_model *model = open_model(QMW_CACHE_F32);
	struct qmw_eval_options options = {.length = 700};
	char *line = malloc(1 << 20);
	struct qmw_eval_recall result;
	uint32_t right = 0;
	int used;

	(void)state;
	used = sprintf(line, "{\"text\": \"");
	for (int i = 0; i < 600; i++)
		used += sprintf(line + used, "\\u%04x", (unsigned char)text[i]);
	used += sprintf(line + used, "\", \"answers\": [");
	for (int i = 1; i < 599; i++) {
		bool both = argmax[i - 1] == (uint8_t)text[i] && argmax[i] == (uint8_t)text[i + 1];

		used += sprintf(line + used, "[%d,%d],", i, i + 2);
		right += both;
	}
	used += sprintf(line + used, "[599,600]]}\n\n{\"text\": \"%0800d\", \"answers\": [[1, 2]]}",
			1);
	right += argmax[598] == (uint8_t)text[599];
	assert_int_equal(qmw_eval_recall(model, line, (size_t)used, &options, &result), QMLA_OK);
	assert_int_equal(result.prompts, 1); /* the second is too long */
	assert_int_equal(result.answers, 599);
	assert_in_range(right, 100, 500); /* both kinds are there */
	assert_int_equal(result.right, right);
	assert_true(fabs(result.recall - right / 599.0) < 1e-12);
	free(line);
	qmw_model_close(model);
}

/* Prompts of two letters, for ten first ones and every second one. */
static struct qmw_eval_recall guess_letters(const char *directory)
{
	const struct qmw_model_options model_options = {.threads = 1, .cache = QMW_CACHE_F32};
	const struct qmw_eval_options options = {.length = 64};
	char *lines = malloc(1 << 20);
	struct qmw_eval_recall result;
	struct qmw_model *model;
	size_t used = 0;

	assert_non_null(lines);
	for (int a = 'a'; a <= 'j'; a++)
		for (int b = '0'; b <= 'z'; b++)
			used += (size_t)sprintf(
				lines + used, "{\"text\": \"%c\\u%04x\", \"answers\": [[1, 2]]}\n",
				a, b);
	assert_int_equal(qmw_model_open(directory, &model_options, &model), QMLA_OK);
	assert_int_equal(qmw_eval_recall(model, lines, used, &options, &result), QMLA_OK);
	qmw_model_close(model);
	free(lines);
	return result;
}

/* Rows 256 to 511 are @factor times the first 256. */
static void widen_rows(struct fixture_tensor *tensor, float factor)
{
	size_t count = (size_t)(tensor->shape[0] * tensor->shape[1]);

	tensor->values = realloc(tensor->values, 2 * count * sizeof(*tensor->values));
	assert_non_null(tensor->values);
	for (size_t i = 0; i < count; i++)
		tensor->values[count + i] = factor * tensor->values[i];
	tensor->shape[0] *= 2;
}

/* The checkpoint with 256 further tokens: each is twice as likely as the byte 256 below it. */
static void widen_vocabulary(const char *from, const char *directory)
{
	struct fixture_tensor tensors[64] = {0};
	struct qmw_safetensors *file;
	char path[300];
	uint32_t count;

	fixture_copy(from, directory);
	fixture_replace(directory, "config.json", "\"vocab_size\": 256", "\"vocab_size\": 512");
	snprintf(path, sizeof(path), "%s/model.safetensors", from);
	assert_int_equal(qmw_safetensors_open(path, &file), QMLA_OK);
	count = qmw_safetensors_count(file);
	assert_in_range(count, 1, 64);
	for (uint32_t i = 0; i < count; i++) {
		const struct qmw_tensor *t = qmw_safetensors_at(file, i);

		snprintf(tensors[i].name, sizeof(tensors[i].name), "%s", t->name);
		tensors[i].rank = t->rank;
		memcpy(tensors[i].shape, t->shape, sizeof(tensors[i].shape));
		tensors[i].values = malloc(t->elements * sizeof(float));
		assert_int_equal(qmw_tensor_to_float(t, path, tensors[i].values), QMLA_OK);
		if (strcmp(t->name, "model.embed_tokens.weight") == 0)
			widen_rows(&tensors[i], 1);
		if (strcmp(t->name, "lm_head.weight") == 0)
			widen_rows(&tensors[i], 2);
	}
	qmw_safetensors_close(file);
	fixture_write_tensors(directory, "model.safetensors", tensors, count);
}

/* A greedy token behind the bytes is no byte: 256 + 'a' is not 'a'. */
static void test_recall_wide_vocabulary(void **state)
{
	struct qmw_eval_recall narrow = guess_letters(FIXTURE_GOLDEN "v3-f32-rope32-yarn"), wide;
	char directory[256];

	(void)state;
	fixture_make(directory);
	widen_vocabulary(FIXTURE_GOLDEN "v3-f32-rope32-yarn", directory);
	wide = guess_letters(directory);
	assert_int_equal(narrow.answers, wide.answers);
	assert_in_range(narrow.right, 1, 10);
	assert_int_equal(wide.right, 0);
	fixture_remove(directory);
}

static bool stop(void *user, uint32_t done, uint32_t of)
{
	uint32_t *calls = user;

	assert_true(done <= of);
	return ++*calls < 2;
}

static void test_refused(void **state)
{
	static const char *const lines[] = {
		"{\"text\": \"ab\"}",
		"{\"answers\": [[1, 2]]}",
		"{\"text\": \"\", \"answers\": []}",
		"{\"text\": \"ab\", \"answers\": [[0, 1]]}",
		"{\"text\": \"ab\", \"answers\": [[1, 1]]}",
		"{\"text\": \"ab\", \"answers\": [[1, 3]]}",
		"{\"text\": \"ab\", \"answers\": [[1]]}",
		"{\"text\": \"ab\", \"answers\": [[1, 2]",
		"\xff",
	};
	struct qmw_model *model = open_model(QMW_CACHE_PACKED);
	struct qmw_eval_options options = {.length = 64};
	struct qmw_eval_recall recall = {.prompts = 77};
	struct qmw_eval_text result = {.sequences = 77};
	uint32_t calls = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		assert_int_equal(
			qmw_eval_recall(model, lines[i], strlen(lines[i]), &options, &recall),
			QMLA_ERR_FORMAT);
		assert_int_equal(recall.prompts, 77);
	}
	assert_int_equal(qmw_eval_text(model, NULL, (const uint8_t *)text, 63, &options, &result),
			 QMLA_ERR_INVALID_ARGUMENT);
	options.length = 1;
	assert_int_equal(qmw_eval_text(model, NULL, (const uint8_t *)text, 63, &options, &result),
			 QMLA_ERR_INVALID_ARGUMENT);
	options.length = 1u << 20; /* over max_position_embeddings */
	assert_int_equal(qmw_eval_recall(model, "", 0, &options, &recall),
			 QMLA_ERR_INVALID_ARGUMENT);
	options.length = 100;
	options.progress = stop;
	options.user = &calls;
	assert_int_equal(qmw_eval_text(model, NULL, (const uint8_t *)text, 1000, &options, &result),
			 QMLA_ERR_CANCELLED);
	assert_int_equal(calls, 2);
	assert_int_equal(result.sequences, 77);
	qmw_model_close(model);
}

static int set_up(void **state)
{
	size_t length;

	(void)state;
	text = fixture_read(QMLA_SOURCE_DIR "/tests/data/prompts", "golden.txt", &length);
	return qmw_safetensors_load(FIXTURE_GOLDEN "mla-s/golden.safetensors", &golden);
}

static int tear_down(void **state)
{
	(void)state;
	free(text);
	qmw_safetensors_close(golden);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bits_per_byte),
		cmocka_unit_test(test_recall),
		cmocka_unit_test(test_recall_wide_vocabulary),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
