/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void after_saturates(void **state)
{
	(void)state;
	assert_true(qmc_clock_after(INT64_MAX) == QMC_TIME_NEVER);
	assert_true(qmc_clock_after(-5) <= qmc_clock_now());
	assert_true(qmc_clock_after(QMC_NS_PER_S) > qmc_clock_now());
}

static void left_never_goes_below_zero(void **state)
{
	(void)state;
	assert_true(qmc_clock_left(0) == 0);
	assert_true(qmc_clock_left(QMC_TIME_NEVER) == INT64_MAX);
	assert_true(qmc_clock_left(qmc_clock_after(QMC_NS_PER_S)) > QMC_NS_PER_S / 2);
}

static void left_ms_rounds_up_so_that_poll_does_not_spin(void **state)
{
	(void)state;
	assert_int_equal(qmc_clock_left_ms(QMC_TIME_NEVER), -1);
	assert_int_equal(qmc_clock_left_ms(0), 0);
	assert_in_range(qmc_clock_left_ms(qmc_clock_after(QMC_NS_PER_MS / 2)), 0, 1);
	assert_int_equal(qmc_clock_left_ms(QMC_TIME_NEVER - 1), INT32_MAX);
}

static void sleep_lasts_until_the_deadline(void **state)
{
	qmc_time_t deadline = qmc_clock_after(20 * QMC_NS_PER_MS);

	(void)state;
	qmc_clock_sleep_until(deadline);
	assert_true(qmc_clock_now() >= deadline);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_saturates),
		cmocka_unit_test(left_never_goes_below_zero),
		cmocka_unit_test(left_ms_rounds_up_so_that_poll_does_not_spin),
		cmocka_unit_test(sleep_lasts_until_the_deadline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
