/* SPDX-License-Identifier: Apache-2.0 */
/* Listening, limits and shutting down. */
#include "cmocka_all.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/address.h"
#include "common/clock.h"
#include "fixture.h"

#define ECHO    "/test.Unary/Echo"
#define TIMEOUT (20 * QMC_NS_PER_S)

/* Runs qmp_server_create with standard error caught in `text`. */
static qmla_status_t create_quietly(const struct qmp_server_config *config, char *text, size_t room)
{
	char name[] = "/tmp/qmp-test-XXXXXX";
	int file = mkstemp(name);
	int saved = dup(STDERR_FILENO);
	struct qmp_server *server = NULL;
	qmla_status_t status;
	ssize_t length;

	fflush(stderr);
	dup2(file, STDERR_FILENO);
	status = qmp_server_create(config, NULL, 0, &server);
	fflush(stderr);
	dup2(saved, STDERR_FILENO);
	close(saved);
	length = pread(file, text, room - 1, 0);
	text[length > 0 ? length : 0] = '\0';
	close(file);
	unlink(name);
	if (status == QMLA_OK)
		qmp_server_destroy(server, 0);
	else
		assert_null(server);
	return status;
}

static bool have_ipv6(void)
{
	struct qmc_address address = {.host = "::1"};
	uint16_t port;
	int fd;

	if (qmc_tcp_listen(&address, &fd, &port) != QMLA_OK)
		return false;
	close(fd);
	return true;
}

static void serve_on(const char *listen, const char *host, const char *peer)
{
	struct qmp_server_config config = {.listen = listen};
	struct qmp_channel_config client = {0};
	struct qmp_channel *channel;
	struct fixture fixture;
	char target[64];

	fixture_serve(&fixture, &config);
	assert_true(qmp_server_port(fixture.server) != 0);
	snprintf(target, sizeof(target), "%s:%u", host, qmp_server_port(fixture.server));
	client.target = target;
	assert_int_equal(qmp_channel_create(&client, &channel), QMLA_OK);
	assert_int_equal(fixture_call(channel, ECHO, 1, 16, 0, TIMEOUT, NULL, NULL), QMLA_OK);
	assert_memory_equal(fixture_last(&fixture).peer, peer, strlen(peer));
	qmp_channel_destroy(channel);
	qmp_server_destroy(fixture.server, 0);
}

static void test_every_kind_of_address(void **state)
{
	(void)state;
	serve_on("127.0.0.1:0", "127.0.0.1", "127.0.0.1:");
	serve_on("localhost:0", "localhost", "");
	if (have_ipv6()) {
		serve_on("[::1]:0", "[::1]", "[::1]:");
		serve_on("[::]:0", "[::1]", "[::1]:");
		serve_on("0", "[::1]", "[::1]:");
	} else {
		print_message("no IPv6 here: [::1] left out\n");
	}
	serve_on("[::]:0", "127.0.0.1", "");
}

static void test_a_taken_port_is_refused_by_name(void **state)
{
	struct qmp_server_config config = {0};
	struct fixture fixture;
	char listen[32];
	char text[4096];

	(void)state;
	fixture_start(&fixture, &config);
	snprintf(listen, sizeof(listen), "127.0.0.1:%u", qmp_server_port(fixture.server));
	config.listen = listen;
	assert_int_equal(create_quietly(&config, text, sizeof(text)), QMLA_ERR_BUSY);
	assert_non_null(strstr(text, listen));
	assert_non_null(strstr(text, "in use"));
	/* The first one is not disturbed. */
	assert_int_equal(fixture_call(fixture.channel, ECHO, 1, 16, 0, TIMEOUT, NULL, NULL),
			 QMLA_OK);
	fixture_stop(&fixture, 0);
	/* And the port is free as soon as its server is gone. */
	assert_int_equal(create_quietly(&config, text, sizeof(text)), QMLA_OK);
}

