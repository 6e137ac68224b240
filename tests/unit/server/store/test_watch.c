/* SPDX-License-Identifier: Apache-2.0 */
#include "../cmocka_first.h"

#include <pthread.h>

#include "server/store/watch.h"
#include "support.h"

#define RING 16u

static struct qms_watch_hub *hub_of(uint32_t watchers)
{
	struct qms_watch_hub *hub;

	assert_int_equal(qms_watch_hub_create(watchers, RING, &hub), QMLA_OK);
	return hub;
}

static void publish(struct qms_watch_hub *hub, uint8_t identity, uint64_t key)
{
	struct qms_identity i = identity_of(identity);
	struct qms_key k = key_of(key);

	qms_watch_publish(hub, QMS_EVENT_INSERTED, &i, &k);
}

static void events_come_in_order_to_whom_they_concern(void **state)
{
	struct qms_watch_hub *hub = hub_of(2);
	struct qms_identity one = identity_of(1);
	struct qms_watcher *all, *some;
	struct qms_event events[8];
	struct qms_key key;
	size_t count = 0;

	(void)state;
	publish(hub, 1, 99); /* nobody watches yet */
	assert_int_equal(qms_watcher_open(hub, NULL, &all), QMLA_OK);
	assert_int_equal(qms_watcher_open(hub, &one, &some), QMLA_OK);
	assert_int_equal(qms_watch_hub_watchers(hub), 2);
	for (uint64_t i = 0; i < 6; i++)
		publish(hub, i % 2 ? 1 : 2, i);
	assert_int_equal(qms_watcher_next(all, 0, events, 8, &count), QMLA_OK);
	assert_int_equal(count, 6);
	for (uint64_t i = 0; i < 6; i++) {
		key = key_of(i);
		assert_memory_equal(&events[i].key, &key, sizeof(key));
		assert_int_equal(events[i].identity.bytes[31], i % 2 ? 1 : 2);
	}
	assert_int_equal(qms_watcher_next(some, 0, events, 2, &count), QMLA_OK);
	assert_int_equal(count, 2);
	assert_int_equal(qms_watcher_next(some, 0, events, 2, &count), QMLA_OK);
	assert_int_equal(count, 1);
	key = key_of(5);
	assert_memory_equal(&events[0].key, &key, sizeof(key));
	assert_int_equal(qms_watcher_next(some, qmc_clock_after(QMC_NS_PER_MS), events, 2, &count),
			 QMLA_ERR_DEADLINE);
	qms_watcher_close(all);
	qms_watcher_close(some);
	qms_watcher_close(NULL);
	qms_watch_hub_destroy(hub);
	qms_watch_hub_destroy(NULL);
}

static void a_slow_watcher_is_told_and_goes_on(void **state)
{
	struct qms_watch_hub *hub = hub_of(1);
	struct qms_watcher *watcher;
	struct qms_event events[RING];
	size_t count = 0;

	(void)state;
	assert_int_equal(qms_watcher_open(hub, NULL, &watcher), QMLA_OK);
	for (uint64_t i = 0; i < RING; i++)
		publish(hub, 1, i);
	assert_int_equal(qms_watcher_next(watcher, 0, events, RING, &count), QMLA_OK);
	assert_int_equal(count, RING);
	for (uint64_t i = 0; i < RING + 1; i++)
		publish(hub, 1, i);
	assert_int_equal(qms_watch_hub_lost(hub), 1);
	publish(hub, 1, 1000);
	assert_int_equal(qms_watcher_next(watcher, 0, events, RING, &count), QMLA_ERR_STALE);
	publish(hub, 1, 1001);
	assert_int_equal(qms_watcher_next(watcher, 0, events, RING, &count), QMLA_OK);
	assert_int_equal(count, 1);
	qms_watcher_close(watcher);
	qms_watch_hub_destroy(hub);
}

static void their_number_is_bounded(void **state)
{
	struct qms_watch_hub *hub = hub_of(1);
	struct qms_watcher *one, *two;

	(void)state;
	for (int i = 0; i < 10; i++) {
		assert_int_equal(qms_watcher_open(hub, NULL, &one), QMLA_OK);
		assert_int_equal(qms_watcher_open(hub, NULL, &two), QMLA_ERR_RESOURCE_EXHAUSTED);
		qms_watcher_close(one);
	}
	qms_watch_hub_destroy(hub);
}

static void *stop_soon(void *hub)
{
	qmc_clock_sleep_until(qmc_clock_after(20 * QMC_NS_PER_MS));
	qms_watch_hub_stop(hub);
	return NULL;
}

static void stop_wakes_and_closes_the_door(void **state)
{
	struct qms_watch_hub *hub = hub_of(4);
	struct qms_watcher *watcher, *late;
	struct qms_event events[1];
	pthread_t thread;
	size_t count;

	(void)state;
	assert_int_equal(qms_watcher_open(hub, NULL, &watcher), QMLA_OK);
	assert_int_equal(pthread_create(&thread, NULL, stop_soon, hub), 0);
	assert_int_equal(qms_watcher_next(watcher, QMC_TIME_NEVER, events, 1, &count),
			 QMLA_ERR_CANCELLED);
	pthread_join(thread, NULL);
	assert_int_equal(qms_watcher_open(hub, NULL, &late), QMLA_ERR_DRAINING);
	qms_watcher_close(watcher);
	qms_watch_hub_destroy(hub);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(events_come_in_order_to_whom_they_concern),
		cmocka_unit_test(a_slow_watcher_is_told_and_goes_on),
		cmocka_unit_test(their_number_is_bounded),
		cmocka_unit_test(stop_wakes_and_closes_the_door),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
