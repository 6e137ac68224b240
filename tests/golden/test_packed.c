/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packed cache of mla-s against a forward, a quantiser and page bytes written a
 * second time in Python (make_packed.py, tools/quantmla).
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

#include "client/model/eval.h"
#include "client/model/model.h"
#include "client/model/safetensors.h"
#include "kernels/layout.h"

#define GOLDEN QMLA_SOURCE_DIR "/tests/golden/mla-s-packed/"
#define MLA_S  QMLA_SOURCE_DIR "/tests/data/mla-s"
#define TEXT   QMLA_SOURCE_DIR "/tests/data/prompts/golden.txt"
#define LENGTH 512u
#define VOCAB  256u
#define BLOCKS (LENGTH / QMK_PAGE_TOKENS)
#define TAIL   QMK_PAGE_TOKENS /* positions after the adopted blocks */

static uint8_t text_bytes[4096];

struct rig {
	struct qmw_safetensors *golden;
	uint32_t tokens[LENGTH];
	struct qmw_model *model;
	struct qmw_context *context;
	struct qmw_sequence *sequence;
	struct qmk_pool pool;
	float *logits; /* [LENGTH][VOCAB], after a run log probabilities */
};

static struct qmw_safetensors *open_golden(const char *name)
{
	struct qmw_safetensors *file;
	char path[512];

	snprintf(path, sizeof(path), GOLDEN "%s.safetensors", name);
	assert_int_equal(qmw_safetensors_load(path, &file), QMLA_OK);
	return file;
}

static struct qmw_model *open_model(enum qmk_format format, enum qmw_cache_kind cache)
{
	const struct qmw_model_options options = {.format = format, .cache = cache};
	struct qmw_model *model;

	assert_int_equal(qmw_model_open(MLA_S, &options, &model), QMLA_OK);
	return model;
}

static void rig_init(struct rig *rig, enum qmk_format format)
{
	uint32_t capacity, *slots;

	rig->golden = open_golden(qmk_format_name(format));
	for (uint32_t i = 0; i < LENGTH; i++)
		rig->tokens[i] = qmw_safetensors_find(rig->golden, "tokens")->data[i];
	rig->model = open_model(format, QMW_CACHE_PACKED);
	assert_true(qmw_model_info(rig->model)->calibrated);
	assert_int_equal(qmw_context_create(rig->model, LENGTH, &rig->context), QMLA_OK);
	assert_int_equal(qmw_sequence_create(rig->model, LENGTH, &rig->sequence), QMLA_OK);
	rig->pool.stride = qmw_model_layout(rig->model)->block_bytes;
	rig->pool.base = aligned_alloc(QMK_ALIGN, BLOCKS * rig->pool.stride);
	rig->logits = malloc((size_t)LENGTH * VOCAB * sizeof(*rig->logits));
	assert_true(rig->pool.base && rig->logits);
	memset(rig->pool.base, 0, BLOCKS * rig->pool.stride);
	slots = qmw_sequence_slots(rig->sequence, &capacity);
	assert_true(capacity >= BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		slots[i] = i;
}

static void rig_fini(struct rig *rig)
{
	free(rig->logits);
	free(rig->pool.base);
	qmw_sequence_destroy(rig->sequence);
	qmw_context_destroy(rig->context);
	qmw_model_close(rig->model);
	qmw_safetensors_close(rig->golden);
}

static void to_log_probabilities(float *row)
{
	double largest = row[0], sum = 0;

	for (uint32_t i = 1; i < VOCAB; i++)
		largest = row[i] > largest ? row[i] : largest;
	for (uint32_t i = 0; i < VOCAB; i++)
		sum += exp(row[i] - largest);
	for (uint32_t i = 0; i < VOCAB; i++)
		row[i] = (float)(row[i] - largest - log(sum));
}

static void rig_run(struct rig *rig, uint32_t first)
{
	struct qmw_forward_item item = {.sequence = rig->sequence,
					.tokens = rig->tokens + first,
					.count = LENGTH - first,
					.all_logits = true,
					.logits = rig->logits};

	assert_int_equal(qmw_model_forward(rig->model, rig->context, &rig->pool, &item, 1),
			 QMLA_OK);
	for (uint32_t i = 0; i < item.count; i++)
		to_log_probabilities(rig->logits + (size_t)i * VOCAB);
}

/* Puts Python's pages into the pool, as if they had been fetched. */
static void adopt_golden_pages(struct rig *rig)
{
	const struct qmk_layout *layout = qmw_model_layout(rig->model);
	const struct qmw_tensor *pages = qmw_safetensors_find(rig->golden, "pages");

	assert_non_null(pages);
	assert_int_equal(pages->rank, 3);
	assert_int_equal(pages->shape[0], BLOCKS - 1);
	assert_int_equal(pages->shape[1], layout->layers);
	assert_int_equal(pages->shape[2], layout->page_bytes);
	for (uint32_t b = 0; b + 1 < BLOCKS; b++)
		memcpy((char *)rig->pool.base + b * rig->pool.stride +
			       qmk_layout_page_offset(layout, 0),
		       pages->data + (size_t)b * layout->layers * layout->page_bytes,
		       (size_t)layout->layers * layout->page_bytes);
	assert_int_equal(qmw_sequence_adopt(rig->sequence, BLOCKS - 1), QMLA_OK);
}

static float *golden_rows(const struct qmw_safetensors *file, const char *name)
{
	const struct qmw_tensor *tensor = qmw_safetensors_find(file, name);
	float *values;

	assert_non_null(tensor);
	values = malloc(tensor->elements * sizeof(*values));
	assert_non_null(values);
	assert_int_equal(qmw_tensor_to_float(tensor, qmw_safetensors_path(file), values), QMLA_OK);
	return values;
}

static uint32_t greedy(const float *row)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < VOCAB; i++)
		best = row[i] > row[best] ? i : best;
	return best;
}

