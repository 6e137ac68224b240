/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The open Watch calls of a node: a thread for each, since a client that does not
 * read must hold up nobody else. Their number is bounded by the store's watchers.
 */
#ifndef QMS_WATCH_STREAMS_H
#define QMS_WATCH_STREAMS_H

#include "proto/rpc_server.h"
#include "server/store/store.h"

struct qms_watch_streams;

qmla_status_t qms_watch_streams_create(struct qms_store *store, int64_t heartbeat_ns,
				       struct qms_watch_streams **streams);

/** Ends every stream, refuses new ones and waits for the threads. Accepts NULL. */
void qms_watch_streams_stop(struct qms_watch_streams *streams);

/** After the server that hands over calls is gone. Accepts NULL. */
void qms_watch_streams_destroy(struct qms_watch_streams *streams);

/**
 * Takes the call over: it is ended by the stream's thread, or here on an error,
 * whose status is returned. @p identity NULL: every identity.
 */
qmla_status_t qms_watch_streams_open(struct qms_watch_streams *streams, struct qmp_call *call,
				     const struct qms_identity *identity, bool snapshot);

#endif /* QMS_WATCH_STREAMS_H */
