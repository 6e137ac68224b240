/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cache/client.h"
#include "client/cache/thread.h"
#include "common/log.h"
#include "qmla/v1/cache.pb-c.h"

#define QUEUE_EVENTS   4096
#define FIRST_PAUSE_NS (100 * QMC_NS_PER_MS)

/* One node's stream and the thread that reads it. */
struct feeder {
	struct qmla_watch *watch;
	struct qml_node *node;
	pthread_t thread;
	bool started;
	bool lost;                 /* LOST was told and no event came since */
	struct qmp_stream *stream; /* under the watch's lock: close cancels it */
};

struct qmla_watch {
	qmla_client_t *client;
	bool snapshot;
	pthread_mutex_t lock; /* what follows */
	pthread_cond_t filled;
	pthread_cond_t drained; /* or stopping */
	qmla_event_t queue[QUEUE_EVENTS];
	size_t first, count;
	bool stopping;
	struct feeder *feeders;
};

/* Waits for room: a slow reader slows the stream, and the node then says LOST. */
static void push_event(struct feeder *feeder, qmla_event_kind_t kind, const qmla_key_t *key)
{
	struct qmla_watch *watch = feeder->watch;
	qmla_event_t event = {.kind = kind};

	if (key)
		event.key = *key;
	snprintf(event.node, sizeof(event.node), "%s", qml_node_name(feeder->node));
	pthread_mutex_lock(&watch->lock);
	while (watch->count == QUEUE_EVENTS && !watch->stopping)
		pthread_cond_wait(&watch->drained, &watch->lock);
	if (!watch->stopping) {
		watch->queue[(watch->first + watch->count++) % QUEUE_EVENTS] = event;
		pthread_cond_signal(&watch->filled);
	}
	pthread_mutex_unlock(&watch->lock);
}

static void push_keys(struct feeder *feeder, qmla_event_kind_t kind,
		      const Qmla__V1__WatchEvent *event)
{
	for (size_t i = 0; i < event->n_keys; i++) {
		qmla_key_t key;

		if (event->keys[i].len != sizeof(key.bytes))
			continue;
		memcpy(key.bytes, event->keys[i].data, sizeof(key.bytes));
		push_event(feeder, kind, &key);
	}
}

/* False when the node lost track of us: the stream is of no more use. */
static bool take_event(struct feeder *feeder, const Qmla__V1__WatchEvent *event)
{
	feeder->lost = false;
	switch (event->kind) {
	case QMLA__V1__WATCH_EVENT__KIND__KIND_INSERTED:
		push_keys(feeder, QMLA_EVENT_INSERTED, event);
		return true;
	case QMLA__V1__WATCH_EVENT__KIND__KIND_REMOVED:
		push_keys(feeder, QMLA_EVENT_REMOVED, event);
		return true;
	case QMLA__V1__WATCH_EVENT__KIND__KIND_SYNCED:
		push_event(feeder, QMLA_EVENT_SYNCED, NULL);
		return true;
	case QMLA__V1__WATCH_EVENT__KIND__KIND_LOST:
		return false;
	default:
		return true; /* heartbeats, and what later versions may send */
	}
}

static bool open_stream(struct feeder *feeder, bool snapshot)
{
	struct qmla_watch *watch = feeder->watch;
	struct qml_settings *settings = &watch->client->settings;
	struct qmp_stream *stream = NULL;
	Qmla__V1__WatchRequest request;
	qmla_status_t status;

	qmla__v1__watch_request__init(&request);
	request.identity.data = settings->identity.bytes;
	request.identity.len = sizeof(settings->identity.bytes);
	request.snapshot = snapshot;
	status = qmp_stream_open(qml_node_channel(feeder->node), "/qmla.v1.Cache/Watch",
				 &request.base, &qmla__v1__watch_event__descriptor, QMC_TIME_NEVER,
				 &stream);
	if (status != QMLA_OK)
		return false;
	pthread_mutex_lock(&watch->lock);
	feeder->stream = stream;
	if (watch->stopping)
		qmp_stream_cancel(stream); /* close came before it could see this one */
	pthread_mutex_unlock(&watch->lock);
	return true;
}

static void close_stream(struct feeder *feeder)
{
	struct qmp_stream *stream;

	pthread_mutex_lock(&feeder->watch->lock);
	stream = feeder->stream;
	feeder->stream = NULL;
	pthread_mutex_unlock(&feeder->watch->lock);
	qmp_stream_close(stream);
}

/* Reads until the stream ends, for whatever reason. */
static void read_stream(struct feeder *feeder)
{
	struct qmp_error error = {{0}};
	bool going = true;

	while (going) {
		ProtobufCMessage *message = NULL;
		qmla_status_t status =
			qmp_stream_next(feeder->stream, QMC_TIME_NEVER, &message, &error);

		going = status == QMLA_OK && message &&
			take_event(feeder, (const Qmla__V1__WatchEvent *)message);
		qmp_message_free(message);
		if (status != QMLA_OK)
			qmc_debug("client", "watch of node %s ended: %s (%s)",
				  qml_node_name(feeder->node), qmla_status_text(status),
				  error.detail);
	}
}

