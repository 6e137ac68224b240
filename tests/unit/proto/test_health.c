/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include <string.h>

#include "common/clock.h"
#include "fixture.h"
#include "grpc/health/v1/health.pb-c.h"

#define TIMEOUT (20 * QMC_NS_PER_S)

#define SERVING         GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

static int setup(void **state)
{
	static struct fixture fixture;
	struct qmp_server_config config = {.threads = 1};

	fixture_start(&fixture, &config);
	qmp_server_set_serving(fixture.server, false);
	*state = &fixture;
	return 0;
}

static int teardown(void **state)
{
	fixture_stop(*state, MS(1000));
	return 0;
}

static qmla_status_t check(struct fixture *fixture, const char *service)
{
	return qmp_health_check(fixture->channel, service, qmc_clock_after(TIMEOUT));
}

static struct qmp_stream *watch(struct fixture *fixture, const char *service)
{
	Grpc__Health__V1__HealthCheckRequest request;
	struct qmp_stream *stream = NULL;

	grpc__health__v1__health_check_request__init(&request);
	request.service = (char *)(uintptr_t)service;
	assert_int_equal(qmp_stream_open(fixture->channel, "/grpc.health.v1.Health/Watch",
					 &request.base,
					 &grpc__health__v1__health_check_response__descriptor,
					 QMC_TIME_NEVER, &stream),
			 QMLA_OK);
	return stream;
}

/* The next state told, or the (negative) status of the wait. */
static int told(struct qmp_stream *stream, int64_t timeout_ns)
{
	ProtobufCMessage *message = NULL;
	qmla_status_t status = qmp_stream_next(stream, qmc_clock_after(timeout_ns), &message, NULL);
	int result = (int)status;

	if (status == QMLA_OK && message)
		result = (int)((Grpc__Health__V1__HealthCheckResponse *)message)->status;
	qmp_message_free(message);
	return result;
}

static void test_check_follows_the_state(void **state)
{
	struct fixture *fixture = *state;

	assert_int_equal(check(fixture, ""), QMLA_ERR_UNAVAILABLE);
	assert_int_equal(check(fixture, "test.Unary"), QMLA_ERR_UNAVAILABLE);
	qmp_server_set_serving(fixture->server, true);
	assert_int_equal(check(fixture, ""), QMLA_OK);
	assert_int_equal(check(fixture, "test.Unary"), QMLA_OK);
	assert_int_equal(check(fixture, "test.Stream"), QMLA_OK);
	qmp_server_set_serving(fixture->server, false);
	assert_int_equal(check(fixture, ""), QMLA_ERR_UNAVAILABLE);
}

static void test_check_of_an_unknown_service(void **state)
{
	struct fixture *fixture = *state;

	assert_int_equal(check(fixture, "test"), QMLA_ERR_NOT_FOUND);
	assert_int_equal(check(fixture, "test.Unar"), QMLA_ERR_NOT_FOUND);
	assert_int_equal(check(fixture, "test.Unary/Echo"), QMLA_ERR_NOT_FOUND);
}

static void test_watch_tells_changes_only(void **state)
{
	struct fixture *fixture = *state;
	struct qmp_stream *all = watch(fixture, "");
	struct qmp_stream *one = watch(fixture, "test.Unary");

	assert_int_equal(told(all, TIMEOUT), NOT_SERVING);
	assert_int_equal(told(one, TIMEOUT), NOT_SERVING);
	qmp_server_set_serving(fixture->server, false);
	assert_int_equal(told(all, MS(100)), QMLA_ERR_DEADLINE);
	for (int i = 0; i < 3; i++) {
		qmp_server_set_serving(fixture->server, true);
		assert_int_equal(told(all, TIMEOUT), SERVING);
		assert_int_equal(told(one, TIMEOUT), SERVING);
		qmp_server_set_serving(fixture->server, false);
		assert_int_equal(told(all, TIMEOUT), NOT_SERVING);
		assert_int_equal(told(one, TIMEOUT), NOT_SERVING);
	}
	qmp_stream_close(all);
	qmp_stream_close(one);
}

