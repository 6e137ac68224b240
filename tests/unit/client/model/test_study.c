/* SPDX-License-Identifier: Apache-2.0 */
/* The study's cache against the caches that serve, against itself cut otherwise, and by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/model/attention_float.h"
#include "client/model/bootstrap.h"
#include "client/model/eval.h"
#include "client/model/runner.h"
#include "client/model/study.h"
#include "tests/unit/client/model/fixture.h"

#define TOKENS 330u
#define VOCAB  256u

static struct qmw_model *study_model;

static const struct qmw_study_settings exact = {.exact = true};

static struct qmw_model *open_model(enum qmw_cache_kind cache, enum qmk_format format)
{
	const struct qmw_model_options options = {.cache = cache, .format = format, .threads = 2};
	struct qmw_model *model;

	assert_int_equal(qmw_model_open(FIXTURE_MLA_S, &options, &model), QMLA_OK);
	return model;
}

static void make_text(uint8_t text[TOKENS])
{
	static const char words[] = "The cache holds one latent per token; its pages are packed. ";

	for (uint32_t i = 0; i < TOKENS; i++)
		text[i] = (uint8_t)words[(i + i / 200) % (sizeof(words) - 1)];
}

/* Logits of the text, @chunk tokens a call; @settings NULL: the model's own cache. */
static float *read_logits(const struct qmw_model *model, const struct qmw_study_settings *settings,
			  uint32_t chunk)
{
	float *all = malloc(TOKENS * VOCAB * sizeof(*all));
	struct qmw_runner *runner;
	uint8_t text[TOKENS];
	const float *logits;

	make_text(text);
	assert_int_equal(settings ? qmw_runner_create_study(model, settings, TOKENS, &runner)
				  : qmw_runner_create(model, TOKENS, &runner),
			 QMLA_OK);
	for (uint32_t i = 0; i < TOKENS; i += chunk) {
		uint32_t tokens[QMW_RUNNER_CHUNK], n = TOKENS - i < chunk ? TOKENS - i : chunk;

		for (uint32_t t = 0; t < n; t++)
			tokens[t] = text[i + t];
		assert_int_equal(qmw_runner_feed(runner, tokens, n, &logits), QMLA_OK);
		memcpy(all + (size_t)i * VOCAB, logits, (size_t)n * VOCAB * sizeof(*all));
	}
	qmw_runner_destroy(runner);
	return all;
}

static double distance(const float *a, const float *b, uint32_t first, uint32_t count)
{
	double error = 0, energy = 0;

	for (size_t i = (size_t)first * VOCAB; i < (size_t)(first + count) * VOCAB; i++) {
		error += pow((double)a[i] - (double)b[i], 2);
		energy += pow((double)b[i], 2);
	}
	return sqrt(error / energy);
}

/* Frees both. */
static double distance_of(float *a, float *b)
{
	double d = distance(a, b, 0, TOKENS);

	free(a);
	free(b);
	return d;
}

static void test_exact_is_exact(void **state)
{
	const struct qmw_study_settings float32 = {.exact = true, .float32 = true};
	struct qmw_model *f32 = open_model(QMW_CACHE_F32, 0), *bf16 = open_model(QMW_CACHE_BF16, 0);

	(void)state;
	assert_true(distance_of(read_logits(study_model, &float32, 256),
				read_logits(f32, NULL, 256)) < 1e-5);
	/* A row's value that lies between two BF16 may go to either: sums differ in order. */
	assert_true(distance_of(read_logits(study_model, &exact, 256),
				read_logits(bf16, NULL, 256)) < 1e-4);
	assert_true(distance_of(read_logits(study_model, &exact, 256),
				read_logits(f32, NULL, 256)) > 1e-4);
	qmw_model_close(f32);
	qmw_model_close(bf16);
}

/* With the product's rule the study is the product. Sums in another order move a few values across
 * a rounding boundary, and feedback then changes the rest of that row: some percent of the rows. */
static void check_like_packed(enum qmk_format format, enum qmw_quantiser quantiser)
{
	const struct qmw_study_settings settings = {
		.format = format, .quantiser = quantiser, .protect = QMW_PROTECT_BLOCK};
	struct qmw_model *packed = open_model(QMW_CACHE_PACKED, format);
	float *study = read_logits(study_model, &settings, 256);
	float *product = read_logits(packed, NULL, 256),
	      *plain = read_logits(study_model, &exact, 256);
	double same = distance(study, product, 0, TOKENS),
	       cost = distance(product, plain, 0, TOKENS);

	print_message("%s: %.2e from the product, which is %.2e from exact\n",
		      qmk_format_name(format), same, cost);
	assert_true(cost > 2e-3);
	assert_true(same < cost / 3);
	assert_true(distance(study, product, 0, QMK_PAGE_TOKENS) < 1e-4); /* the first block */
	free(study);
	free(product);
	free(plain);
	qmw_model_close(packed);
}

