/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows of the n-gram tables a token reads: the rolling hash, worked out with Python. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/model/ngram.h"

/* LongCat-Flash-Lite's own sizes: 12 tables of 10,223,617 rows and more. */
static const struct qmw_config lite = {
	.vocab = 131072,
	.hidden = 3072,
	.eos = 2,
	.ngram = {.neighbours = 4, .splits = 4, .ratio = 78},
};

static void check(const uint32_t *recent, uint32_t count, const uint64_t expected[3])
{
	uint64_t ids[12];

	qmw_ngram_ids(&lite, recent, count, ids);
	assert_int_equal(ids[0], expected[0]);
	assert_int_equal(ids[5], expected[1]);
	assert_int_equal(ids[11], expected[2]);
}

static void test_tables(void **state)
{
	(void)state;
	assert_int_equal(qmw_config_ngram_tables(&lite), 12);
	assert_int_equal(qmw_config_history(&lite), 3);
}

static void test_ids(void **state)
{
	const uint32_t recent[] = {130000, 44, 9001, 523};

	(void)state;
	check(recent, 4, (const uint64_t[]){5897168, 212513, 4896432});
	check(recent, 2, (const uint64_t[]){5897168, 5897168, 5897168});
	check(recent, 1, (const uint64_t[]){130000, 130000, 130000});
}

/* Nothing is read across an end token, and an end token still reads what it ends. */
static void test_end_token(void **state)
{
	(void)state;
	check((const uint32_t[]){130000, 44, 2, 523}, 4,
	      (const uint64_t[]){5897168, 5897168, 5897168});
	check((const uint32_t[]){130000, 2, 9001, 523}, 4,
	      (const uint64_t[]){130000, 130000, 130000});
	check((const uint32_t[]){2, 44, 9001, 523}, 4, (const uint64_t[]){5767170, 82515, 4766434});
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tables),
		cmocka_unit_test(test_ids),
		cmocka_unit_test(test_end_token),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
