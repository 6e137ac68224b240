/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/status.h"
#include "fixture.h"

#define ECHO    "/test.Unary/Echo"
#define TIMEOUT (20 * QMC_NS_PER_S)

/* grpc-timeout carries few digits and is rounded up: by 1 % at most, and to a millisecond. */
#define ROUNDED (TIMEOUT / 100 + MS(10))

static int setup(void **state)
{
	static struct fixture fixture;
	struct qmp_server_config config = {.threads = 2};

	fixture_start(&fixture, &config);
	*state = &fixture;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *fixture = *state;

	atomic_store(&fixture->release, true);
	fixture_stop(fixture, MS(5000));
	return 0;
}

static void test_echo(void **state)
{
	struct fixture *fixture = *state;
	struct fixture_call last;
	Qmla__V1__LookupResponse *response;

	assert_int_equal(
		fixture_call(fixture->channel, ECHO, 3, 16, 1234, TIMEOUT, &response, NULL),
		QMLA_OK);
	assert_int_equal(response->lease_ms, 1234);
	assert_int_equal(response->n_entries, 3);
	assert_int_equal(response->entries[2]->offset, 14);
	assert_int_equal(response->entries[2]->length, 16);
	assert_true(response->entries[2]->digest == UINT64_MAX - 2);
	last = fixture_last(fixture);
	assert_memory_equal(last.peer, "127.0.0.1:", 10);
	assert_true(last.deadline_left > TIMEOUT - MS(5000));
	assert_true(last.deadline_left <= TIMEOUT + ROUNDED);
	qmp_message_free(&response->base);
}

static void test_large_batches_pass(void **state)
{
	struct fixture *fixture = *state;
	Qmla__V1__LookupResponse *response;

	assert_int_equal(
		fixture_call(fixture->channel, ECHO, 50000, 16, 0, TIMEOUT, &response, NULL),
		QMLA_OK);
	assert_int_equal(response->n_entries, 50000);
	assert_int_equal(response->entries[49999]->generation, 49999);
	qmp_message_free(&response->base);
}

/* Every status arrives as itself, though gRPC has only sixteen codes. */
static void test_every_status_travels(void **state)
{
	struct fixture *fixture = *state;
	struct qmp_error error;

	for (int value = -1; value > -99; value--) {
		if (!qmc_status_is_known(value))
			continue;
		memset(&error, 0, sizeof(error));
		assert_int_equal(fixture_call(fixture->channel, "/test.Unary/Fail", 0, 0,
					      (uint32_t)-value, TIMEOUT, NULL, &error),
				 value);
		assert_string_equal(error.detail, "failed as asked");
	}
}

static void test_failing_with_ok_is_a_defect(void **state)
{
	struct fixture *fixture = *state;

	assert_int_equal(
		fixture_call(fixture->channel, "/test.Unary/Fail", 0, 0, 0, TIMEOUT, NULL, NULL),
		QMLA_ERR_INTERNAL);
}

/* Without the generic call armed this would wait for its deadline. */
static void test_unknown_methods_are_answered_at_once(void **state)
{
	static const char *const paths[] = {"/test.Unary/Missing", "/no.Such/Service", "/",
					    "/test.Unary/Echo/More"};
	struct fixture *fixture = *state;
	qmc_time_t begin = qmc_clock_now();
	struct qmp_error error;

	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		assert_int_equal(
			fixture_call(fixture->channel, paths[i], 1, 16, 0, TIMEOUT, NULL, &error),
			QMLA_ERR_UNSUPPORTED);
		assert_non_null(strstr(error.detail, paths[i]));
	}
	assert_true(qmc_clock_now() - begin < TIMEOUT / 4);
}

static void test_oversize_request(void **state)
{
	struct fixture *fixture = *state;
	struct qmp_error error;

	assert_int_equal(fixture_call(fixture->channel, ECHO, 1, 2 << 20, 0, TIMEOUT, NULL, &error),
			 QMLA_ERR_TOO_LARGE);
	assert_non_null(strstr(error.detail, "larger than max"));
	assert_int_equal(fixture_call(fixture->channel, ECHO, 1, 16, 0, TIMEOUT, NULL, NULL),
			 QMLA_OK);
}

