/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/log.h"
#include "tests/unit/client/cache/fixture.h"

#define INSERTED 1
#define REMOVED  2
#define LOST     4

static int setup(void **state)
{
	*state = fixture_create(2);
	return 0;
}

static int teardown(void **state)
{
	fixture_destroy(*state);
	return 0;
}

static void expect(qmla_watch_t *watch, qmla_event_kind_t kind, const qmla_key_t *key)
{
	qmla_event_t event;

	assert_int_equal(qmla_watch_next(watch, 3000, &event), QMLA_OK);
	assert_int_equal(event.kind, kind);
	if (key)
		assert_memory_equal(&event.key, key, sizeof(*key));
}

static void wait_for_watchers(struct fixture *f, uint32_t each)
{
	for (int i = 0; i < 400; i++) {
		if (fake_node_watchers(f->nodes[0]) >= each &&
		    fake_node_watchers(f->nodes[1]) >= each)
			return;
		qmc_clock_sleep_until(qmc_clock_after(5 * QMC_NS_PER_MS));
	}
	fail_msg("the nodes were not watched");
}

static void test_snapshot_then_events(void **state)
{
	struct fixture *f = *state;
	size_t inserted = 0, synced = 0;
	qmla_watch_t *watch;
	qmla_event_t event;

	fixture_publish(f, 9);
	assert_int_equal(qmla_watch_open(f->client, true, &watch), QMLA_OK);
	while (synced < 2) {
		assert_int_equal(qmla_watch_next(watch, 3000, &event), QMLA_OK);
		inserted += event.kind == QMLA_EVENT_INSERTED;
		synced += event.kind == QMLA_EVENT_SYNCED;
	}
	assert_int_equal(inserted, 9);
	wait_for_watchers(f, 1);
	fake_node_event(f->nodes[1], REMOVED, &f->keys[4]);
	expect(watch, QMLA_EVENT_REMOVED, &f->keys[4]);
	fake_node_event(f->nodes[0], INSERTED, &f->keys[7]);
	assert_int_equal(qmla_watch_next(watch, 3000, &event), QMLA_OK);
	assert_int_equal(event.kind, QMLA_EVENT_INSERTED);
	assert_string_equal(event.node, "n0");
	assert_int_equal(qmla_watch_next(watch, 20, &event), QMLA_ERR_DEADLINE);
	qmla_watch_close(watch);
}

/* A stream that ends is told as LOST, opened again, and starts with a snapshot. */
static void test_reconnects(void **state)
{
	struct fixture *f = *state;
	qmla_watch_t *watch;

	assert_int_equal(qmla_watch_open(f->client, false, &watch), QMLA_OK);
	wait_for_watchers(f, 1);
	fixture_publish(f, 1);
	fake_node_end_watches(f->nodes[fixture_holder(f, 0)]);
	expect(watch, QMLA_EVENT_LOST, NULL);
	expect(watch, QMLA_EVENT_INSERTED, &f->keys[0]);
	expect(watch, QMLA_EVENT_SYNCED, NULL);
	qmla_watch_close(watch);
}

/* The node says that we were too slow: the same. */
static void test_node_lost_track(void **state)
{
	struct fixture *f = *state;
	qmla_watch_t *watch;

	assert_int_equal(qmla_watch_open(f->client, false, &watch), QMLA_OK);
	wait_for_watchers(f, 1);
	fake_node_event(f->nodes[0], LOST, &f->keys[0]);
	expect(watch, QMLA_EVENT_LOST, NULL);
	expect(watch, QMLA_EVENT_SYNCED, NULL);
	qmla_watch_close(watch);
}

/* A dead node is told once, not at every attempt; the other one goes on. */
static void test_dead_node(void **state)
{
	struct fixture *f = *state;
	qmla_watch_t *watch;
	qmla_event_t event;

	assert_int_equal(qmla_watch_open(f->client, false, &watch), QMLA_OK);
	wait_for_watchers(f, 1);
	fake_node_stop(f->nodes[0]);
	f->nodes[0] = NULL;
	assert_int_equal(qmla_watch_next(watch, 3000, &event), QMLA_OK);
	assert_int_equal(event.kind, QMLA_EVENT_LOST);
	assert_string_equal(event.node, "n0");
	assert_int_equal(qmla_watch_next(watch, 500, &event), QMLA_ERR_DEADLINE);
	fake_node_event(f->nodes[1], INSERTED, &f->keys[1]);
	expect(watch, QMLA_EVENT_INSERTED, &f->keys[1]);
	qmla_watch_close(watch);
}

/* Closing with a full queue and nobody reading it ends at once. */
static void test_close_while_full(void **state)
{
	struct fixture *f = *state;
	qmla_watch_t *watch;
	qmc_time_t begin;

	assert_int_equal(qmla_watch_open(f->client, false, &watch), QMLA_OK);
	wait_for_watchers(f, 1);
	for (int i = 0; i < 5000; i++)
		fake_node_event(f->nodes[0], INSERTED, &f->keys[i % 40]);
	begin = qmc_clock_now();
	qmla_watch_close(watch);
	assert_true(qmc_clock_now() - begin < QMC_NS_PER_S);
	qmla_watch_close(NULL);
}

int main(void)
{
#define TWO(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	const struct CMUnitTest tests[] = {
		TWO(test_snapshot_then_events), TWO(test_reconnects),
		TWO(test_node_lost_track),      TWO(test_dead_node),
		TWO(test_close_while_full),
	};

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
