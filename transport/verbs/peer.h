/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Server's side of one connection: a queue pair a rail, and the writes under way on
 * each. Reads pass by: the device serves them. A write is asked for by message; the
 * owner's authorize is asked; a memory window over just that range is bound to this
 * queue pair and its rkey sent; when the peer is done the window is invalidated, then
 * `finished` is called, then the peer is told. Without windows the server fetches the
 * bytes from the peer's memory itself.
 *
 * Threads. qmt_verbs_peer_create and qmt_verbs_peer_cut: any, one at a time by the server's lock.
 * The rest: the server's thread only.
 */
#ifndef QMT_VERBS_PEER_H
#define QMT_VERBS_PEER_H

#include "transport/gate.h"
#include "transport/verbs/mail.h"
#include "transport/verbs/monitor.h"

#define QMT_WRITE_DEPTH 16 /**< writes of a peer under way on a rail */

/** A region as one server rail has it: in a protection domain of its own. */
struct qmt_rail_region {
	struct ibv_pd *pd;
	struct qmt_registration registration;
};

struct qmt_verbs_region {
	uint64_t number;
	struct qmt_memory memory;
	enum qmt_write_mode write_mode;
	struct qmt_rail_region rails[QMT_RAILS_MAX];
	SLIST_ENTRY(qmt_verbs_region) link;
};

/** What all peers of a server share; outlives them. */
struct qmt_verbs_peer_context {
	const struct qmt_verbs_api *api;
	struct qmt_identity identity;
	struct qmt_gate *gate;
	const struct qmt_port *ports;
	size_t port_count;
	struct ibv_comp_channel *const *channels; /**< one a port */
	struct qmt_monitor *monitor;
	int wake_fd;
	int64_t idle_timeout_ns;
	_Atomic uint64_t reads, bytes_read; /**< as peers report them */
};

enum qmt_grant_state { GRANT_FREE, GRANT_OPENING, GRANT_OPEN, GRANT_CLOSING, GRANT_PULLING };

#define QMT_WAITING_MAX 64 /**< messages that wait for local work to end */

/** One write under way. */
struct qmt_grant {
	enum qmt_grant_state state;
	bool wanted; /**< its binds or invalidations are still to be posted */
	uint64_t id;
	struct qmt_flight flight;
	qmla_status_t status;                    /**< as the peer says it ended */
	struct ibv_mw *windows[QMT_WINDOWS_MAX]; /**< made on first use, bound again each time */
	uint32_t rkeys[QMT_WINDOWS_MAX];
	size_t bound;
	qmc_time_t deadline;
};

struct qmt_verbs_peer;

struct qmt_verbs_peer_rail {
	struct qmt_watched watched; /**< first: the QP's and CQ's user pointer */
	struct qmt_verbs_peer *peer;
	size_t server_rail;
	bool used, heard, again;
	struct qmt_qp qp;
	struct qmt_mail mail;
	struct qmt_grant grants[QMT_WRITE_DEPTH];
	size_t open; /**< grants not free */
	/* With qmt_port.local_alone: what is posted of either kind, and messages that wait. */
	uint32_t locals, wires;
	struct qmt_message waiting[QMT_WAITING_MAX];
	uint64_t waiting_head, waiting_tail;
	qmc_time_t pinged; /**< when the ping under way was sent; 0: none is */
};

struct qmt_verbs_peer {
	struct qmt_verbs_peer_context *context;
	struct qmt_verbs_region *region;
	uint8_t connection[QMT_CONNECTION_BYTES];
	struct qmt_verbs_peer_rail rails[QMT_RAILS_MAX];
	struct qmt_offer answer;
	qmc_time_t heard; /**< last sign of life */
	bool greeted;
	bool gone;          /**< to be ended */
	qmc_time_t parting; /**< when it will be, having been told; 0: not told */
	qmla_status_t why;
	atomic_bool cut; /**< by qmt_verbs_peer_cut */
	LIST_ENTRY(qmt_verbs_peer) link;
};

/**
 * Makes queue pairs for @p offer, ready to be read through, and the answer.
 * QMLA_ERR_UNSUPPORTED: no rail fits; QMLA_ERR_UNAVAILABLE; QMLA_ERR_RESOURCE_EXHAUSTED.
 */
qmla_status_t qmt_verbs_peer_create(struct qmt_verbs_peer_context *context,
				    struct qmt_verbs_region *region,
				    const struct qmt_verbs_offer *offer,
				    struct qmt_verbs_peer **peer);

/** Error state on every rail: on return it reaches nothing. Its end follows on the thread. */
void qmt_verbs_peer_cut(struct qmt_verbs_peer *peer);

/** Works off what has completed on @p rail; sets `again` when there is more. */
void qmt_verbs_peer_serve(struct qmt_verbs_peer_rail *rail);

/** Looks at failures, fences and times. Returns when to look again. */
qmc_time_t qmt_verbs_peer_tend(struct qmt_verbs_peer *peer, qmc_time_t now);

/** Says goodbye; does not wait until it is out. */
void qmt_verbs_peer_leave(struct qmt_verbs_peer *peer);

/** Takes the queue pairs down, then ends what was under way, frees. */
void qmt_verbs_peer_end(struct qmt_verbs_peer *peer);

#endif /* QMT_VERBS_PEER_H */
