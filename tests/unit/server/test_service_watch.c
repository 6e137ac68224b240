/* SPDX-License-Identifier: Apache-2.0 */
/* The Watch stream. */
#include "cmocka_first.h"

#include <string.h>

#include "node_fixture.h"

#define KIND(name) QMLA__V1__WATCH_EVENT__KIND__KIND_##name

static int setup(void **state)
{
	static struct node node;
	struct qms_service_config config = node_config_slots(4);

	config.heartbeat_ns = 100 * QMC_NS_PER_MS;
	config.store.watch_ring = 32;
	config.store.max_watchers = 2;
	*state = &node;
	return node_start(&node, &config) && node_connect(&node, "tcp") == QMLA_OK ? 0 : -1;
}

static int teardown(void **state)
{
	node_stop(*state);
	return 0;
}

static struct qmp_stream *watch(struct node *node, bool all, bool snapshot)
{
	Qmla__V1__WatchRequest request = QMLA__V1__WATCH_REQUEST__INIT;
	struct qmp_stream *stream;

	if (!all)
		request.identity = node_identity(node);
	request.snapshot = snapshot;
	assert_int_equal(qmp_stream_open(node->channel, "/qmla.v1.Cache/Watch", &request.base,
					 &qmla__v1__watch_event__descriptor,
					 qmc_clock_after(60 * QMC_NS_PER_S), &stream),
			 QMLA_OK);
	return stream;
}

static qmla_status_t next(struct qmp_stream *stream, Qmla__V1__WatchEvent **event)
{
	ProtobufCMessage *message = NULL;
	struct qmp_error error;
	qmla_status_t status =
		qmp_stream_next(stream, qmc_clock_after(5 * QMC_NS_PER_S), &message, &error);

	*event = (Qmla__V1__WatchEvent *)message;
	return status;
}

/* The next event that is no heartbeat must be of @kind with @count keys from @first on, in any
 * order. */
static void expect(struct qmp_stream *stream, Qmla__V1__WatchEvent__Kind kind, uint64_t first,
		   size_t count)
{
	Qmla__V1__WatchEvent *event = NULL;
	bool seen[BATCH] = {false};

	for (;;) {
		assert_int_equal(next(stream, &event), QMLA_OK);
		assert_non_null(event);
		if (event->kind != KIND(HEARTBEAT))
			break;
		qmp_message_free(&event->base);
	}
	assert_int_equal(event->kind, kind);
	assert_int_equal(event->n_keys, count);
	for (size_t i = 0; i < count; i++) {
		uint64_t number;

		assert_int_equal(event->keys[i].len, 16);
		memcpy(&number, event->keys[i].data, sizeof(number));
		assert_in_range(number, first, first + count - 1);
		assert_false(seen[number - first]);
		seen[number - first] = true;
	}
	qmp_message_free(&event->base);
}

static void a_snapshot_comes_first_then_what_happens(void **state)
{
	struct node *node = *state;
	struct qmp_stream *stream;

	for (uint64_t key = 1; key <= 3; key++)
		assert_int_equal(node_put(node, key), QMLA__V1__CODE__CODE_OK);
	stream = watch(node, false, true);
	expect(stream, KIND(INSERTED), 1, 3);
	expect(stream, KIND(SYNCED), 0, 0);
	assert_int_equal(node_put(node, 7), QMLA__V1__CODE__CODE_OK);
	expect(stream, KIND(INSERTED), 7, 1);
	/* The pool has four slots: the next block pushes the oldest out, and that is told too. */
	assert_int_equal(node_put(node, 8), QMLA__V1__CODE__CODE_OK);
	expect(stream, KIND(REMOVED), 1, 1);
	expect(stream, KIND(INSERTED), 8, 1);
	qmp_stream_close(stream);
}

static void a_quiet_stream_shows_that_it_lives(void **state)
{
	struct qmp_stream *stream = watch(*state, true, false);
	Qmla__V1__WatchEvent *event;

	for (int i = 0; i < 3; i++) {
		assert_int_equal(next(stream, &event), QMLA_OK);
		assert_int_equal(event->kind, KIND(HEARTBEAT));
		qmp_message_free(&event->base);
	}
	qmp_stream_close(stream);
}

