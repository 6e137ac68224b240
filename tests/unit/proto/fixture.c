/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"

typedef Qmla__V1__LookupRequest request_t;
typedef Qmla__V1__LookupResponse response_t;

static void handle_echo(void *object, struct qmp_call *call, const ProtobufCMessage *message)
{
	const request_t *request = (const request_t *)message;
	struct fixture *fixture = object;
	size_t count = request->n_keys;
	Qmla__V1__LookupEntry *entries = calloc(count ? count : 1, sizeof(*entries));
	Qmla__V1__LookupEntry **list = calloc(count ? count : 1, sizeof(*list));
	response_t response;

	pthread_mutex_lock(&fixture->lock);
	snprintf(fixture->last.peer, sizeof(fixture->last.peer), "%s", qmp_call_peer(call));
	fixture->last.deadline_left = qmc_clock_left(qmp_call_deadline(call));
	pthread_mutex_unlock(&fixture->lock);
	qmla__v1__lookup_response__init(&response);
	for (size_t i = 0; i < count; i++) {
		qmla__v1__lookup_entry__init(&entries[i]);
		entries[i].offset = request->keys[i].len ? request->keys[i].data[0] : 0;
		entries[i].length = request->keys[i].len;
		entries[i].generation = i;
		entries[i].digest = UINT64_MAX - i;
		list[i] = &entries[i];
	}
	response.lease_ms = request->lease_ms;
	response.n_entries = count;
	response.entries = list;
	qmp_call_reply(call, &response.base);
	free(list);
	free(entries);
}

static void handle_fail(void *object, struct qmp_call *call, const ProtobufCMessage *message)
{
	const request_t *request = (const request_t *)message;

	(void)object;
	qmp_call_fail(call, (qmla_status_t)(-(int)request->lease_ms), "failed as asked");
}

static void handle_nothing(void *object, struct qmp_call *call, const ProtobufCMessage *message)
{
	response_t response;

	(void)object;
	(void)message;
	qmla__v1__lookup_response__init(&response);
	qmp_call_reply(call, &response.base);
}

static void handle_block(void *object, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fixture *fixture = object;

	atomic_fetch_add(&fixture->running, 1);
	while (!atomic_load(&fixture->release) && !qmp_call_cancelled(call))
		qmc_clock_sleep_until(qmc_clock_after(MS(1)));
	if (qmp_call_cancelled(call))
		atomic_store(&fixture->saw_cancel, true);
	atomic_fetch_add(&fixture->finished, 1);
	handle_nothing(object, call, message);
}

struct later {
	struct qmp_call *call;
	int64_t delay;
};

static void *later_run(void *argument)
{
	struct later *later = argument;

	qmc_clock_sleep_until(qmc_clock_after(later->delay));
	handle_nothing(NULL, later->call, NULL);
	free(later);
	return NULL;
}

static void handle_later(void *object, struct qmp_call *call, const ProtobufCMessage *message)
{
	const request_t *request = (const request_t *)message;
	struct later *later = malloc(sizeof(*later));
	pthread_t thread;

	(void)object;
	later->call = call;
	later->delay = MS(request->lease_ms);
	pthread_create(&thread, NULL, later_run, later);
	pthread_detach(thread);
}

static qmla_status_t send_event(struct qmp_call *call, size_t key_bytes, int mark,
				int64_t timeout_ns)
{
	ProtobufCBinaryData key = {.len = key_bytes, .data = malloc(key_bytes)};
	Qmla__V1__WatchEvent event;
	qmla_status_t status;

	memset(key.data, mark, key_bytes);
	qmla__v1__watch_event__init(&event);
	event.kind = QMLA__V1__WATCH_EVENT__KIND__KIND_INSERTED;
	event.n_keys = 1;
	event.keys = &key;
	status = qmp_call_send(call, &event.base, qmc_clock_after(timeout_ns));
	free(key.data);
	return status;
}

static void handle_count(void *object, struct qmp_call *call, const ProtobufCMessage *message)
{
	const request_t *request = (const request_t *)message;

	(void)object;
	for (uint32_t i = 0; i < request->lease_ms; i++) {
		if (send_event(call, 16, (int)(i & 0xff), MS(5000)) != QMLA_OK) {
			qmp_call_fail(call, QMLA_ERR_CANCELLED, "the client is gone");
			return;
		}
	}
	qmp_call_finish(call);
}

static void handle_flood(void *object, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fixture *fixture = object;
	qmla_status_t status;

	(void)message;
	atomic_fetch_add(&fixture->running, 1);
	do {
		status = send_event(call, 65536, 7, MS(300));
		if (status == QMLA_OK)
			atomic_fetch_add(&fixture->sent, 1);
	} while (status == QMLA_OK && !atomic_load(&fixture->release));
	atomic_store(&fixture->last_send, (int)status);
	atomic_fetch_add(&fixture->flooded, 1);
	if (status == QMLA_OK)
		qmp_call_finish(call);
	else
		qmp_call_fail(call, status, "flood ended");
}

static void handle_idle(void *object, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fixture *fixture = object;

	(void)message;
	atomic_fetch_add(&fixture->running, 1);
	(void)send_event(call, 16, 1, MS(1000));
	while (!qmp_call_cancelled(call) && !qmp_call_draining(call))
		qmc_clock_sleep_until(qmc_clock_after(MS(1)));
	atomic_fetch_add(&fixture->finished, 1);
	if (qmp_call_cancelled(call)) {
		atomic_store(&fixture->saw_cancel, true);
		qmp_call_fail(call, QMLA_ERR_CANCELLED, "cancelled");
	} else {
		qmp_call_fail(call, QMLA_ERR_DRAINING, "draining");
	}
}