/* gRPC would be content with the address that is left. */
static void test_half_of_a_name_is_not_enough(void **state)
{
	struct qmp_server_config config = {.listen = "127.0.0.1:0"};
	struct fixture fixture;
	char listen[32];
	char text[4096];

	(void)state;
	fixture_serve(&fixture, &config);
	config.listen = listen;
	snprintf(listen, sizeof(listen), "localhost:%u", qmp_server_port(fixture.server));
	assert_int_equal(create_quietly(&config, text, sizeof(text)), QMLA_ERR_BUSY);
	assert_non_null(strstr(text, listen));
	snprintf(listen, sizeof(listen), "[::]:%u", qmp_server_port(fixture.server));
	assert_int_equal(create_quietly(&config, text, sizeof(text)), QMLA_ERR_BUSY);
	snprintf(listen, sizeof(listen), "%u", qmp_server_port(fixture.server));
	assert_int_equal(create_quietly(&config, text, sizeof(text)), QMLA_ERR_BUSY);
	qmp_server_destroy(fixture.server, 0);
}

static void test_bad_addresses_are_named(void **state)
{
	static const char *const list[] = {"", "nowhere", "127.0.0.1", "unix:/tmp/a:b",
					   "127.0.0.1:70000"};
	struct qmp_server_config config = {0};
	char text[4096];

	(void)state;
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		config.listen = list[i];
		assert_int_equal(create_quietly(&config, text, sizeof(text)),
				 QMLA_ERR_INVALID_ARGUMENT);
		assert_non_null(strstr(text, list[i]));
	}
	config.listen = "no-such-host.invalid:0";
	assert_int_not_equal(create_quietly(&config, text, sizeof(text)), QMLA_OK);
	assert_non_null(strstr(text, "no-such-host.invalid"));
	config.listen = "192.0.2.1:0"; /* documentation range: not ours */
	assert_int_not_equal(create_quietly(&config, text, sizeof(text)), QMLA_OK);
	assert_non_null(strstr(text, "192.0.2.1"));
}

