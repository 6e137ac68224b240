/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "fixture.h"

#define TIMEOUT (20 * QMC_NS_PER_S)

static int setup(void **state)
{
	static struct fixture fixture;
	struct qmp_server_config config = {.threads = 4};

	fixture_start(&fixture, &config);
	*state = &fixture;
	return 0;
}

static int teardown(void **state)
{
	fixture_stop(*state, MS(5000));
	return 0;
}

static struct qmp_stream *open_stream(struct fixture *fixture, const char *path, uint32_t count)
{
	struct qmp_stream *stream = NULL;

	assert_int_equal(fixture_open(fixture->channel, path, count, -1, &stream), QMLA_OK);
	return stream;
}

/* First byte of the next event's key; -1 at the end, -2 with the status otherwise. */
static int next_mark(struct qmp_stream *stream, qmla_status_t *status)
{
	ProtobufCMessage *message = NULL;
	int mark;

	*status = qmp_stream_next(stream, qmc_clock_after(TIMEOUT), &message, NULL);
	if (*status != QMLA_OK)
		return -2;
	if (!message)
		return -1;
	mark = ((Qmla__V1__WatchEvent *)message)->keys[0].data[0];
	qmp_message_free(message);
	return mark;
}

static void test_messages_come_in_order_and_end(void **state)
{
	struct qmp_stream *stream = open_stream(*state, "/test.Stream/Count", 1000);
	qmla_status_t status;

	for (int i = 0; i < 1000; i++)
		assert_int_equal(next_mark(stream, &status), i & 0xff);
	assert_int_equal(next_mark(stream, &status), -1);
	assert_int_equal(next_mark(stream, &status), -1); /* and stays so */
	qmp_stream_close(stream);
	qmp_stream_close(NULL);
}

static void test_empty_stream(void **state)
{
	struct qmp_stream *stream = open_stream(*state, "/test.Stream/Count", 0);
	qmla_status_t status;

	assert_int_equal(next_mark(stream, &status), -1);
	qmp_stream_close(stream);
}

static void test_failure_follows_the_messages(void **state)
{
	struct qmp_stream *stream = open_stream(*state, "/test.Stream/Broken", 0);
	ProtobufCMessage *message = NULL;
	struct qmp_error error;
	qmla_status_t status;

	assert_int_equal(next_mark(stream, &status), 1);
	assert_int_equal(next_mark(stream, &status), 2);
	assert_int_equal(qmp_stream_next(stream, qmc_clock_after(TIMEOUT), &message, &error),
			 QMLA_ERR_CORRUPT);
	assert_string_equal(error.detail, "broken as asked");
	assert_null(message);
	qmp_stream_close(stream);
}

static void test_unknown_stream(void **state)
{
	struct qmp_stream *stream = open_stream(*state, "/test.Stream/Missing", 0);
	qmla_status_t status;

	assert_int_equal(next_mark(stream, &status), -2);
	assert_int_equal(status, QMLA_ERR_UNSUPPORTED);
	qmp_stream_close(stream);
}

static void test_a_wait_that_ends_leaves_the_stream_alive(void **state)
{
	struct fixture *fixture = *state;
	struct qmp_stream *stream = open_stream(fixture, "/test.Stream/Idle", 0);
	ProtobufCMessage *message = NULL;
	qmla_status_t status;
	qmc_time_t begin;

	assert_int_equal(next_mark(stream, &status), 1);
	for (int i = 0; i < 3; i++) {
		begin = qmc_clock_now();
		assert_int_equal(qmp_stream_next(stream, qmc_clock_after(MS(50)), &message, NULL),
				 QMLA_ERR_DEADLINE);
		assert_in_range(qmc_clock_now() - begin, MS(50), MS(1000));
	}
	assert_null(message);
	qmp_stream_close(stream);
	assert_true(fixture_await(&fixture->finished, 1, MS(5000)));
	assert_true(atomic_load(&fixture->saw_cancel));
}

static void *cancel_soon(void *stream)
{
	qmc_clock_sleep_until(qmc_clock_after(MS(100)));
	qmp_stream_cancel(stream);
	return NULL;
}

static void test_cancel_from_another_thread(void **state)
{
	struct qmp_stream *stream = open_stream(*state, "/test.Stream/Idle", 0);
	qmc_time_t begin = qmc_clock_now();
	qmla_status_t status;
	pthread_t thread;

	assert_int_equal(next_mark(stream, &status), 1);
	assert_int_equal(pthread_create(&thread, NULL, cancel_soon, stream), 0);
	assert_int_equal(next_mark(stream, &status), -2);
	assert_int_equal(status, QMLA_ERR_CANCELLED);
	assert_true(qmc_clock_now() - begin < TIMEOUT / 2);
	pthread_join(thread, NULL);
	qmp_stream_close(stream);
}

static void test_the_streams_own_deadline(void **state)
{
	struct fixture *fixture = *state;
	struct qmp_stream *stream;
	qmc_time_t begin = qmc_clock_now();
	qmla_status_t status;

	assert_int_equal(fixture_open(fixture->channel, "/test.Stream/Idle", 0, MS(300), &stream),
			 QMLA_OK);
	assert_int_equal(next_mark(stream, &status), 1);
	assert_int_equal(next_mark(stream, &status), -2);
	assert_int_equal(status, QMLA_ERR_DEADLINE);
	assert_in_range(qmc_clock_now() - begin, MS(250), MS(3000));
	qmp_stream_close(stream);
}

