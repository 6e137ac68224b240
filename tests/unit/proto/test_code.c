/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include <limits.h>

#include "common/status.h"
#include "proto/code.h"

/* The .proto names every status, with the sign turned. */
static void test_codes_are_the_negated_statuses(void **state)
{
	const ProtobufCEnumDescriptor *codes = &qmla__v1__code__descriptor;
	unsigned known = 0;

	(void)state;
	for (int value = -99; value <= 0; value++)
		known += qmc_status_is_known(value);
	assert_int_equal(known, codes->n_values);
	for (unsigned i = 0; i < codes->n_values; i++) {
		int code = codes->values[i].value;

		assert_true(qmc_status_is_known(-code));
		assert_int_equal(qmp_status_from_code((Qmla__V1__Code)code), -code);
		assert_int_equal(qmp_code_from_status((qmla_status_t)-code), code);
	}
}

static void test_unknown_values_are_defects(void **state)
{
	static const int values[] = {INT_MIN, -1, 10, 79, 1000, INT_MAX};

	(void)state;
	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		assert_int_equal(qmp_status_from_code((Qmla__V1__Code)values[i]),
				 QMLA_ERR_INTERNAL);
	assert_int_equal(qmp_code_from_status((qmla_status_t)-79), QMLA__V1__CODE__CODE_INTERNAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_codes_are_the_negated_statuses),
		cmocka_unit_test(test_unknown_values_are_defects),
	};

	return cmocka_run_group_tests_name("code", tests, NULL, NULL);
}
