/* SPDX-License-Identifier: Apache-2.0 */
#include "../cmocka_first.h"

#include "server/store/timers.h"
#include "support.h"

#define ENTRIES 500u

static void earliest_comes_first(void **state)
{
	struct qms_timers *timers;
	uint32_t entry = 77;

	(void)state;
	assert_int_equal(qms_timers_create(8, &timers), QMLA_OK);
	assert_int_equal(qms_timers_next(timers), QMC_TIME_NEVER);
	assert_false(qms_timers_due(timers, QMC_TIME_NEVER, &entry));
	qms_timers_set(timers, 3, 30);
	qms_timers_set(timers, 1, 10);
	qms_timers_set(timers, 2, 20);
	assert_int_equal(qms_timers_next(timers), 10);
	assert_false(qms_timers_due(timers, 9, &entry));
	assert_int_equal(entry, 77);
	assert_true(qms_timers_due(timers, 10, &entry));
	assert_int_equal(entry, 1);
	qms_timers_set(timers, 1, 40);
	assert_int_equal(qms_timers_next(timers), 20);
	assert_int_equal(qms_timers_get(timers, 1), 40);
	qms_timers_clear(timers, 2);
	qms_timers_clear(timers, 2);
	assert_int_equal(qms_timers_get(timers, 2), QMC_TIME_NEVER);
	assert_int_equal(qms_timers_next(timers), 30);
	qms_timers_destroy(timers);
	qms_timers_destroy(NULL);
}

static qmc_time_t least(const qmc_time_t *times)
{
	qmc_time_t found = QMC_TIME_NEVER;

	for (uint32_t i = 0; i < ENTRIES; i++)
		found = times[i] < found ? times[i] : found;
	return found;
}

static void agrees_with_a_plain_array(void **state)
{
	qmc_time_t times[ENTRIES];
	struct qms_timers *timers;
	uint64_t random = 1;
	uint32_t entry;

	(void)state;
	for (uint32_t i = 0; i < ENTRIES; i++)
		times[i] = QMC_TIME_NEVER;
	assert_int_equal(qms_timers_create(ENTRIES, &timers), QMLA_OK);
	for (int step = 0; step < 20000; step++) {
		uint32_t at = (uint32_t)(random_next(&random) % ENTRIES);

		if (random_next(&random) % 3) {
			times[at] = (qmc_time_t)(random_next(&random) % 1000);
			qms_timers_set(timers, at, times[at]);
		} else {
			times[at] = QMC_TIME_NEVER;
			qms_timers_clear(timers, at);
		}
		assert_int_equal(qms_timers_next(timers), least(times));
		if (qms_timers_due(timers, 1000, &entry))
			assert_int_equal(times[entry], least(times));
	}
	qms_timers_destroy(timers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(earliest_comes_first),
		cmocka_unit_test(agrees_with_a_plain_array),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
