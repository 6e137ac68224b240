/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/cache/crew.h"
#include "client/cache/thread.h"
#include "common/clock.h"

#define ITEMS 50

static void count_up(void *item)
{
	atomic_fetch_add((_Atomic int *)item, 1);
}

static void test_each_item_once(void **state)
{
	_Atomic int counts[ITEMS] = {0};
	void *items[ITEMS];
	struct qml_crew *crew;

	(void)state;
	for (size_t i = 0; i < ITEMS; i++)
		items[i] = &counts[i];
	assert_int_equal(qml_crew_create(4, &crew), QMLA_OK);
	for (int round = 1; round <= 20; round++) {
		qml_crew_run(crew, count_up, items, ITEMS);
		for (size_t i = 0; i < ITEMS; i++)
			assert_int_equal(atomic_load(&counts[i]), round);
	}
	qml_crew_run(crew, count_up, items, 0);
	qml_crew_run(crew, count_up, items, 1);
	assert_int_equal(atomic_load(&counts[0]), 21);
	qml_crew_destroy(crew);
	qml_crew_destroy(NULL);
}

struct meeting {
	_Atomic int here;
	_Atomic int met;
};

/* Returns early only when somebody else is at work at the same time. */
static void meet(void *item)
{
	struct meeting *meeting = item;
	qmc_time_t end = qmc_clock_after(2 * QMC_NS_PER_S);

	atomic_fetch_add(&meeting->here, 1);
	while (atomic_load(&meeting->here) < 3 && qmc_clock_now() < end)
		qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_MS));
	if (atomic_load(&meeting->here) >= 3)
		atomic_fetch_add(&meeting->met, 1);
}

static void test_items_overlap(void **state)
{
	struct meeting meeting = {0};
	void *items[3] = {&meeting, &meeting, &meeting};
	struct qml_crew *crew;

	(void)state;
	assert_int_equal(qml_crew_create(8, &crew), QMLA_OK);
	qml_crew_run(crew, meet, items, 3);
	assert_int_equal(atomic_load(&meeting.met), 3);
	qml_crew_destroy(crew);
}

struct caller {
	struct qml_crew *crew;
	pthread_t thread;
	_Atomic int count;
};

static void *run_jobs(void *user)
{
	struct caller *caller = user;
	void *items[7];

	for (size_t i = 0; i < 7; i++)
		items[i] = &caller->count;
	for (int i = 0; i < 50; i++)
		qml_crew_run(caller->crew, count_up, items, 7);
	return NULL;
}

/* More callers than helpers: every job still ends. */
static void test_many_callers(void **state)
{
	struct caller callers[6];
	struct qml_crew *crew;

	(void)state;
	assert_int_equal(qml_crew_create(2, &crew), QMLA_OK);
	for (size_t i = 0; i < 6; i++) {
		callers[i].crew = crew;
		atomic_init(&callers[i].count, 0);
		assert_int_equal(qml_thread_start(&callers[i].thread, run_jobs, &callers[i]),
				 QMLA_OK);
	}
	for (size_t i = 0; i < 6; i++) {
		pthread_join(callers[i].thread, NULL);
		assert_int_equal(atomic_load(&callers[i].count), 350);
	}
	qml_crew_destroy(crew);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_item_once),
		cmocka_unit_test(test_items_overlap),
		cmocka_unit_test(test_many_callers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
