/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Server's side of one shm connection. A read is a grant: the access is in
 * flight from the reply until the client says DONE, and the client copies from
 * its read-only mapping meanwhile. A write is copied by this side out of the
 * client's sealed staging memfd. Runs on a reactor thread.
 */
#ifndef QMT_SHM_PEER_H
#define QMT_SHM_PEER_H

#include "transport/blob.h"
#include "transport/gate.h"
#include "transport/reactor.h"

/** What all connections of one server share; outlives them. */
struct qmt_shm_context {
	struct qmt_identity identity;
	struct qmt_gate *gate; /**< regions' fd: the sealed, read-only one that peers get */
};

/** For a reactor whose `user` is a struct qmt_shm_context. */
extern const struct qmt_peer_ops qmt_shm_peer_ops;

#endif /* QMT_SHM_PEER_H */
