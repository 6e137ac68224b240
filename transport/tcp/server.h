/* SPDX-License-Identifier: Apache-2.0 */
/** @file Server functions of the tcp back end; contracts in qmt_transport_ops. */
#ifndef QMT_TCP_SERVER_H
#define QMT_TCP_SERVER_H

#include "transport/transport.h"

/** Starts listening and the serving threads. QMLA_ERR_BUSY: the address is in use. */
qmla_status_t qmt_tcp_server_create(const struct qmt_server_config *config,
				    struct qmt_server **server);

/** Stops, joins the threads, finishes every access. Accepts NULL. */
void qmt_tcp_server_destroy(struct qmt_server *server);

/** What clients need to connect. */
qmla_status_t qmt_tcp_server_address(const struct qmt_server *server,
				     struct qmt_server_address *address);

/** Makes @p memory reachable as @p region; it stays the caller's. */
qmla_status_t qmt_tcp_server_register(struct qmt_server *server, const struct qmt_memory *memory,
				      uint64_t region, struct qmt_handle *handle);

/** On return nothing moves under @p capability any more, and it is refused. Blocks shortly. */
qmla_status_t qmt_tcp_server_fence(struct qmt_server *server,
				   const uint8_t capability[QMT_CAPABILITY_BYTES]);

/** A snapshot of the counters. Any thread. */
void qmt_tcp_server_stats(const struct qmt_server *server, struct qmt_server_stats *stats);

#endif /* QMT_TCP_SERVER_H */