/* Means over @rows of KL(p || q) in nats and of equal greedy bytes. */
struct distance {
	double kl;
	double equal;
};

static struct distance compare(const float *p, const float *q, uint32_t rows)
{
	struct distance distance = {0};

	for (size_t i = 0; i < rows; i++) {
		for (size_t j = i * VOCAB; j < (i + 1) * VOCAB; j++)
			distance.kl += exp(p[j]) * ((double)p[j] - q[j]) / rows;
		distance.equal += (greedy(p + i * VOCAB) == greedy(q + i * VOCAB)) / (double)rows;
	}
	return distance;
}

/*
 * Reading: seven blocks of pages that Python packed, then 64 tokens of our own. No
 * rounding of ours is involved but that of the block's BF16 rows.
 */
static void check_reading(enum qmk_format format)
{
	struct distance distance;
	struct rig rig;
	float *expected;

	rig_init(&rig, format);
	adopt_golden_pages(&rig);
	rig_run(&rig, LENGTH - TAIL);
	expected = golden_rows(rig.golden, "last_log_probabilities");
	distance = compare(expected, rig.logits, TAIL);
	print_message("%s, pages from Python: KL %.2e, same greedy byte %.4f\n",
		      qmk_format_name(format), distance.kl, distance.equal);
	assert_true(distance.kl >= -1e-7 && distance.kl < 1e-6);
	assert_true(distance.equal >= 0.98); /* one of 64 */
	free(expected);
	rig_fini(&rig);
}

/*
 * Writing: our quantiser looks for scales in another way than Python's, so codes
 * differ; over 4,096 bytes it must not cost more. By the first 512 of them C4R4 costs
 * 3.9 times as much without the RoPE mean, 2.4 times without content's feedback, 1.5
 * times without RoPE's.
 */
static void check_writing(enum qmk_format format)
{
	const struct qmw_eval_options options = {.length = 2048};
	struct qmw_model *packed = open_model(format, QMW_CACHE_PACKED);
	struct qmw_model *bf16 = open_model(format, QMW_CACHE_BF16);
	struct qmw_safetensors *golden = open_golden(qmk_format_name(format));
	float *cost = golden_rows(golden, "cost"); /* [2 sequences][KL, equal] */
	double kl = (cost[0] + cost[2]) / 2, equal = (cost[1] + cost[3]) / 2;
	struct qmw_eval_text result;

	assert_int_equal(
		qmw_eval_text(packed, bf16, text_bytes, sizeof(text_bytes), &options, &result),
		QMLA_OK);
	print_message(
		"%s: KL from the BF16 cache %.2e, Python's %.2e; same greedy byte %.4f, %.4f\n",
		qmk_format_name(format), result.kl, kl, result.top1, equal);
	assert_int_equal(result.positions, 2 * 2047);
	assert_true(result.kl > 0.8 * kl && result.kl < 1.2 * kl);
	assert_true(result.top1 > equal - 0.005);
	free(cost);
	qmw_safetensors_close(golden);
	qmw_model_close(bf16);
	qmw_model_close(packed);
}

static void test_reading_c4r4(void **state)
{
	(void)state;
	check_reading(QMK_FORMAT_C4R4);
}

static void test_reading_c2r4(void **state)
{
	(void)state;
	check_reading(QMK_FORMAT_C2R4);
}

static void test_writing_c4r4(void **state)
{
	(void)state;
	check_writing(QMK_FORMAT_C4R4);
}

static void test_writing_c2r4(void **state)
{
	(void)state;
	check_writing(QMK_FORMAT_C2R4);
}

static int read_text(void **state)
{
	FILE *file = fopen(TEXT, "rb");
	size_t bytes = file ? fread(text_bytes, 1, sizeof(text_bytes), file) : 0;

	(void)state;
	if (file)
		fclose(file);
	return bytes == sizeof(text_bytes) ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reading_c4r4),
		cmocka_unit_test(test_reading_c2r4),
		cmocka_unit_test(test_writing_c4r4),
		cmocka_unit_test(test_writing_c2r4),
	};

	return cmocka_run_group_tests(tests, read_text, NULL);
}