static void handle_broken(void *object, struct qmp_call *call, const ProtobufCMessage *message)
{
	(void)object;
	(void)message;
	(void)send_event(call, 16, 1, MS(1000));
	(void)send_event(call, 16, 2, MS(1000));
	qmp_call_fail(call, QMLA_ERR_CORRUPT, "broken as asked");
}

#define REQUEST &qmla__v1__lookup_request__descriptor

static const struct qmp_method methods[] = {
	{"/test.Unary/Echo", QMP_UNARY, REQUEST, handle_echo},
	{"/test.Unary/Fail", QMP_UNARY, REQUEST, handle_fail},
	{"/test.Unary/Nothing", QMP_UNARY, REQUEST, handle_nothing},
	{"/test.Unary/Block", QMP_UNARY, REQUEST, handle_block},
	{"/test.Unary/Later", QMP_UNARY, REQUEST, handle_later},
	{"/test.Stream/Count", QMP_SERVER_STREAM, REQUEST, handle_count},
	{"/test.Stream/Flood", QMP_SERVER_STREAM, REQUEST, handle_flood},
	{"/test.Stream/Idle", QMP_SERVER_STREAM, REQUEST, handle_idle},
	{"/test.Stream/Broken", QMP_SERVER_STREAM, REQUEST, handle_broken},
};

void fixture_serve(struct fixture *fixture, const struct qmp_server_config *config)
{
	struct qmp_server_config c = *config;

	memset(fixture, 0, sizeof(*fixture));
	pthread_mutex_init(&fixture->lock, NULL);
	if (!c.listen)
		c.listen = "127.0.0.1:0";
	fixture->service =
		(struct qmp_service){methods, sizeof(methods) / sizeof(methods[0]), fixture};
	if (qmp_server_create(&c, &fixture->service, 1, &fixture->server) != QMLA_OK)
		abort();
	qmp_server_set_serving(fixture->server, true);
}

struct qmp_channel *fixture_connect(uint16_t port)
{
	struct qmp_channel_config config = {.keepalive_ns = QMC_NS_PER_S};
	struct qmp_channel *channel;
	char target[32];

	snprintf(target, sizeof(target), "127.0.0.1:%u", port);
	config.target = target;
	if (qmp_channel_create(&config, &channel) != QMLA_OK)
		abort();
	return channel;
}

void fixture_start(struct fixture *fixture, const struct qmp_server_config *config)
{
	fixture_serve(fixture, config);
	fixture->channel = fixture_connect(qmp_server_port(fixture->server));
}

void fixture_stop(struct fixture *fixture, int64_t grace_ns)
{
	qmp_channel_destroy(fixture->channel);
	qmp_server_destroy(fixture->server, grace_ns);
}

qmla_status_t fixture_call(struct qmp_channel *channel, const char *path, size_t count,
			   size_t key_bytes, uint32_t lease_ms, int64_t timeout_ns,
			   Qmla__V1__LookupResponse **response, struct qmp_error *error)
{
	ProtobufCBinaryData *keys = calloc(count ? count : 1, sizeof(*keys));
	uint8_t *bytes = calloc(count + 1, key_bytes + 1);
	ProtobufCMessage *message = NULL;
	request_t request;
	qmla_status_t status;

	qmla__v1__lookup_request__init(&request);
	for (size_t i = 0; i < count; i++) {
		keys[i] = (ProtobufCBinaryData){.len = key_bytes, .data = bytes + i * key_bytes};
		if (key_bytes)
			keys[i].data[0] = (uint8_t)(i * 7);
	}
	request.n_keys = count;
	request.keys = keys;
	request.lease_ms = lease_ms;
	status = qmp_channel_call(channel, path, &request.base,
				  &qmla__v1__lookup_response__descriptor,
				  qmc_clock_after(timeout_ns), &message, error);
	free(bytes);
	free(keys);
	if (response)
		*response = (response_t *)message;
	else
		qmp_message_free(message);
	return status;
}

qmla_status_t fixture_open(struct qmp_channel *channel, const char *path, uint32_t count,
			   int64_t timeout_ns, struct qmp_stream **stream)
{
	request_t request;

	qmla__v1__lookup_request__init(&request);
	request.lease_ms = count;
	return qmp_stream_open(channel, path, &request.base, &qmla__v1__watch_event__descriptor,
			       timeout_ns < 0 ? QMC_TIME_NEVER : qmc_clock_after(timeout_ns),
			       stream);
}

struct fixture_call fixture_last(struct fixture *fixture)
{
	struct fixture_call last;

	pthread_mutex_lock(&fixture->lock);
	last = fixture->last;
	pthread_mutex_unlock(&fixture->lock);
	return last;
}

bool fixture_await(atomic_int *value, int wanted, int64_t timeout_ns)
{
	qmc_time_t deadline = qmc_clock_after(timeout_ns);

	while (atomic_load(value) < wanted && qmc_clock_left(deadline) > 0)
		qmc_clock_sleep_until(qmc_clock_after(MS(1)));
	return atomic_load(value) >= wanted;
}