static bool is_stopping(struct qmla_watch *watch)
{
	bool stopping;

	pthread_mutex_lock(&watch->lock);
	stopping = watch->stopping;
	pthread_mutex_unlock(&watch->lock);
	return stopping;
}

static void pause_for(struct qmla_watch *watch, int64_t ns)
{
	qmc_time_t end = qmc_clock_after(ns);
	struct timespec at = {.tv_sec = end / QMC_NS_PER_S, .tv_nsec = end % QMC_NS_PER_S};

	pthread_mutex_lock(&watch->lock);
	while (!watch->stopping && qmc_clock_now() < end)
		pthread_cond_timedwait(&watch->drained, &watch->lock, &at);
	pthread_mutex_unlock(&watch->lock);
}

/* Reopens the stream as long as the watch lives; tells each loss once. */
static void *feeder_main(void *user)
{
	struct feeder *feeder = user;
	struct qmla_watch *watch = feeder->watch;
	bool snapshot = watch->snapshot;
	int64_t longest = watch->client->settings.probe_ns;
	int64_t pause = FIRST_PAUSE_NS;

	while (!is_stopping(watch)) {
		if (open_stream(feeder, snapshot)) {
			read_stream(feeder);
			close_stream(feeder);
		}
		if (!feeder->lost) {
			feeder->lost = true;
			pause = FIRST_PAUSE_NS;
			push_event(feeder, QMLA_EVENT_LOST, NULL);
		}
		snapshot = true; /* whatever was missed is told again */
		pause_for(watch, pause < longest ? pause : longest);
		pause *= 2;
	}
	return NULL;
}

static qmla_status_t start_feeders(struct qmla_watch *watch)
{
	qmla_client_t *client = watch->client;

	for (size_t n = 0; n < client->node_count; n++) {
		struct feeder *feeder = &watch->feeders[n];
		qmla_status_t status;

		feeder->watch = watch;
		feeder->node = client->nodes[n];
		status = qml_thread_start(&feeder->thread, feeder_main, feeder);
		if (status != QMLA_OK)
			return status;
		feeder->started = true;
	}
	return QMLA_OK;
}

qmla_status_t qmla_watch_open(qmla_client_t *client, bool snapshot, qmla_watch_t **watch)
{
	qmla_watch_t *self;
	qmla_status_t status;

	if (!client || !watch)
		return QMLA_ERR_INVALID_ARGUMENT;
	self = calloc(1, sizeof(*self));
	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->client = client;
	self->snapshot = snapshot;
	self->feeders = calloc(client->node_count, sizeof(*self->feeders));
	if (!self->feeders) {
		free(self);
		return QMLA_ERR_NO_MEMORY;
	}
	pthread_mutex_init(&self->lock, NULL);
	qml_cond_init(&self->filled);
	qml_cond_init(&self->drained);
	status = start_feeders(self);
	if (status != QMLA_OK) {
		qmla_watch_close(self);
		return status;
	}
	*watch = self;
	return QMLA_OK;
}

qmla_status_t qmla_watch_next(qmla_watch_t *watch, uint32_t timeout_ms, qmla_event_t *event)
{
	qmc_time_t end = qml_client_deadline(timeout_ms);
	struct timespec at = {.tv_sec = end / QMC_NS_PER_S, .tv_nsec = end % QMC_NS_PER_S};
	qmla_status_t status = QMLA_ERR_DEADLINE;

	if (!watch || !event)
		return QMLA_ERR_INVALID_ARGUMENT;
	pthread_mutex_lock(&watch->lock);
	while (watch->count == 0 && qmc_clock_now() < end)
		pthread_cond_timedwait(&watch->filled, &watch->lock, &at);
	if (watch->count > 0) {
		*event = watch->queue[watch->first];
		watch->first = (watch->first + 1) % QUEUE_EVENTS;
		watch->count--;
		pthread_cond_broadcast(&watch->drained);
		status = QMLA_OK;
	}
	pthread_mutex_unlock(&watch->lock);
	return status;
}

void qmla_watch_close(qmla_watch_t *watch)
{
	if (!watch)
		return;
	pthread_mutex_lock(&watch->lock);
	watch->stopping = true;
	pthread_cond_broadcast(&watch->drained);
	for (size_t n = 0; n < watch->client->node_count; n++) {
		if (watch->feeders[n].stream)
			qmp_stream_cancel(watch->feeders[n].stream);
	}
	pthread_mutex_unlock(&watch->lock);
	for (size_t n = 0; n < watch->client->node_count; n++) {
		if (watch->feeders[n].started)
			pthread_join(watch->feeders[n].thread, NULL);
	}
	pthread_cond_destroy(&watch->filled);
	pthread_cond_destroy(&watch->drained);
	pthread_mutex_destroy(&watch->lock);
	free(watch->feeders);
	free(watch);
}