static void a_watcher_that_falls_behind_is_told_and_the_stream_ends(void **state)
{
	struct node *node = *state;
	struct qmp_stream *stream = watch(node, true, false);
	struct qms_identity identity = node->identity;
	Qmla__V1__WatchEvent *event;
	bool lost = false;

	assert_int_equal(next(stream, &event), QMLA_OK); /* the stream is open */
	qmp_message_free(&event->base);
	/* Far more than the ring holds, faster than anyone reads. */
	for (uint64_t i = 0; i < 2000000 && !lost; i++) {
		struct qms_key key = {{(uint8_t)i}};

		qms_watch_publish(qms_store_watch_hub(qms_service_store(node->service)),
				  QMS_EVENT_INSERTED, &identity, &key);
		lost = qms_watch_hub_lost(qms_store_watch_hub(qms_service_store(node->service)));
	}
	assert_true(lost);
	for (lost = false;;) {
		assert_int_equal(next(stream, &event), QMLA_OK);
		if (!event)
			break;
		assert_false(lost); /* nothing comes after it */
		lost = event->kind == KIND(LOST);
		qmp_message_free(&event->base);
	}
	assert_true(lost);
	qmp_stream_close(stream);
}

static void streams_are_bounded_and_their_places_come_back(void **state)
{
	struct node *node = *state;
	Qmla__V1__WatchEvent *event;

	for (int round = 0; round < 2; round++) {
		struct qmp_stream *streams[3];
		qmc_time_t limit = qmc_clock_after(10 * QMC_NS_PER_S);

		/* Places of streams closed before are free again within a second. */
		while (qms_watch_hub_watchers(
			       qms_store_watch_hub(qms_service_store(node->service))) > 0 &&
		       qmc_clock_left(limit) > 0)
			qmc_clock_sleep_until(qmc_clock_after(10 * QMC_NS_PER_MS));
		for (int i = 0; i < 2; i++) {
			streams[i] = watch(node, true, false);
			assert_int_equal(next(streams[i], &event), QMLA_OK);
			qmp_message_free(&event->base);
		}
		streams[2] = watch(node, true, false);
		assert_int_equal(next(streams[2], &event), QMLA_ERR_RESOURCE_EXHAUSTED);
		for (int i = 0; i < 3; i++)
			qmp_stream_close(streams[i]);
	}
}

static void a_wrong_identity_is_named(void **state)
{
	struct node *node = *state;
	Qmla__V1__WatchRequest request = QMLA__V1__WATCH_REQUEST__INIT;
	Qmla__V1__WatchEvent *event;
	struct qmp_stream *stream;

	request.identity = node_identity(node);
	request.identity.len = 5;
	assert_int_equal(qmp_stream_open(node->channel, "/qmla.v1.Cache/Watch", &request.base,
					 &qmla__v1__watch_event__descriptor, QMC_TIME_NEVER,
					 &stream),
			 QMLA_OK);
	assert_int_equal(next(stream, &event), QMLA_ERR_INVALID_ARGUMENT);
	qmp_stream_close(stream);
}

/* The node ends while streams are open: they end too, nothing hangs. */
static void the_end_of_the_node_ends_the_streams(void **state)
{
	struct qms_service_config config = node_config();
	struct qmp_stream *stream;
	Qmla__V1__WatchEvent *event;
	struct node node;
	qmla_status_t status;
	qmc_time_t begun;

	(void)state;
	assert_true(node_start(&node, &config));
	stream = watch(&node, true, true);
	assert_int_equal(next(stream, &event), QMLA_OK);
	qmp_message_free(&event->base);
	begun = qmc_clock_now();
	qms_service_destroy(node.service, QMC_NS_PER_S);
	node.service = NULL;
	assert_true(qmc_clock_now() - begun < 3 * QMC_NS_PER_S);
	do {
		status = next(stream, &event);
		if (event)
			qmp_message_free(&event->base);
	} while (status == QMLA_OK && event);
	assert_int_equal(status, QMLA_ERR_DRAINING);
	qmp_stream_close(stream);
	node_stop(&node);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_snapshot_comes_first_then_what_happens),
		T(a_quiet_stream_shows_that_it_lives),
		T(a_watcher_that_falls_behind_is_told_and_the_stream_ends),
		T(streams_are_bounded_and_their_places_come_back),
		T(a_wrong_identity_is_named),
		T(the_end_of_the_node_ends_the_streams),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
