/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "client/model/team.h"

#define COUNT 1000u

struct record {
	uint32_t threads;
	atomic_uint calls[COUNT];
	uint32_t plain[COUNT]; /* written without a lock: the team's end must order it */
	atomic_bool bad_thread;
};

static void mark(void *argument, uint32_t index, uint32_t thread)
{
	struct record *record = argument;

	if (thread >= record->threads)
		atomic_store(&record->bad_thread, true);
	atomic_fetch_add(&record->calls[index], 1);
	record->plain[index]++;
}

/* Each index once, in many rounds of many sizes, with gaps that let helpers fall asleep. */
static void test_every_index_once(void **state)
{
	static struct record record;

	(void)state;
	for (uint32_t threads = 1; threads <= 5; threads++) {
		struct qmw_team *team;

		assert_int_equal(qmw_team_create(threads, &team), QMLA_OK);
		assert_int_equal(qmw_team_threads(team), threads);
		for (uint32_t round = 0; round < 300; round++) {
			uint32_t count = round * 37 % COUNT;

			memset(&record, 0, sizeof(record));
			record.threads = threads;
			qmw_team_run(team, count, mark, &record);
			for (uint32_t i = 0; i < COUNT; i++) {
				assert_int_equal(record.calls[i], i < count);
				assert_int_equal(record.plain[i], i < count);
			}
			assert_false(record.bad_thread);
			if (round % 100 == 99)
				nanosleep(&(struct timespec){0, 5000000}, NULL);
		}
		qmw_team_destroy(team);
	}
}

static void *own_team(void *argument)
{
	struct record *record = argument;
	struct qmw_team *team;

	if (qmw_team_create(2, &team))
		return NULL;
	for (int i = 0; i < 200; i++)
		qmw_team_run(team, COUNT, mark, record);
	qmw_team_destroy(team);
	return record;
}

/* Two contexts of one process, each with its team. */
static void test_two_teams(void **state)
{
	static struct record records[2];
	pthread_t threads[2];

	(void)state;
	for (int i = 0; i < 2; i++) {
		records[i].threads = 2;
		assert_int_equal(pthread_create(&threads[i], NULL, own_team, &records[i]), 0);
	}
	for (int i = 0; i < 2; i++) {
		void *result;

		assert_int_equal(pthread_join(threads[i], &result), 0);
		assert_non_null(result);
		for (uint32_t k = 0; k < COUNT; k++)
			assert_int_equal(records[i].plain[k], 200);
	}
}

static void test_limits(void **state)
{
	struct qmw_team *team;

	(void)state;
	assert_int_equal(qmw_team_create(0, &team), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_team_create(65, &team), QMLA_ERR_INVALID_ARGUMENT);
	assert_in_range(qmw_team_processors(), 1, 64);
	qmw_team_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_index_once),
		cmocka_unit_test(test_two_teams),
		cmocka_unit_test(test_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
