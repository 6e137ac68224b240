/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A reactor's insides, for the files that make it up: reactor.c (life),
 * reactor_peer.c (one peer), reactor_thread.c (accepting and the loop).
 */
#ifndef QMT_REACTOR_THREAD_H
#define QMT_REACTOR_THREAD_H

#include <pthread.h>
#include <stdatomic.h>

#include "transport/reactor.h"

LIST_HEAD(qmt_peer_list, qmt_peer);

struct qmt_reactor_thread {
	struct qmt_reactor *reactor;
	pthread_t thread;
	bool started;
	int epoll_fd, wake_fd;
	struct qmt_peer_list peers; /* the thread's own */
	uint32_t busy;              /* of them, those with a stall deadline */
	qmc_time_t check_at;        /* next look at stall deadlines while busy > 0 */
	qmc_time_t accept_at;       /* QMC_TIME_NEVER unless accepting pauses */
	pthread_mutex_t lock;       /* of arrivals */
	struct qmt_peer_list arrivals;
};

struct qmt_reactor {
	struct qmt_reactor_config config;
	/* Counters and the stop flag: relaxed, or ordered by the eventfd write that follows. */
	atomic_uint pending, admitted;
	atomic_bool stop;
	uint32_t next; /* accepting thread's: whose turn it is to get a peer */
	uint32_t count;
	struct qmt_reactor_thread threads[];
};

/** How often stall deadlines are looked at. */
int64_t qmt_reactor_check_step(const struct qmt_reactor *reactor);

/** Ends a peer that is in no list: shuts its socket down, closes it, frees it. */
void qmt_peer_end(struct qmt_reactor *reactor, struct qmt_peer *peer, qmla_status_t status);

/** Takes a peer out of its thread's list and ends it. On the peer's thread. */
void qmt_peer_drop(struct qmt_peer *peer, qmla_status_t status);

/** Body of a thread: serves until the reactor stops, then ends its peers. */
void *qmt_reactor_thread_main(void *thread);

#endif /* QMT_REACTOR_THREAD_H */
