/* SPDX-License-Identifier: Apache-2.0 */
/** @file A server with a few methods of every kind, for the tests of proto/. */
#ifndef QMLA_TEST_PROTO_FIXTURE_H
#define QMLA_TEST_PROTO_FIXTURE_H

#include <pthread.h>
#include <stdatomic.h>

#include "proto/message.h"
#include "proto/rpc_client.h"
#include "proto/rpc_server.h"
#include "qmla/v1/cache.pb-c.h"

#define MS(n) ((n)*QMC_NS_PER_MS)

/*
 * Unary methods take LookupRequest and answer LookupResponse:
 *   Echo    one entry a key; the entry's offset is the key's first byte, its
 *           length the key's length
 *   Fail    with the status -lease_ms and the detail "failed as asked"
 *   Block   waits for fixture_release or cancellation, then answers
 *   Later   is answered by another thread after lease_ms
 *   Nothing answers an empty LookupResponse
 * Streams take LookupRequest and send WatchEvent:
 *   Count   lease_ms events of one key of 16 bytes, then OK
 *   Flood   events of 64 KiB until told otherwise; `sent` counts them
 *   Idle    one event, then nothing until cancelled or draining
 *   Broken  two events, then QMLA_ERR_CORRUPT
 */
struct fixture_call {
	char peer[64];
	int64_t deadline_left; /**< ns */
};

struct fixture {
	struct qmp_service service;
	struct qmp_server *server;
	struct qmp_channel *channel;
	atomic_int running;   /**< handlers inside Block or a stream */
	atomic_int sent;      /**< messages that Flood handed over */
	atomic_int flooded;   /**< Flood handlers that came to their end */
	atomic_int finished;  /**< the other handlers that did */
	atomic_int last_send; /**< status of Flood's last qmp_call_send */
	atomic_bool release;
	atomic_bool saw_cancel;
	pthread_mutex_t lock; /**< nothing else orders a handler before the test that reads */
	struct fixture_call last;
};

/** Starts a server ("127.0.0.1:0" unless @p config says otherwise) that is serving. */
void fixture_serve(struct fixture *fixture, const struct qmp_server_config *config);

/** The same and a channel to it. */
void fixture_start(struct fixture *fixture, const struct qmp_server_config *config);

/** Destroys the channel, then the server with a grace period of @p grace_ns. */
void fixture_stop(struct fixture *fixture, int64_t grace_ns);

/** A channel to 127.0.0.1 with a keepalive of one second. */
struct qmp_channel *fixture_connect(uint16_t port);

/** Calls a unary method of the fixture with @p count keys of @p key_bytes bytes. */
qmla_status_t fixture_call(struct qmp_channel *channel, const char *path, size_t count,
			   size_t key_bytes, uint32_t lease_ms, int64_t timeout_ns,
			   Qmla__V1__LookupResponse **response, struct qmp_error *error);

/** Opens a stream of the fixture; @p timeout_ns negative: no deadline. */
qmla_status_t fixture_open(struct qmp_channel *channel, const char *path, uint32_t count,
			   int64_t timeout_ns, struct qmp_stream **stream);

/** What the last Echo saw of its caller. */
struct fixture_call fixture_last(struct fixture *fixture);

/** Waits until @p value is at least @p wanted, at most @p timeout_ns. */
bool fixture_await(atomic_int *value, int wanted, int64_t timeout_ns);

#endif /* QMLA_TEST_PROTO_FIXTURE_H */