static void test_closing_in_the_middle(void **state)
{
	struct fixture *fixture = *state;
	struct qmp_stream *stream;
	qmla_status_t status;
	int before = atomic_load(&fixture->flooded);

	stream = open_stream(fixture, "/test.Stream/Flood", 0);
	assert_int_equal(next_mark(stream, &status), 7);
	qmp_stream_close(stream);
	assert_true(fixture_await(&fixture->flooded, before + 1, MS(5000)));
	assert_int_equal(atomic_load(&fixture->last_send), QMLA_ERR_CANCELLED);
}

/* The writer is held back by the reader, told so, and what it sent is not lost. */
static void test_flow_control_with_a_slow_reader(void **state)
{
	struct fixture *fixture = *state;
	struct qmp_stream *stream;
	qmla_status_t status;
	int before = atomic_load(&fixture->flooded);
	int received = 0;

	atomic_store(&fixture->sent, 0);
	stream = open_stream(fixture, "/test.Stream/Flood", 0);
	assert_int_equal(next_mark(stream, &status), 7);
	assert_true(fixture_await(&fixture->flooded, before + 1, MS(10000)));
	assert_int_equal(atomic_load(&fixture->last_send), QMLA_ERR_DEADLINE);
	/* 64 KiB each: windows and buffers hold a few MiB, never all that was to come. */
	assert_in_range(atomic_load(&fixture->sent), 1, 256);
	for (received = 1; next_mark(stream, &status) == 7; received++)
		;
	assert_int_equal(status, QMLA_ERR_DEADLINE); /* the handler's own */
	assert_int_equal(received, atomic_load(&fixture->sent));
	qmp_stream_close(stream);
}

/* A client that never reads cannot keep a finished call for ever. */
static void test_a_status_behind_unread_messages_is_given_up(void **state)
{
	struct fixture *fixture = *state;
	int before = atomic_load(&fixture->flooded);
	struct qmp_stream *stream = open_stream(fixture, "/test.Stream/Flood", 0);
	qmla_status_t status = QMLA_OK;

	assert_true(fixture_await(&fixture->flooded, before + 1, MS(10000)));
	qmc_clock_sleep_until(qmc_clock_after(MS(7000)));
	while (next_mark(stream, &status) >= 0)
		;
	assert_int_equal(status, QMLA_ERR_UNAVAILABLE); /* cancelled by the server */
	qmp_stream_close(stream);
}

struct waiter {
	struct qmp_stream *stream;
	struct qmp_pending *pending;
	qmla_status_t stream_status, pending_status;
};

static void *wait_for_both(void *argument)
{
	struct waiter *waiter = argument;
	ProtobufCMessage *message;

	waiter->pending_status = qmp_pending_wait(waiter->pending, &message, NULL);
	do
		waiter->stream_status =
			qmp_stream_next(waiter->stream, qmc_clock_after(TIMEOUT), &message, NULL);
	while (waiter->stream_status == QMLA_OK && (qmp_message_free(message), message));
	qmp_stream_close(waiter->stream);
	return NULL;
}

static void test_destroying_a_channel_in_use(void **state)
{
	struct fixture *fixture = *state;
	struct qmp_channel *channel = fixture_connect(qmp_server_port(fixture->server));
	Qmla__V1__LookupRequest request;
	struct waiter waiter = {0};
	qmc_time_t begin = qmc_clock_now();
	pthread_t thread;

	atomic_store(&fixture->running, 0);
	qmla__v1__lookup_request__init(&request);
	assert_int_equal(qmp_channel_start(channel, "/test.Unary/Block", &request.base,
					   &qmla__v1__lookup_response__descriptor, QMC_TIME_NEVER,
					   &waiter.pending),
			 QMLA_OK);
	assert_int_equal(fixture_open(channel, "/test.Stream/Idle", 0, -1, &waiter.stream),
			 QMLA_OK);
	assert_true(fixture_await(&fixture->running, 2, MS(5000)));
	assert_int_equal(pthread_create(&thread, NULL, wait_for_both, &waiter), 0);
	qmp_channel_destroy(channel);
	pthread_join(thread, NULL);
	assert_int_equal(waiter.pending_status, QMLA_ERR_CANCELLED);
	assert_int_equal(waiter.stream_status, QMLA_ERR_CANCELLED);
	assert_true(qmc_clock_now() - begin < TIMEOUT / 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_messages_come_in_order_and_end),
		cmocka_unit_test(test_empty_stream),
		cmocka_unit_test(test_failure_follows_the_messages),
		cmocka_unit_test(test_unknown_stream),
		cmocka_unit_test(test_a_wait_that_ends_leaves_the_stream_alive),
		cmocka_unit_test(test_cancel_from_another_thread),
		cmocka_unit_test(test_the_streams_own_deadline),
		cmocka_unit_test(test_closing_in_the_middle),
		cmocka_unit_test(test_flow_control_with_a_slow_reader),
		cmocka_unit_test(test_a_status_behind_unread_messages_is_given_up),
		cmocka_unit_test(test_destroying_a_channel_in_use),
	};

	return cmocka_run_group_tests_name("rpc_stream", tests, setup, teardown);
}