static void test_oversize_response(void **state)
{
	struct fixture *fixture = *state;
	char target[32];
	struct qmp_channel_config config = {.target = target, .max_message_bytes = 1000};
	struct qmp_channel *channel;

	snprintf(target, sizeof(target), "127.0.0.1:%u", qmp_server_port(fixture->server));
	assert_int_equal(qmp_channel_create(&config, &channel), QMLA_OK);
	assert_int_equal(fixture_call(channel, ECHO, 1000, 16, 0, TIMEOUT, NULL, NULL),
			 QMLA_ERR_TOO_LARGE);
	assert_int_equal(fixture_call(channel, ECHO, 10, 16, 0, TIMEOUT, NULL, NULL), QMLA_OK);
	qmp_channel_destroy(channel);
}

/* A small message that unpacks to many times its size. */
static void test_unpack_budget(void **state)
{
	struct fixture *fixture = *state;
	struct qmp_error error;

	assert_int_equal(fixture_call(fixture->channel, ECHO, 450000, 0, 0, TIMEOUT, NULL, &error),
			 QMLA_ERR_TOO_LARGE);
	assert_non_null(strstr(error.detail, "qmla.v1.LookupRequest"));
	assert_non_null(strstr(error.detail, "smaller parts"));
}

static void test_malformed_payload(void **state)
{
	/* Unknown fields are written as they are: here a length that runs past the end. */
	static uint8_t truncated[] = {0xff, 0x01, 'x'};
	static uint8_t varint[] = {0x05};
	ProtobufCMessageUnknownField fields[] = {
		{2, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, sizeof(truncated), truncated},
		{2, PROTOBUF_C_WIRE_TYPE_VARINT, sizeof(varint), varint},
	};
	struct fixture *fixture = *state;
	Qmla__V1__StatsRequest request;
	ProtobufCMessage *response;
	struct qmp_error error;

	for (size_t i = 0; i < 2; i++) {
		qmla__v1__stats_request__init(&request);
		request.base.n_unknown_fields = 1;
		request.base.unknown_fields = &fields[i];
		assert_int_equal(qmp_channel_call(fixture->channel, ECHO, &request.base,
						  &qmla__v1__lookup_response__descriptor,
						  qmc_clock_after(TIMEOUT), &response, &error),
				 QMLA_ERR_FORMAT);
		assert_non_null(strstr(error.detail, "no valid qmla.v1.LookupRequest"));
	}
}

static void test_malformed_response(void **state)
{
	struct fixture *fixture = *state;
	Qmla__V1__LookupRequest request;
	ProtobufCMessage *response = NULL;
	struct qmp_error error;

	/* A LookupResponse with lease_ms (3) read as a WatchEvent, whose 3 is bytes. */
	qmla__v1__lookup_request__init(&request);
	request.lease_ms = 5;
	assert_int_equal(qmp_channel_call(fixture->channel, ECHO, &request.base,
					  &qmla__v1__watch_event__descriptor,
					  qmc_clock_after(TIMEOUT), &response, &error),
			 QMLA_ERR_FORMAT);
	assert_null(response);
	assert_non_null(strstr(error.detail, "qmla.v1.WatchEvent"));
}

static void test_deadline_ends_the_call_on_both_sides(void **state)
{
	struct fixture *fixture = *state;
	qmc_time_t begin = qmc_clock_now();
	int64_t took;

	assert_int_equal(
		fixture_call(fixture->channel, "/test.Unary/Block", 0, 0, 0, MS(200), NULL, NULL),
		QMLA_ERR_DEADLINE);
	took = qmc_clock_now() - begin;
	assert_in_range(took, MS(150), MS(2000));
	assert_true(fixture_await(&fixture->finished, 1, MS(5000)));
	assert_true(atomic_load(&fixture->saw_cancel));
}

static void test_cancel_ends_the_call_on_both_sides(void **state)
{
	struct fixture *fixture = *state;
	Qmla__V1__LookupRequest request;
	struct qmp_pending *pending;
	ProtobufCMessage *response = NULL;

	atomic_store(&fixture->finished, 0);
	atomic_store(&fixture->running, 0);
	atomic_store(&fixture->saw_cancel, false);
	qmla__v1__lookup_request__init(&request);
	assert_int_equal(qmp_channel_start(fixture->channel, "/test.Unary/Block", &request.base,
					   &qmla__v1__lookup_response__descriptor, QMC_TIME_NEVER,
					   &pending),
			 QMLA_OK);
	assert_true(fixture_await(&fixture->running, 1, MS(5000)));
	assert_false(qmp_pending_done(pending));
	qmp_pending_cancel(pending);
	assert_int_equal(qmp_pending_wait(pending, &response, NULL), QMLA_ERR_CANCELLED);
	assert_null(response);
	assert_true(fixture_await(&fixture->finished, 1, MS(5000)));
	assert_true(atomic_load(&fixture->saw_cancel));
}

