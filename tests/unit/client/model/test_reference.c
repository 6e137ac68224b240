/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bits per byte and recall of the measuring models on a part of the measuring
 * texts, against transformers 5.17 in float32 on the same part. The data are not
 * in the repository: QMLA_DATA_DIR names their folder. QMLA_DATA_ALL=1 takes all
 * of it, against the figures that came with the data (a quarter of an hour).
 */
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
#include "client/model/file.h"
#include "tests/unit/client/model/fixture.h"

struct reference {
	const char *model;
	uint32_t length, part;
	double part_bits, all_bits;  /* first `part` sequences; all */
	uint32_t part_recall_length; /* prompts up to this length */
	double part_recall, all_recall;
};

static const struct reference references[] = {
	{"mla-s", 2048, 8, 1.833900, 1.46503, 2048, .94865, .94865},
	{"mla-m", 4096, 3, 1.510806, 1.15610, 1024, 1, .98975},
};

static const char *data_directory;
static bool everything;

static void check(const struct reference *reference, enum qmw_cache_kind cache)
{
	const struct qmw_model_options options = {.cache = cache};
	struct qmw_eval_options eval = {.length = reference->length};
	double bits = everything ? reference->all_bits : reference->part_bits;
	double share = everything ? reference->all_recall : reference->part_recall;
	struct qmw_eval_recall recall;
	struct qmw_eval_text scores;
	struct qmw_model *model;
	char path[512], *text, *lines;
	size_t text_length, lines_length;

	snprintf(path, sizeof(path), "%s/%s", data_directory, reference->model);
	assert_int_equal(qmw_model_open(path, &options, &model), QMLA_OK);
	text = fixture_read(data_directory, "text-val.txt", &text_length);
	lines = fixture_read(data_directory, "recall.jsonl", &lines_length);
	eval.max_sequences = everything ? 0 : reference->part;
	assert_int_equal(
		qmw_eval_text(model, NULL, (const uint8_t *)text, text_length, &eval, &scores),
		QMLA_OK);
	eval.max_sequences = 0;
	eval.length = everything ? reference->length : reference->part_recall_length;
	assert_int_equal(qmw_eval_recall(model, lines, lines_length, &eval, &recall), QMLA_OK);
	print_message("%s: %u sequences, %.5f bits per byte (%.5f); %u prompts, recall %.5f "
		      "(%.5f)\n",
		      reference->model, scores.sequences, scores.bits_per_byte, bits,
		      recall.prompts, recall.recall, share);
	assert_true(fabs(scores.bits_per_byte - bits) < 0.003);
	assert_true(fabs(recall.recall - share) < 0.01);
	free(text);
	free(lines);
	qmw_model_close(model);
}

static void test_mla_s(void **state)
{
	(void)state;
	check(&references[0], QMW_CACHE_BF16);
}

static void test_mla_m(void **state)
{
	(void)state;
	check(&references[1], QMW_CACHE_BF16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mla_s),
		cmocka_unit_test(test_mla_m),
	};
	char *probe;
	bool there;

	data_directory = getenv("QMLA_DATA_DIR");
	if (!data_directory || !data_directory[0])
		data_directory = QMLA_SOURCE_DIR "/../shared/data";
	everything = getenv("QMLA_DATA_ALL") != NULL;
	probe = qmw_path_join(data_directory, "mla-m/config.json");
	there = probe && qmw_file_exists(probe);
	free(probe);
	if (!there) {
		printf("skipped: no measuring data in %s (set QMLA_DATA_DIR)\n", data_directory);
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
