/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Serves protobuf-c messages over gRPC core. With rpc_client this is the only
 * place that knows grpc.h; docs/api.md lists what a caller sees.
 *
 * Errors travel as a gRPC status code and, exactly, as the trailing metadata
 * "qmla-status" (decimal qmla_status_t).
 */
#ifndef QMP_RPC_SERVER_H
#define QMP_RPC_SERVER_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "common/clock.h"

struct qmp_server;
struct qmp_call; /**< one call being served */

enum qmp_method_kind { QMP_UNARY, QMP_SERVER_STREAM };

/**
 * @p request is unpacked and within the byte budget; it lives until the handler
 * returns. The handler runs on one of the server's worker threads and may block
 * there for a while. For a unary method it calls qmp_call_reply or
 * qmp_call_fail exactly once, then or later, on any thread. For a stream it
 * calls qmp_call_send any number of times, then qmp_call_fail or qmp_call_finish
 * exactly once. The call object is gone after that.
 */
typedef void (*qmp_handler_func_t)(void *service, struct qmp_call *call,
				   const ProtobufCMessage *request);

struct qmp_method {
	const char *path; /**< "/qmla.v1.Cache/Lookup" */
	enum qmp_method_kind kind;
	const ProtobufCMessageDescriptor *request;
	qmp_handler_func_t handler;
};

struct qmp_service {
	const struct qmp_method *methods;
	size_t count;
	void *object; /**< handed to the handlers */
};

struct qmp_tls {
	const char *ca_file, *certificate_file, *key_file;
};

struct qmp_server_config {
	const char *listen;         /**< "host:port", "[::]:0"; port 0: chosen */
	uint32_t threads;           /**< handlers at a time, 0: default 4 */
	uint32_t max_message_bytes; /**< 0: 1 MiB */
	uint32_t max_unpack_bytes;  /**< memory one request may take unpacked, 0: 16 times
				       max_message_bytes */
	uint32_t max_queued_calls;  /**< more are answered RESOURCE_EXHAUSTED, 0: 1024 */
	const struct qmp_tls *tls;  /**< NULL: plain text */
};

/**
 * Binds, registers @p services and the health service, starts serving.
 * QMLA_ERR_BUSY: the address is in use (logged with the address). @p services and
 * what they point to must outlive the server.
 */
qmla_status_t qmp_server_create(const struct qmp_server_config *config,
				const struct qmp_service *services, size_t count,
				struct qmp_server **server);

/** The port really bound. */
uint16_t qmp_server_port(const struct qmp_server *server);

/** Sets what grpc.health.v1 answers for "" and for every service. Starts as NOT_SERVING. */
void qmp_server_set_serving(struct qmp_server *server, bool serving);

/**
 * Graceful stop: no new calls, waits up to @p grace_ns for running ones, then
 * cancels them, waits for handlers to end, frees. Accepts NULL.
 */
void qmp_server_destroy(struct qmp_server *server, int64_t grace_ns);

/** Unary: sends @p response with status OK. The message is packed before it returns. */
void qmp_call_reply(struct qmp_call *call, const ProtobufCMessage *response);

/** Ends a unary or stream call with an error; @p detail is shown to the caller. */
void qmp_call_fail(struct qmp_call *call, qmla_status_t status, const char *detail, ...)
	__attribute__((format(printf, 3, 4)));

/**
 * Stream: sends one message; blocks until the one before it has left (flow
 * control) or @p deadline passes. QMLA_ERR_CANCELLED: the client is gone;
 * QMLA_ERR_DEADLINE: the client does not read. One thread at a time.
 */
qmla_status_t qmp_call_send(struct qmp_call *call, const ProtobufCMessage *message,
			    qmc_time_t deadline);

/** Stream: ends it with OK. */
void qmp_call_finish(struct qmp_call *call);

/**
 * True once the client cancelled or went away, its deadline passed, or the server
 * shuts down and the grace period is over. The call must still be ended.
 */
bool qmp_call_cancelled(const struct qmp_call *call);

/**
 * True once the server has begun to shut down: work that ends by itself may go
 * on through the grace period, an endless stream should end now.
 */
bool qmp_call_draining(const struct qmp_call *call);

/** The client's deadline on this process's clock; QMC_TIME_NEVER when it gave none. */
qmc_time_t qmp_call_deadline(const struct qmp_call *call);

/** Numeric address of the peer, for logs. Lives as long as the call. */
const char *qmp_call_peer(const struct qmp_call *call);

#endif /* QMP_RPC_SERVER_H */
