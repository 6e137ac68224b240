/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Server's side of one tcp connection: a state machine over a non-blocking
 * socket. A read's bytes are sent from the region, a write's are received into
 * it; nothing is staged. Runs on a reactor thread.
 */
#ifndef QMT_TCP_PEER_H
#define QMT_TCP_PEER_H

#include "transport/blob.h"
#include "transport/gate.h"
#include "transport/reactor.h"

/** What all connections of one server share; outlives them. */
struct qmt_tcp_context {
	struct qmt_identity identity;
	struct qmt_gate *gate;
};

/** For a reactor whose `user` is a struct qmt_tcp_context. */
extern const struct qmt_peer_ops qmt_tcp_peer_ops;

#endif /* QMT_TCP_PEER_H */