static void test_block_is_the_product(void **state)
{
	(void)state;
	check_like_packed(QMK_FORMAT_C4R4, QMW_QUANTISER_DEFAULT);
	check_like_packed(QMK_FORMAT_C2R4, QMW_QUANTISER_DEFAULT);
	check_like_packed(QMK_FORMAT_PAPER_C4R4, QMW_QUANTISER_PAPER);
}

/* One query at a time no keys are seen in two versions at once: the same answers. */
static void check_chunks(enum qmw_protect protect)
{
	const struct qmw_study_settings settings = {
		.format = QMK_FORMAT_C2R4, .quantiser = QMW_QUANTISER_PAPER, .protect = protect};

	assert_true(distance_of(read_logits(study_model, &settings, 1),
				read_logits(study_model, &settings, 256)) < 2e-2);
}

static void test_chunks(void **state)
{
	(void)state;
	check_chunks(QMW_PROTECT_NONE);
	check_chunks(QMW_PROTECT_BLOCK);
	check_chunks(QMW_PROTECT_WINDOW);
}

static void test_rules(void **state)
{
	const struct qmw_study_settings window = {.format = QMK_FORMAT_C2R4,
						  .protect = QMW_PROTECT_WINDOW};
	enum qmw_protect protect;
	float *a, *b;

	(void)state;
	assert_int_equal(qmw_protect_parse("sink4+recent128", &protect), QMLA_OK);
	assert_int_equal(protect, QMW_PROTECT_WINDOW);
	assert_string_equal(qmw_protect_name(QMW_PROTECT_BLOCK), "block");
	assert_int_equal(qmw_protect_parse("sink", &protect), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_float_far_end(QMW_PROTECT_NONE, 9), 10);
	assert_int_equal(qmw_float_far_end(QMW_PROTECT_BLOCK, 63), 0);
	assert_int_equal(qmw_float_far_end(QMW_PROTECT_BLOCK, 64), 64);
	assert_int_equal(qmw_float_far_end(QMW_PROTECT_WINDOW, 127), 0);
	assert_int_equal(qmw_float_far_end(QMW_PROTECT_WINDOW, 128), 1);
	assert_int_equal(qmw_float_sink(QMW_PROTECT_WINDOW), 4);
	/* Up to position 131 the far keys are among the first four, which are near. */
	a = read_logits(study_model, &window, 256);
	b = read_logits(study_model, &exact, 256);
	print_message("window: %.2e, then %.2e\n", distance(a, b, 0, 132),
		      distance(a, b, 132, TOKENS - 132));
	assert_true(distance(a, b, 0, 132) < 1e-4);
	assert_true(distance(a, b, 132, TOKENS - 132) > 1e-3);
	free(a);
	free(b);
}

/* By hand: 2 bits, values 0, 1, 2, 6: scale 2, zero 0, codes 0, 0 (a tie to even), 1, 3. */
static void test_paper_quantiser(void **state)
{
	float values[4] = {0, 1, 2, 6}, shifted[3] = {-1, 0.4f, 2}, flat[2] = {5, 5};
	float two[65];

	(void)state;
	qmw_study_paper_round(values, 4, 2, false);
	assert_true(values[0] == 0 && values[1] == 0 && values[2] == 2 && values[3] == 6);
	/* 4 bits: scale .2, zero 5, codes 0, 7, 15 */
	qmw_study_paper_round(shifted, 3, 4, false);
	assert_true(fabsf(shifted[0] + 1) < 1e-6f && fabsf(shifted[1] - 0.4f) < 1e-6f);
	assert_true(fabsf(shifted[2] - 2) < 1e-6f);
	/* A constant group: the scale's floor, and the zero point cannot reach it. */
	qmw_study_paper_round(flat, 2, 4, false);
	assert_true(flat[0] >= 0 && flat[0] < 1e-7f);
	/* The 65th value is a group of its own. */
	for (int i = 0; i < 65; i++)
		two[i] = i == 64 ? 0 : (float)(i % 16);
	qmw_study_paper_round(two, 65, 4, true);
	for (int i = 0; i < 65; i++)
		assert_true(two[i] == (i == 64 ? 0 : (float)(i % 16)));
}

