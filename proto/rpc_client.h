/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Calls protobuf-c services over gRPC core. A channel and its calls may be used
 * from any thread; one stream object belongs to one thread.
 */
#ifndef QMP_RPC_CLIENT_H
#define QMP_RPC_CLIENT_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "common/clock.h"
#include "proto/message.h"    /* qmp_message_free */
#include "proto/rpc_server.h" /* struct qmp_tls */

#define QMP_DETAIL_MAX 512

struct qmp_channel;
struct qmp_stream;
struct qmp_pending;

struct qmp_channel_config {
	const char *target;         /**< "host:port", "[::1]:port" */
	uint32_t max_message_bytes; /**< of responses, 0: 4 MiB */
	int64_t keepalive_ns; /**< ping when idle this long, 0: 10 s; a silent peer is lost after a
				 third more */
	const struct qmp_tls *tls; /**< NULL: plain text */
};

/** Does not connect yet: the first call does. */
qmla_status_t qmp_channel_create(const struct qmp_channel_config *config,
				 struct qmp_channel **channel);

/** Cancels what is still running, waits for it, frees. Accepts NULL. */
void qmp_channel_destroy(struct qmp_channel *channel);

/** Why a call failed, as text from the peer or the library. */
struct qmp_error {
	char detail[QMP_DETAIL_MAX];
};

/**
 * One unary call; blocks until the answer or @p deadline. @p response is freed
 * with qmp_message_free. @p error may be NULL. The status is the peer's own where
 * it sent one ("qmla-status"), else mapped from the gRPC code.
 */
qmla_status_t qmp_channel_call(struct qmp_channel *channel, const char *path,
			       const ProtobufCMessage *request,
			       const ProtobufCMessageDescriptor *response_type, qmc_time_t deadline,
			       ProtobufCMessage **response, struct qmp_error *error);

/** Starts a unary call without waiting: for calls to several peers at once. */
qmla_status_t qmp_channel_start(struct qmp_channel *channel, const char *path,
				const ProtobufCMessage *request,
				const ProtobufCMessageDescriptor *response_type,
				qmc_time_t deadline, struct qmp_pending **pending);

/** Waits for a started call and frees it. Bounded by the call's own deadline. */
qmla_status_t qmp_pending_wait(struct qmp_pending *pending, ProtobufCMessage **response,
			       struct qmp_error *error);

/** True when qmp_pending_wait would not block. */
bool qmp_pending_done(const struct qmp_pending *pending);

/** Asks the call to end early; qmp_pending_wait must still be called. */
void qmp_pending_cancel(struct qmp_pending *pending);

/** Opens a server stream. */
qmla_status_t qmp_stream_open(struct qmp_channel *channel, const char *path,
			      const ProtobufCMessage *request,
			      const ProtobufCMessageDescriptor *message_type, qmc_time_t deadline,
			      struct qmp_stream **stream);

/**
 * Next message, or NULL in @p message with QMLA_OK at the end of the stream.
 * QMLA_ERR_DEADLINE when @p deadline (of this wait) passes: the stream lives on.
 */
qmla_status_t qmp_stream_next(struct qmp_stream *stream, qmc_time_t deadline,
			      ProtobufCMessage **message, struct qmp_error *error);

/** Ends the stream from another thread: next returns QMLA_ERR_CANCELLED. */
void qmp_stream_cancel(struct qmp_stream *stream);

/** Cancels if still open, drains, frees. Accepts NULL. */
void qmp_stream_close(struct qmp_stream *stream);

/** grpc.health.v1 Check of @p service ("" for the process): OK when serving, QMLA_ERR_UNAVAILABLE
 * when not. */
qmla_status_t qmp_health_check(struct qmp_channel *channel, const char *service,
			       qmc_time_t deadline);

#endif /* QMP_RPC_CLIENT_H */
