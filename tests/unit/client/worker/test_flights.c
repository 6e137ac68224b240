/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "client/worker/flights.h"

static qmla_key_t keys[8];

static void fill_keys(void)
{
	for (uint8_t i = 0; i < 8; i++)
		keys[i].bytes[0] = (uint8_t)(i + 1);
}

static bool never(void *user)
{
	(void)user;
	return false;
}

struct follower {
	struct qmw_flights *flights;
	uint32_t from;
	qmc_time_t deadline;
	_Atomic bool cancel;
	_Atomic bool returned;
	bool led;
	struct qmw_flight flight;
};

static bool is_cancelled(void *user)
{
	struct follower *f = user;

	return atomic_load(&f->cancel);
}

static void *follow(void *argument)
{
	struct follower *f = argument;

	f->led = qmw_flights_lead(f->flights, keys + f->from, 8 - f->from, f->deadline,
				  is_cancelled, f, &f->flight);
	atomic_store(&f->returned, true);
	return NULL;
}

static bool lead(struct qmw_flights *flights, uint32_t from, uint32_t count,
		 struct qmw_flight *flight)
{
	return qmw_flights_lead(flights, keys + from, count, qmc_clock_after(QMC_NS_PER_MS), never,
				NULL, flight);
}

static void test_apart_all_lead(void **state)
{
	struct qmw_flights *flights;
	struct qmw_flight a = {0}, b = {0};

	(void)state;
	fill_keys();
	assert_int_equal(qmw_flights_create(&flights), QMLA_OK);
	assert_true(lead(flights, 0, 4, &a));
	assert_true(lead(flights, 4, 4, &b));
	assert_false(lead(flights, 0, 1, &(struct qmw_flight){0}));
	assert_false(lead(flights, 3, 1, &(struct qmw_flight){0}));
	assert_false(lead(flights, 7, 1, &(struct qmw_flight){0}));
	qmw_flights_leave(flights, &a);
	assert_int_equal(a.id, 0);
	qmw_flights_leave(flights, &a); /* once more is fine */
	assert_true(lead(flights, 3, 1, &a));
	assert_false(lead(flights, 4, 1, &(struct qmw_flight){0}));
	qmw_flights_leave(flights, &a);
	qmw_flights_leave(flights, &b);
	qmw_flights_destroy(flights);
}

/* Leaving takes only what the flight leads: the end of another one stays. */
static void test_overlapping_ends(void **state)
{
	struct qmw_flights *flights;
	struct qmw_flight late = {0}, early = {0};

	(void)state;
	fill_keys();
	assert_int_equal(qmw_flights_create(&flights), QMLA_OK);
	assert_true(lead(flights, 4, 4, &late));
	assert_true(lead(flights, 0, 8, &early));
	qmw_flights_leave(flights, &early);
	assert_true(lead(flights, 0, 4, &early));
	assert_false(lead(flights, 5, 1, &(struct qmw_flight){0}));
	qmw_flights_leave(flights, &late);
	assert_true(lead(flights, 5, 1, &late));
	qmw_flights_leave(flights, &late);
	qmw_flights_leave(flights, &early);
	qmw_flights_destroy(flights);
}

static void test_a_follower_waits_for_the_leader(void **state)
{
	struct qmw_flights *flights;
	struct qmw_flight leader = {0};
	struct follower f = {.from = 2, .deadline = qmc_clock_after(20 * QMC_NS_PER_S)};
	pthread_t thread;

	(void)state;
	fill_keys();
	assert_int_equal(qmw_flights_create(&flights), QMLA_OK);
	f.flights = flights;
	assert_true(lead(flights, 0, 8, &leader));
	pthread_create(&thread, NULL, follow, &f);
	qmc_clock_sleep_until(qmc_clock_after(120 * QMC_NS_PER_MS));
	assert_false(atomic_load(&f.returned));
	qmw_flights_leave(flights, &leader);
	pthread_join(thread, NULL);
	assert_false(f.led);
	assert_int_equal(f.flight.id, 0);
	qmw_flights_destroy(flights);
}

static void test_a_follower_gives_up(void **state)
{
	struct qmw_flights *flights;
	struct qmw_flight leader = {0};
	struct follower late = {.deadline = qmc_clock_after(30 * QMC_NS_PER_MS)};
	struct follower gone = {.deadline = qmc_clock_after(20 * QMC_NS_PER_S)};
	pthread_t a, b;

	(void)state;
	fill_keys();
	assert_int_equal(qmw_flights_create(&flights), QMLA_OK);
	late.flights = gone.flights = flights;
	assert_true(lead(flights, 0, 8, &leader));
	pthread_create(&a, NULL, follow, &late);
	pthread_create(&b, NULL, follow, &gone);
	pthread_join(a, NULL);
	atomic_store(&gone.cancel, true);
	pthread_join(b, NULL);
	assert_false(late.led);
	assert_false(gone.led);
	qmw_flights_leave(flights, &leader);
	qmw_flights_destroy(flights);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_apart_all_lead),
		cmocka_unit_test(test_overlapping_ends),
		cmocka_unit_test(test_a_follower_waits_for_the_leader),
		cmocka_unit_test(test_a_follower_gives_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
