/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/text.h"
#include "client/cli/window.h"
#include "client/model/eval.h"
#include "common/log.h"

static struct qmw_model *packed, *plain;
static struct qmw_text text;

static int open_models(void **state)
{
	struct qmw_model_options options = {.cache = QMW_CACHE_BF16};

	(void)state;
	if (qmw_text_read(&text, "test", QMLA_TEST_DATA "/prompts/golden.txt", 1 << 20) !=
		    QMLA_OK ||
	    qmw_model_open(QMLA_TEST_DATA "/mla-s", &options, &plain) != QMLA_OK)
		return -1;
	options.cache = QMW_CACHE_PACKED;
	return qmw_model_open(QMLA_TEST_DATA "/mla-s", &options, &packed) == QMLA_OK ? 0 : -1;
}

static int close_models(void **state)
{
	(void)state;
	qmw_model_close(packed);
	qmw_model_close(plain);
	qmw_text_free(&text);
	return 0;
}

static void test_a_cache_agrees_with_itself(void **state)
{
	struct qmw_window window = {.offset = 300, .positions = 100};
	struct qmw_window_score score;

	(void)state;
	assert_int_equal(qmw_window_run(plain, plain, text.data, text.bytes, &window, &score),
			 QMLA_OK);
	assert_int_equal(score.positions, 100);
	assert_int_equal(score.same, 100);
	assert_true(score.kl == 0);
	assert_true(score.bits_per_byte == score.reference_bits);
}

/* The whole text but its first byte is what the evaluation of texts scores. */
static void test_the_whole_text_gives_what_eval_gives(void **state)
{
	struct qmw_window window = {.offset = 1, .positions = 511};
	struct qmw_eval_options options = {.length = 512, .max_sequences = 1};
	struct qmw_window_score score;
	struct qmw_eval_text whole;

	(void)state;
	assert_int_equal(qmw_window_run(packed, plain, text.data, text.bytes, &window, &score),
			 QMLA_OK);
	assert_int_equal(qmw_eval_text(packed, plain, text.data, 512, &options, &whole), QMLA_OK);
	assert_int_equal(whole.positions, 511);
	assert_true(fabs(score.bits_per_byte - whole.bits_per_byte) < 1e-4);
	assert_true(fabs(score.reference_bits - whole.reference_bits) < 1e-4);
	assert_true(fabs(score.kl - whole.kl) < 1e-5);
	/* That one also counts what would follow the last byte. */
	assert_true(fabs(score.same - 512 * whole.top1) < 1.001);
	assert_true(score.kl > 0);
}

static void test_windows_outside_the_text_are_refused(void **state)
{
	struct qmw_window window = {.offset = 0, .positions = 1};
	struct qmw_window_score score;

	(void)state;
	assert_int_equal(qmw_window_run(plain, NULL, text.data, 100, &window, &score),
			 QMLA_ERR_INVALID_ARGUMENT);
	window = (struct qmw_window){.offset = 50, .positions = 51};
	assert_int_equal(qmw_window_run(plain, NULL, text.data, 100, &window, &score),
			 QMLA_ERR_INVALID_ARGUMENT);
	window = (struct qmw_window){.offset = 101, .positions = UINT32_MAX};
	assert_int_equal(qmw_window_run(plain, NULL, text.data, 100, &window, &score),
			 QMLA_ERR_INVALID_ARGUMENT);
	window = (struct qmw_window){.offset = 50, .positions = 50};
	assert_int_equal(qmw_window_run(plain, NULL, text.data, 100, &window, &score), QMLA_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_cache_agrees_with_itself),
		cmocka_unit_test(test_the_whole_text_gives_what_eval_gives),
		cmocka_unit_test(test_windows_outside_the_text_are_refused),
	};

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	return cmocka_run_group_tests(tests, open_models, close_models);
}
