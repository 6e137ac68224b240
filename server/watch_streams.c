/* SPDX-License-Identifier: Apache-2.0 */
#include "server/watch_streams.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "qmla/v1/cache.pb-c.h"

#define BATCH        512u
#define SEND_TIMEOUT (30 * QMC_NS_PER_S) /* a client that reads nothing for so long is given up */
#define POLL         QMC_NS_PER_S        /* how soon a client's going away is noticed */

struct qms_watch_streams {
	struct qms_store *store;
	int64_t heartbeat_ns;
	pthread_mutex_t lock; /* guards live */
	pthread_cond_t idle;
	uint32_t live;
};

struct stream {
	struct qms_watch_streams *owner;
	struct qms_watcher *watcher;
	struct qmp_call *call;
	struct qms_identity identity;
	bool all;
	bool snapshot;
	struct qms_event events[BATCH];
	ProtobufCBinaryData keys[BATCH];
};

qmla_status_t qms_watch_streams_create(struct qms_store *store, int64_t heartbeat_ns,
				       struct qms_watch_streams **streams)
{
	struct qms_watch_streams *made = calloc(1, sizeof(*made));

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	made->store = store;
	made->heartbeat_ns = heartbeat_ns;
	pthread_mutex_init(&made->lock, NULL);
	pthread_cond_init(&made->idle, NULL);
	*streams = made;
	return QMLA_OK;
}

void qms_watch_streams_stop(struct qms_watch_streams *streams)
{
	if (!streams)
		return;
	qms_watch_hub_stop(qms_store_watch_hub(streams->store));
	pthread_mutex_lock(&streams->lock);
	while (streams->live > 0)
		pthread_cond_wait(&streams->idle, &streams->lock);
	pthread_mutex_unlock(&streams->lock);
}

void qms_watch_streams_destroy(struct qms_watch_streams *streams)
{
	if (!streams)
		return;
	qms_watch_streams_stop(streams); /* a call may have come in between */
	pthread_cond_destroy(&streams->idle);
	pthread_mutex_destroy(&streams->lock);
	free(streams);
}

static qmla_status_t send_kind(struct stream *stream, Qmla__V1__WatchEvent__Kind kind)
{
	Qmla__V1__WatchEvent event = QMLA__V1__WATCH_EVENT__INIT;

	event.kind = kind;
	if (!stream->all) {
		event.identity.data = stream->identity.bytes;
		event.identity.len = sizeof(stream->identity.bytes);
	}
	return qmp_call_send(stream->call, &event.base, qmc_clock_after(SEND_TIMEOUT));
}

static bool same_message(const struct qms_event *a, const struct qms_event *b)
{
	return a->kind == b->kind && memcmp(&a->identity, &b->identity, sizeof(a->identity)) == 0;
}

/* One message a run of events of one kind and identity. */
static qmla_status_t send_events(struct stream *stream, size_t count)
{
	qmla_status_t status = QMLA_OK;
	size_t next;

	for (size_t i = 0; i < count && status == QMLA_OK; i = next) {
		Qmla__V1__WatchEvent event = QMLA__V1__WATCH_EVENT__INIT;
		struct qms_event *first = &stream->events[i];

		for (next = i; next < count && same_message(first, &stream->events[next]); next++)
			stream->keys[next] = (ProtobufCBinaryData){QMS_KEY_BYTES,
								   stream->events[next].key.bytes};
		event.kind = first->kind == QMS_EVENT_INSERTED
				     ? QMLA__V1__WATCH_EVENT__KIND__KIND_INSERTED
				     : QMLA__V1__WATCH_EVENT__KIND__KIND_REMOVED;
		event.identity.data = first->identity.bytes;
		event.identity.len = sizeof(first->identity.bytes);
		event.keys = &stream->keys[i];
		event.n_keys = next - i;
		status = qmp_call_send(stream->call, &event.base, qmc_clock_after(SEND_TIMEOUT));
	}
	return status;
}

static qmla_status_t send_snapshot(struct stream *stream)
{
	const struct qms_identity *identity = stream->all ? NULL : &stream->identity;
	struct qms_scan scan = {0};
	size_t count;
	qmla_status_t status;

	while ((count = qms_store_scan(stream->owner->store, identity, &scan, stream->events,
				       BATCH)) > 0) {
		status = send_events(stream, count);
		if (status != QMLA_OK)
			return status;
	}
	return send_kind(stream, QMLA__V1__WATCH_EVENT__KIND__KIND_SYNCED);
}