static void test_watch_of_an_unknown_service_stays_open(void **state)
{
	struct fixture *fixture = *state;
	struct qmp_stream *stream = watch(fixture, "no.such.Service");

	assert_int_equal(told(stream, TIMEOUT), SERVICE_UNKNOWN);
	qmp_server_set_serving(fixture->server, true);
	assert_int_equal(told(stream, MS(200)), QMLA_ERR_DEADLINE);
	qmp_server_set_serving(fixture->server, false);
	qmp_stream_close(stream);
}

/* A watcher that does not read costs nothing and sees the last state in the end. */
static void test_a_slow_watcher_sees_the_last_state(void **state)
{
	struct fixture *fixture = *state;
	struct qmp_stream *stream = watch(fixture, "");
	int last = 0;

	for (int i = 0; i < 20000; i++)
		qmp_server_set_serving(fixture->server, i % 2 == 0);
	qmp_server_set_serving(fixture->server, true);
	for (int next = 0; next >= 0; next = told(stream, MS(500)))
		last = next;
	assert_int_equal(last, SERVING);
	qmp_server_set_serving(fixture->server, false);
	qmp_stream_close(stream);
}

static void test_probes_are_answered_while_all_handlers_are_busy(void **state)
{
	struct fixture *fixture = *state;
	Qmla__V1__LookupRequest request;
	struct qmp_pending *pending;
	ProtobufCMessage *response;
	qmc_time_t begin;

	qmp_server_set_serving(fixture->server, true);
	qmla__v1__lookup_request__init(&request);
	assert_int_equal(qmp_channel_start(fixture->channel, "/test.Unary/Block", &request.base,
					   &qmla__v1__lookup_response__descriptor, QMC_TIME_NEVER,
					   &pending),
			 QMLA_OK);
	assert_true(fixture_await(&fixture->running, 1, MS(5000)));
	begin = qmc_clock_now();
	assert_int_equal(check(fixture, ""), QMLA_OK);
	assert_true(qmc_clock_now() - begin < MS(2000));
	atomic_store(&fixture->release, true);
	assert_int_equal(qmp_pending_wait(pending, &response, NULL), QMLA_OK);
	qmp_message_free(response);
}

static void test_watchers_are_told_of_a_shutdown(void **state)
{
	struct qmp_server_config config = {0};
	struct fixture fixture;
	struct qmp_stream *known, *unknown;
	qmc_time_t begin;

	(void)state;
	fixture_start(&fixture, &config);
	known = watch(&fixture, "");
	unknown = watch(&fixture, "no.such.Service");
	assert_int_equal(told(known, TIMEOUT), SERVING);
	assert_int_equal(told(unknown, TIMEOUT), SERVICE_UNKNOWN);
	begin = qmc_clock_now();
	qmp_server_destroy(fixture.server, TIMEOUT);
	assert_true(qmc_clock_now() - begin < TIMEOUT / 4);
	assert_int_equal(told(known, TIMEOUT), NOT_SERVING);
	assert_int_equal(told(known, TIMEOUT), QMLA_ERR_DRAINING);
	assert_int_equal(told(unknown, TIMEOUT), QMLA_ERR_DRAINING);
	qmp_stream_close(known);
	qmp_stream_close(unknown);
	qmp_channel_destroy(fixture.channel);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_check_follows_the_state),
		cmocka_unit_test(test_check_of_an_unknown_service),
		cmocka_unit_test(test_watch_tells_changes_only),
		cmocka_unit_test(test_watch_of_an_unknown_service_stays_open),
		cmocka_unit_test(test_a_slow_watcher_sees_the_last_state),
		cmocka_unit_test(test_probes_are_answered_while_all_handlers_are_busy),
		cmocka_unit_test(test_watchers_are_told_of_a_shutdown),
	};

	return cmocka_run_group_tests_name("health", tests, setup, teardown);
}