static void test_a_method_registered_twice(void **state)
{
	static const struct qmp_method twice[] = {
		{"/a.B/C", QMP_UNARY, &qmla__v1__lookup_request__descriptor, NULL},
		{"/a.B/C", QMP_UNARY, &qmla__v1__lookup_request__descriptor, NULL},
	};
	struct qmp_service service = {twice, 2, NULL};
	struct qmp_server_config config = {.listen = "127.0.0.1:0"};
	struct qmp_server *server = NULL;

	(void)state;
	assert_int_equal(qmp_server_create(&config, &service, 1, &server),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_null(server);
}

static struct qmp_pending *start(struct fixture *fixture, const char *path, uint32_t lease_ms)
{
	Qmla__V1__LookupRequest request;
	struct qmp_pending *pending;

	qmla__v1__lookup_request__init(&request);
	request.lease_ms = lease_ms;
	assert_int_equal(qmp_channel_start(fixture->channel, path, &request.base,
					   &qmla__v1__lookup_response__descriptor,
					   qmc_clock_after(TIMEOUT), &pending),
			 QMLA_OK);
	return pending;
}

static qmla_status_t finish(struct qmp_pending *pending)
{
	ProtobufCMessage *response = NULL;
	qmla_status_t status = qmp_pending_wait(pending, &response, NULL);

	qmp_message_free(response);
	return status;
}

static void test_calls_beyond_the_queue_are_refused(void **state)
{
	enum { WAITING = 3, EXTRA = 5 };
	struct qmp_server_config config = {.threads = 1, .max_queued_calls = WAITING};
	struct qmp_pending *pending[1 + WAITING + EXTRA];
	struct fixture fixture;
	int served = 0, refused = 0;

	(void)state;
	fixture_start(&fixture, &config);
	pending[0] = start(&fixture, "/test.Unary/Block", 0);
	assert_true(fixture_await(&fixture.running, 1, MS(5000)));
	for (int i = 1; i < 1 + WAITING + EXTRA; i++)
		pending[i] = start(&fixture, "/test.Unary/Block", 0);
	for (int i = 1 + WAITING; i < 1 + WAITING + EXTRA; i++)
		refused += finish(pending[i]) == QMLA_ERR_RESOURCE_EXHAUSTED;
	/* Health is answered all the same. */
	assert_int_equal(qmp_health_check(fixture.channel, "", qmc_clock_after(MS(2000))), QMLA_OK);
	atomic_store(&fixture.release, true);
	for (int i = 0; i < 1 + WAITING; i++)
		served += finish(pending[i]) == QMLA_OK;
	assert_int_equal(refused, EXTRA);
	assert_int_equal(served, 1 + WAITING);
	fixture_stop(&fixture, MS(1000));
}

static struct qmp_pending *start_large(struct fixture *fixture, uint8_t *bytes, size_t size)
{
	ProtobufCBinaryData key = {.len = size, .data = bytes};
	Qmla__V1__LookupRequest request;
	struct qmp_pending *pending;

	qmla__v1__lookup_request__init(&request);
	request.n_keys = 1;
	request.keys = &key;
	assert_int_equal(qmp_channel_start(fixture->channel, "/test.Unary/Block", &request.base,
					   &qmla__v1__lookup_response__descriptor,
					   qmc_clock_after(TIMEOUT), &pending),
			 QMLA_OK);
	return pending;
}

/* Large calls fill the queue by their bytes long before they do by their number. */
static void test_waiting_bytes_are_bounded(void **state)
{
	enum { CALLS = 100, SIZE = 60000 };
	struct qmp_server_config config = {.threads = 1, .max_message_bytes = 65536};
	uint8_t *bytes = calloc(1, SIZE);
	struct qmp_pending *pending[CALLS];
	struct qmp_pending *first;
	struct fixture fixture;
	int served = 0, refused = 0;

	(void)state;
	fixture_start(&fixture, &config);
	first = start(&fixture, "/test.Unary/Block", 0);
	assert_true(fixture_await(&fixture.running, 1, MS(5000)));
	for (int i = 0; i < CALLS; i++)
		pending[i] = start_large(&fixture, bytes, SIZE);
	for (int i = 0; i < CALLS; i++) {
		qmla_status_t status;

		if (i == CALLS - 1)
			atomic_store(&fixture.release, true);
		else if (!qmp_pending_done(pending[i]))
			qmc_clock_sleep_until(qmc_clock_after(MS(20)));
		if (i < CALLS - 1 && !qmp_pending_done(pending[i]))
			continue;
		status = finish(pending[i]);
		refused += status == QMLA_ERR_RESOURCE_EXHAUSTED;
		served += status == QMLA_OK;
		pending[i] = NULL;
	}
	for (int i = 0; i < CALLS; i++)
		served += pending[i] && finish(pending[i]) == QMLA_OK;
	assert_int_equal(finish(first), QMLA_OK);
	/* 64 messages of 65,536 bytes hold 69 of ours. */
	assert_int_equal(served, 69);
	assert_int_equal(refused, CALLS - 69);
	fixture_stop(&fixture, MS(1000));
	free(bytes);
}

struct stopper {
	struct qmp_server *server;
	int64_t grace_ns;
	atomic_int done;
};

static void *stop_run(void *argument)
{
	struct stopper *stopper = argument;

	qmp_server_destroy(stopper->server, stopper->grace_ns);
	atomic_store(&stopper->done, 1);
	return NULL;
}

/* Running calls end well within the grace period; new ones are turned away. */
static void test_graceful_shutdown(void **state)
{
	struct qmp_server_config config = {0};
	struct stopper stopper = {.grace_ns = TIMEOUT};
	struct qmp_pending *running, *later;
	struct fixture fixture;
	pthread_t thread;

	(void)state;
	fixture_start(&fixture, &config);
	running = start(&fixture, "/test.Unary/Block", 0);
	later = start(&fixture, "/test.Unary/Later", 500);
	assert_true(fixture_await(&fixture.running, 1, MS(5000)));
	stopper.server = fixture.server;
	assert_int_equal(pthread_create(&thread, NULL, stop_run, &stopper), 0);
	qmc_clock_sleep_until(qmc_clock_after(MS(200)));
	assert_int_equal(fixture_call(fixture.channel, ECHO, 1, 16, 0, TIMEOUT, NULL, NULL),
			 QMLA_ERR_UNAVAILABLE);
	assert_int_equal(atomic_load(&stopper.done), 0);
	atomic_store(&fixture.release, true);
	assert_int_equal(finish(running), QMLA_OK);
	assert_int_equal(finish(later), QMLA_OK);
	assert_true(fixture_await(&stopper.done, 1, TIMEOUT / 2));
	pthread_join(thread, NULL);
	assert_false(atomic_load(&fixture.saw_cancel));
	qmp_channel_destroy(fixture.channel);
}

/* After the grace period handlers see the cancellation and the clients a lost peer. */
static void test_forced_shutdown(void **state)
{
	struct qmp_server_config config = {0};
	struct qmp_pending *running, *later;
	struct qmp_stream *stream;
	ProtobufCMessage *message;
	struct fixture fixture;
	qmc_time_t begin;

	(void)state;
	fixture_start(&fixture, &config);
	running = start(&fixture, "/test.Unary/Block", 0);
	later = start(&fixture, "/test.Unary/Later", 1000);
	assert_int_equal(fixture_open(fixture.channel, "/test.Stream/Flood", 0, -1, &stream),
			 QMLA_OK);
	assert_true(fixture_await(&fixture.running, 2, MS(5000)));
	begin = qmc_clock_now();
	qmp_server_destroy(fixture.server, MS(100));
	/* It waited for the answer that another thread still owed. */
	assert_in_range(qmc_clock_now() - begin, MS(500), MS(5000));
	assert_true(atomic_load(&fixture.saw_cancel));
	assert_int_equal(finish(running), QMLA_ERR_UNAVAILABLE);
	assert_int_equal(finish(later), QMLA_ERR_UNAVAILABLE);
	while (qmp_stream_next(stream, qmc_clock_after(TIMEOUT), &message, NULL) == QMLA_OK)
		qmp_message_free(message);
	qmp_stream_close(stream);
	qmp_channel_destroy(fixture.channel);
}

/* An endless stream that asks qmp_call_draining does not use up the grace period. */
static void test_endless_streams_end_when_draining(void **state)
{
	struct qmp_server_config config = {0};
	struct qmp_stream *stream;
	ProtobufCMessage *message = NULL;
	struct fixture fixture;
	qmc_time_t begin;

	(void)state;
	fixture_start(&fixture, &config);
	assert_int_equal(fixture_open(fixture.channel, "/test.Stream/Idle", 0, -1, &stream),
			 QMLA_OK);
	assert_int_equal(qmp_stream_next(stream, qmc_clock_after(TIMEOUT), &message, NULL),
			 QMLA_OK);
	qmp_message_free(message);
	begin = qmc_clock_now();
	qmp_server_destroy(fixture.server, TIMEOUT);
	assert_true(qmc_clock_now() - begin < TIMEOUT / 4);
	assert_int_equal(qmp_stream_next(stream, qmc_clock_after(TIMEOUT), &message, NULL),
			 QMLA_ERR_DRAINING);
	qmp_stream_close(stream);
	qmp_channel_destroy(fixture.channel);
}

static void test_start_and_stop_many_times(void **state)
{
	struct qmp_server_config config = {.threads = 1};
	struct fixture fixture;

	(void)state;
	for (int i = 0; i < 20; i++) {
		fixture_start(&fixture, &config);
		if (i % 2)
			assert_int_equal(
				fixture_call(fixture.channel, ECHO, 1, 16, 0, TIMEOUT, NULL, NULL),
				QMLA_OK);
		fixture_stop(&fixture, MS(1000));
	}
	qmp_server_destroy(NULL, 0);
	qmp_channel_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_kind_of_address),
		cmocka_unit_test(test_a_taken_port_is_refused_by_name),
		cmocka_unit_test(test_half_of_a_name_is_not_enough),
		cmocka_unit_test(test_bad_addresses_are_named),
		cmocka_unit_test(test_a_method_registered_twice),
		cmocka_unit_test(test_calls_beyond_the_queue_are_refused),
		cmocka_unit_test(test_waiting_bytes_are_bounded),
		cmocka_unit_test(test_graceful_shutdown),
		cmocka_unit_test(test_forced_shutdown),
		cmocka_unit_test(test_endless_streams_end_when_draining),
		cmocka_unit_test(test_start_and_stop_many_times),
	};

	return cmocka_run_group_tests_name("rpc_server", tests, NULL, NULL);
}