/* QMLA_ERR_STALE: the client was told that it lost events. */
static qmla_status_t follow(struct stream *stream)
{
	int64_t heartbeat = stream->owner->heartbeat_ns;
	qmc_time_t beat = qmc_clock_after(heartbeat);
	qmla_status_t status;

	for (;;) {
		qmc_time_t poll = qmc_clock_after(POLL);
		size_t count = 0;

		status = qms_watcher_next(stream->watcher, poll < beat ? poll : beat,
					  stream->events, BATCH, &count);
		if (qmp_call_cancelled(stream->call) && status != QMLA_ERR_CANCELLED)
			return QMLA_ERR_UNAVAILABLE;
		if (status == QMLA_OK) {
			status = send_events(stream, count);
			beat = qmc_clock_after(heartbeat);
		} else if (status == QMLA_ERR_DEADLINE) {
			status = QMLA_OK;
			if (qmc_clock_left(beat) == 0) {
				status = send_kind(stream,
						   QMLA__V1__WATCH_EVENT__KIND__KIND_HEARTBEAT);
				beat = qmc_clock_after(heartbeat);
			}
		} else if (status == QMLA_ERR_STALE) {
			send_kind(stream, QMLA__V1__WATCH_EVENT__KIND__KIND_LOST);
		}
		if (status != QMLA_OK)
			return status;
	}
}

static void end(struct stream *stream, qmla_status_t status)
{
	switch (status) {
	case QMLA_ERR_STALE: /* told by the last event; starting again is the client's turn */
		qmp_call_finish(stream->call);
		break;
	case QMLA_ERR_CANCELLED: /* the hub was stopped, or the client is gone and hears nothing */
		qmp_call_fail(stream->call, QMLA_ERR_DRAINING, "the node is shutting down");
		break;
	case QMLA_ERR_DEADLINE:
		qmp_call_fail(stream->call, status, "the watcher did not read for %d s",
			      (int)(SEND_TIMEOUT / QMC_NS_PER_S));
		break;
	default:
		qmp_call_fail(stream->call, status, "%s", qmla_status_text(status));
	}
}

static void *run(void *argument)
{
	struct stream *stream = argument;
	struct qms_watch_streams *owner = stream->owner;
	qmla_status_t status;

	/* The heartbeat tells a client without snapshot that it watches from here on. */
	status = stream->snapshot ? send_snapshot(stream)
				  : send_kind(stream, QMLA__V1__WATCH_EVENT__KIND__KIND_HEARTBEAT);
	if (status == QMLA_OK)
		status = follow(stream);
	end(stream, status);
	qms_watcher_close(stream->watcher);
	free(stream);
	pthread_mutex_lock(&owner->lock);
	if (--owner->live == 0)
		pthread_cond_broadcast(&owner->idle);
	pthread_mutex_unlock(&owner->lock);
	return NULL;
}

static qmla_status_t start(struct qms_watch_streams *streams, struct stream *stream)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int rc;

	pthread_mutex_lock(&streams->lock);
	streams->live++;
	pthread_mutex_unlock(&streams->lock);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attributes, run, stream);
	pthread_attr_destroy(&attributes);
	if (rc == 0)
		return QMLA_OK;
	pthread_mutex_lock(&streams->lock);
	if (--streams->live == 0)
		pthread_cond_broadcast(&streams->idle);
	pthread_mutex_unlock(&streams->lock);
	qmc_warn_limited("node", "no thread for a watcher: raise the limit of processes");
	return QMLA_ERR_RESOURCE_EXHAUSTED;
}

qmla_status_t qms_watch_streams_open(struct qms_watch_streams *streams, struct qmp_call *call,
				     const struct qms_identity *identity, bool snapshot)
{
	struct stream *stream = calloc(1, sizeof(*stream));
	qmla_status_t status;

	if (!stream) {
		qmp_call_fail(call, QMLA_ERR_NO_MEMORY, "the node is out of memory");
		return QMLA_ERR_NO_MEMORY;
	}
	stream->owner = streams;
	stream->call = call;
	stream->all = identity == NULL;
	if (identity)
		stream->identity = *identity;
	stream->snapshot = snapshot;
	status = qms_watcher_open(qms_store_watch_hub(streams->store), identity, &stream->watcher);
	if (status != QMLA_OK)
		goto err_free;
	status = start(streams, stream);
	if (status != QMLA_OK)
		goto err_close;
	return QMLA_OK;

err_close:
	qms_watcher_close(stream->watcher);
err_free:
	free(stream);
	qmp_call_fail(call, status, "%s",
		      status == QMLA_ERR_DRAINING ? "the node is shutting down"
						  : "the node serves as many watchers as it may");
	return status;
}