static void test_compare(void **state)
{
	struct qmw_study_settings settings = {.format = QMK_FORMAT_C4R4, .compare = true};
	struct qmw_eval_options options = {.length = TOKENS};
	const struct qmw_eval_reader reader = {study_model, &settings};
	struct qmw_study_error four[8] = {{0}}, two[8] = {{0}};
	uint32_t layers = qmw_model_info(study_model)->layers;
	uint8_t text[TOKENS];

	(void)state;
	make_text(text);
	assert_in_range(layers, 1, 8);
	assert_int_equal(qmw_eval_layers(&reader, text, TOKENS, &options, four), QMLA_OK);
	settings.format = QMK_FORMAT_C2R4;
	assert_int_equal(qmw_eval_layers(&reader, text, TOKENS, &options, two), QMLA_OK);
	for (uint32_t i = 0; i < layers; i++) {
		double a = four[i].output_error / four[i].output_energy;
		double b = two[i].output_error / two[i].output_energy;

		assert_true(a > 1e-6 && a < 0.1 && b > 2 * a);
		assert_true(fabs(four[i].output_energy / two[i].output_energy - 1) < 1e-9);
		/* The RoPE path is the same in both formats. */
		assert_true(fabs(four[i].rope_error / two[i].rope_error - 1) < 1e-9);
		assert_true(fabs(four[i].position_error / two[i].position_error - 1) < 1e-9);
		assert_true(four[i].position_error > 0);
		assert_true(two[i].content_error > 4 * four[i].content_error);
		/* One mid-rise step of 4 bits is some 1 % of the energy, of 2 bits some 12 %. */
		assert_in_range((int)(1e4 * four[i].content_error / four[i].content_energy), 50,
				600);
	}
	settings.compare = false;
	assert_int_equal(qmw_eval_layers(&reader, text, TOKENS, &options, two),
			 QMLA_ERR_INVALID_ARGUMENT);
}

static void test_readers_side_by_side(void **state)
{
	const struct qmw_study_settings settings = {.format = QMK_FORMAT_C2R4};
	const struct qmw_eval_reader readers[2] = {{study_model, &exact}, {study_model, &settings}};
	struct qmw_eval_options options = {.length = 110, .seed = 4};
	struct qmw_eval_text results[2], alone;
	uint8_t text[TOKENS];

	(void)state;
	make_text(text);
	assert_int_equal(qmw_eval_texts(readers, 2, &readers[0], text, TOKENS, &options, results),
			 QMLA_OK);
	assert_int_equal(results[0].sequences, 3);
	assert_true(results[0].kl == 0 && results[0].top1 == 1);
	assert_true(results[0].kl_interval.high == 0 && results[0].bits_change_interval.low == 0);
	assert_true(fabs(results[0].bits_per_byte - results[1].reference_bits) < 1e-9);
	assert_true(results[1].kl > 1e-5);
	assert_true(results[1].kl_interval.low <= results[1].kl &&
		    results[1].kl <= results[1].kl_interval.high);
	assert_int_equal(
		qmw_eval_texts(&readers[1], 1, &readers[0], text, TOKENS, &options, &alone),
		QMLA_OK);
	assert_memory_equal(&alone, &results[1], sizeof(alone));
}

static void test_bootstrap(void **state)
{
	double values[400], weights[400];
	struct qmw_interval a, b;

	(void)state;
	for (int i = 0; i < 400; i++) {
		values[i] = i % 2;
		weights[i] = 2;
	}
	assert_int_equal(qmw_bootstrap(values, NULL, 400, 1, &a), QMLA_OK);
	/* A coin's mean of 400: .5 within 1.96 * .025. */
	assert_true(fabs(a.low - 0.451) < 0.006 && fabs(a.high - 0.549) < 0.006);
	assert_int_equal(qmw_bootstrap(values, NULL, 400, 1, &b), QMLA_OK);
	assert_memory_equal(&a, &b, sizeof(a));
	assert_int_equal(qmw_bootstrap(values, NULL, 400, 2, &b), QMLA_OK);
	assert_memory_not_equal(&a, &b, sizeof(a));
	assert_int_equal(qmw_bootstrap(values, weights, 400, 1, &b), QMLA_OK);
	assert_true(b.low == a.low / 2 && b.high == a.high / 2);
	assert_int_equal(qmw_bootstrap(values, NULL, 1, 1, &a), QMLA_OK);
	assert_true(isnan(a.low) && isnan(a.high));
}

static void test_refusals(void **state)
{
	struct qmw_model *packed = open_model(QMW_CACHE_PACKED, 0);
	const struct qmw_study_settings wrong = {.format = QMK_FORMAT_PAPER_C4R4};
	struct qmw_sequence *sequence = NULL;

	(void)state;
	assert_int_equal(qmw_study_sequence(packed, &exact, 8, &sequence),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_study_sequence(study_model, &wrong, 8, &sequence),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_null(sequence);
	qmw_model_close(packed);
}

static int open_study(void **state)
{
	(void)state;
	study_model = open_model(QMW_CACHE_STUDY, 0);
	return 0;
}

static int close_study(void **state)
{
	(void)state;
	qmw_model_close(study_model);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exact_is_exact),
		cmocka_unit_test(test_block_is_the_product),
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_rules),
		cmocka_unit_test(test_paper_quantiser),
		cmocka_unit_test(test_compare),
		cmocka_unit_test(test_readers_side_by_side),
		cmocka_unit_test(test_bootstrap),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, open_study, close_study);
}
