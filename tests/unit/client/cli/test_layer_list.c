/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "client/cli/layer_list.h"

static void test_lists(void **state)
{
	const struct {
		const char *text, *chosen; /* "1010": layers 0 and 2 */
	} cases[] = {{"0", "1000"},     {"3", "0001"},   {"0,2", "1010"},  {"1-3", "0111"},
		     {"3,0-1", "1101"}, {"2-2", "0010"}, {"0-3,1", "1111"}};
	bool chosen[4];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(qmw_layer_list_parse(cases[i].text, 4, chosen), QMLA_OK);
		for (int k = 0; k < 4; k++)
			assert_int_equal(chosen[k], cases[i].chosen[k] == '1');
	}
}

static void test_what_is_no_list(void **state)
{
	const char *const cases[] = {"",   ",",   "4",    "0,",  "-1",
				     "1-", "2-1", "0-4",  "1;2", " 1",
				     "+1", "1 2", "0,,1", "a",   "99999999999999999999"};
	bool chosen[4];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(qmw_layer_list_parse(cases[i], 4, chosen),
				 QMLA_ERR_INVALID_ARGUMENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lists),
		cmocka_unit_test(test_what_is_no_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
