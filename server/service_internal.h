/* SPDX-License-Identifier: Apache-2.0 */
/** @file What the files of the service share. Private to server. */
#ifndef QMS_SERVICE_INTERNAL_H
#define QMS_SERVICE_INTERNAL_H

#include <stdatomic.h>

#include "proto/code.h"
#include "qmla/v1/cache.pb-c.h"
#include "proto/rpc_keeper.h"
#include "server/metrics.h"
#include "server/reaper.h"
#include "server/service.h"
#include "server/watch_streams.h"

#define QMS_MAX_BATCH_KEYS 16384u

/**
 * Serves one call: replies or fails it before returning (a stream may go on) and
 * returns the status that was sent.
 */
typedef qmla_status_t (*qms_method_func_t)(struct qms_service *service, struct qmp_call *call,
					   const ProtobufCMessage *request);

struct qms_method {
	struct qmp_method rpc;
	const char *name;
	qms_method_func_t serve;
};

/** What gRPC hands to the one handler of all methods. */
struct qms_binding {
	struct qms_service *service;
	const struct qms_method *method;
	size_t number;
};

struct qms_service {
	char node_id[QMS_NODE_ID_MAX];
	uint64_t incarnation;
	qmc_time_t started;
	uint32_t max_batch_keys;
	int64_t heartbeat_ns;
	struct qms_store *store;
	struct qms_reaper *reaper;
	struct qms_data_plane *data;
	struct qms_watch_streams *streams;
	struct qmp_keeper *rpc;
	struct qms_metrics metrics;
	/** Relaxed: a call may still see the state of a moment ago. */
	atomic_bool ready, draining;
	_Atomic int64_t drain_deadline;
	struct qms_binding bindings[QMS_METRICS_METHODS];
	struct qmp_service services[QMS_METRICS_METHODS];
};

/** Every method, in the order of the metrics. */
extern const struct qms_method qms_methods[];
extern const size_t qms_method_count;

/* --- requests (request.c) --- */

/** Fails the call with @p status and a text, and returns @p status. */
qmla_status_t qms_refuse(struct qmp_call *call, qmla_status_t status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Each of these fails the call itself when it returns an error. */

qmla_status_t qms_request_identity(struct qmp_call *call, const ProtobufCBinaryData *bytes,
				   struct qms_identity *identity);
/** Copies the keys; @p keys is freed by the caller. At least one, at most the node's batch. */
qmla_status_t qms_request_keys(struct qms_service *service, struct qmp_call *call, size_t count,
			       const ProtobufCBinaryData *bytes, struct qms_key **keys);
/** For lists of other things: 1 … the node's batch. */
qmla_status_t qms_request_count(struct qms_service *service, struct qmp_call *call,
				const char *field, size_t count);

/**
 * Checks the incarnation and the number of @p what in a request, and makes room for a code
 * each, which the caller frees. Anything but QMLA_OK: the call was answered.
 */
qmla_status_t qms_request_codes(struct qms_service *service, struct qmp_call *call,
				uint64_t incarnation, const char *what, size_t count,
				Qmla__V1__Code **codes);
qmla_status_t qms_request_incarnation(struct qms_service *service, struct qmp_call *call,
				      uint64_t incarnation);

/** Milliseconds on the wire as nanoseconds and back (rounded down, never to 0 from more). */
int64_t qms_ns_from_ms(uint32_t ms);
uint32_t qms_ms_from_ns(int64_t ns);

/** Pools as messages. @p storage and @p pointers have room for QMS_MAX_IDENTITIES. */
struct qms_pool_messages {
	struct qms_pool_info infos[QMS_MAX_IDENTITIES];
	Qmla__V1__Layout layouts[QMS_MAX_IDENTITIES];
	Qmla__V1__PoolInfo pools[QMS_MAX_IDENTITIES];
	Qmla__V1__PoolInfo *pointers[QMS_MAX_IDENTITIES];
	size_t count;
};
void qms_pool_messages_fill(struct qms_service *service, struct qms_pool_messages *messages);

/* --- methods --- */

qmla_status_t qms_serve_describe(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_connect(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_stats(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_lookup(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_renew(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_release(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_reserve(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_commit(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_abort(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_remove(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_report(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_pin(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_unpin(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);
qmla_status_t qms_serve_watch(struct qms_service *, struct qmp_call *, const ProtobufCMessage *);

#endif /* QMS_SERVICE_INTERNAL_H */
