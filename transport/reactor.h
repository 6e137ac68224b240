/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The listening side of a back end that serves over sockets: a few epoll threads,
 * each the only one that touches its peers. The reactor accepts, spreads peers
 * over threads, bounds their number, drops those that stall and ends them all on
 * destroy; what is said on a connection is the back end's (qmt_peer_ops).
 */
#ifndef QMT_REACTOR_H
#define QMT_REACTOR_H

#include <sys/epoll.h>
#include <sys/queue.h>

#include "common/address.h"
#include "transport/transport.h"

struct qmt_reactor;
struct qmt_reactor_thread;

/** One connection; first member of the back end's own struct. */
struct qmt_peer {
	int fd;      /**< the reactor's: it closes it */
	int wake_fd; /**< eventfd of the peer's thread, for qmt_flight.wake_fd */
	char name[QMC_ADDRESS_TEXT_MAX]; /**< for log lines */
	/* The reactor's. */
	struct qmt_reactor_thread *thread;
	uint32_t interest;
	bool admitted;
	qmc_time_t stalls_at;
	uint64_t moved;
	LIST_ENTRY(qmt_peer) link;
};

/** Contract of a back end. All are called on the peer's own thread, except open. */
struct qmt_peer_ops {
	const char *component; /**< for log lines: "tcp" */
	/** Makes the zeroed struct of a new connection; NULL when out of memory. */
	struct qmt_peer *(*open)(void *user);
	/** Moves what can be moved without blocking; false: drop the peer. */
	bool (*ready)(struct qmt_peer *peer);
	/** A fence was raised: end the accesses that qmt_flight_is_fenced names; false: drop. */
	bool (*fenced)(struct qmt_peer *peer);
	/**
	 * The socket was shut down: end every access with @p status and free the
	 * peer. The reactor closes the socket after it.
	 */
	void (*close)(struct qmt_peer *peer, qmla_status_t status);
};

struct qmt_reactor_config {
	const struct qmt_peer_ops *ops;
	void *user;              /**< handed to open */
	int listen_fd;           /**< non-blocking; the reactor's on success */
	uint32_t threads;        /**< 0: as many as processors, at most 4 */
	uint32_t max_peers;      /**< 0: 1024 */
	int64_t idle_timeout_ns; /**< 0: 10 s */
};

/** Starts the threads. QMLA_ERR_NO_MEMORY, QMLA_ERR_RESOURCE_EXHAUSTED. */
qmla_status_t qmt_reactor_create(const struct qmt_reactor_config *config,
				 struct qmt_reactor **reactor);

/** Closes every peer with QMLA_ERR_UNAVAILABLE and joins the threads. Accepts NULL. */
void qmt_reactor_destroy(struct qmt_reactor *reactor);

/** Peers that passed their handshake. Any thread. */
uint64_t qmt_reactor_peers(const struct qmt_reactor *reactor);

/** Handshake passed. False, with nothing changed, when max_peers are there already. */
bool qmt_peer_admit(struct qmt_peer *peer);

/** Waits for EPOLLIN or EPOLLOUT (level-triggered). */
void qmt_peer_want(struct qmt_peer *peer, uint32_t events);

/**
 * The peer owes us something (the rest of a message, room for a reply) and we
 * wait for it: unless this is called again after progress, or qmt_peer_idle,
 * within idle_timeout, the peer is dropped. Progress is 64 KiB or a completed
 * message, so trickled bytes do not keep a message alive.
 */
void qmt_peer_busy(struct qmt_peer *peer);

/** @p bytes more of the message have moved. */
void qmt_peer_progress(struct qmt_peer *peer, uint64_t bytes);

/** A whole message has moved: progress, however small it was. */
void qmt_peer_completed(struct qmt_peer *peer);

/** Between messages: it may stay silent for as long as it likes. */
void qmt_peer_idle(struct qmt_peer *peer);

#endif /* QMT_REACTOR_H */