/* Sixteen calls that take 300 ms each, answered from other threads, to two servers. */
static void test_pending_calls_run_side_by_side(void **state)
{
	enum { CALLS = 16 };
	struct fixture *fixture = *state;
	struct qmp_server_config config = {.threads = 1};
	struct fixture other;
	struct qmp_pending *pending[CALLS];
	Qmla__V1__LookupRequest request;
	qmc_time_t begin;

	fixture_start(&other, &config);
	qmla__v1__lookup_request__init(&request);
	request.lease_ms = 300;
	begin = qmc_clock_now();
	for (int i = 0; i < CALLS; i++)
		assert_int_equal(qmp_channel_start(i % 2 ? other.channel : fixture->channel,
						   "/test.Unary/Later", &request.base,
						   &qmla__v1__lookup_response__descriptor,
						   qmc_clock_after(TIMEOUT), &pending[i]),
				 QMLA_OK);
	for (int i = 0; i < CALLS; i++) {
		ProtobufCMessage *response;

		assert_int_equal(qmp_pending_wait(pending[i], &response, NULL), QMLA_OK);
		qmp_message_free(response);
	}
	assert_in_range(qmc_clock_now() - begin, MS(300), MS(2000));
	fixture_stop(&other, MS(1000));
}

static void test_refused_connection_is_reported_at_once(void **state)
{
	struct qmp_channel *channel = fixture_connect(1); /* tcpmux: nobody is there */
	qmc_time_t begin = qmc_clock_now();
	struct qmp_error error;

	(void)state;
	assert_int_equal(fixture_call(channel, ECHO, 1, 16, 0, TIMEOUT, NULL, &error),
			 QMLA_ERR_UNAVAILABLE);
	assert_true(qmc_clock_now() - begin < TIMEOUT / 4);
	assert_true(error.detail[0] != '\0');
	qmp_channel_destroy(channel);
}

static void test_bad_targets_are_refused(void **state)
{
	static const char *const targets[] = {
		"",           "nowhere", "1234",   "host:0", "unix:/tmp/x",
		"dns:///a:1", "a:99999", "::1:80", "[::1]",  "http://host:80"};

	(void)state;
	for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
		struct qmp_channel_config config = {.target = targets[i]};
		struct qmp_channel *channel = NULL;

		assert_int_equal(qmp_channel_create(&config, &channel), QMLA_ERR_INVALID_ARGUMENT);
		assert_null(channel);
	}
}

static long resident_kib(void)
{
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (file) {
		if (fscanf(file, "%*d %ld", &pages) != 1)
			pages = 0;
		fclose(file);
	}
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void test_ten_thousand_calls_leave_nothing(void **state)
{
	struct fixture *fixture = *state;
	long before = 0;

	for (int i = 0; i < 10000; i++) {
		/* The first tenth fills caches and thread arenas. */
		if (i == 1000)
			before = resident_kib();
		assert_int_equal(fixture_call(fixture->channel, i % 10 ? ECHO : "/test.Unary/Fail",
					      (size_t)i % 5, 16, 2, TIMEOUT, NULL, NULL),
				 i % 10 ? QMLA_OK : QMLA_ERR_NOT_FOUND);
	}
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	/* 9,000 leaked calls of 1 KiB would be 9 MiB. */
	assert_true(resident_kib() - before < 4096);
#else
	(void)before;
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_echo),
		cmocka_unit_test(test_large_batches_pass),
		cmocka_unit_test(test_every_status_travels),
		cmocka_unit_test(test_failing_with_ok_is_a_defect),
		cmocka_unit_test(test_unknown_methods_are_answered_at_once),
		cmocka_unit_test(test_oversize_request),
		cmocka_unit_test(test_oversize_response),
		cmocka_unit_test(test_unpack_budget),
		cmocka_unit_test(test_malformed_payload),
		cmocka_unit_test(test_malformed_response),
		cmocka_unit_test(test_deadline_ends_the_call_on_both_sides),
		cmocka_unit_test(test_cancel_ends_the_call_on_both_sides),
		cmocka_unit_test(test_pending_calls_run_side_by_side),
		cmocka_unit_test(test_refused_connection_is_reported_at_once),
		cmocka_unit_test(test_bad_targets_are_refused),
		cmocka_unit_test(test_ten_thousand_calls_leave_nothing),
	};

	return cmocka_run_group_tests_name("rpc_unary", tests, setup, teardown);
}
