/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A verbs server's insides, for server.c (life, regions), answer.c (offers, figures) and
 * serve.c (the thread).
 */
#ifndef QMT_VERBS_SERVER_INTERNAL_H
#define QMT_VERBS_SERVER_INTERNAL_H

#include <pthread.h>

#include "transport/verbs/rails.h"
#include "transport/verbs/server.h"

LIST_HEAD(qmt_verbs_peer_list, qmt_verbs_peer);

/*
 * The lock guards the lists, the number of peers and the rails. The thread alone
 * takes peers out, so that it may look at them without the lock; it holds none while
 * it calls the owner.
 */
struct qmt_verbs_server {
	const struct qmt_verbs_api *api;
	struct qmt_identity identity;
	struct qmt_server_address address;
	char *spec;
	struct qmt_place place; /* of the first region: what ports are ranked by */
	char pci[16];
	uint32_t max_peers;
	struct qmt_verbs_peer_context context;
	pthread_t thread;
	bool running;
	atomic_bool stop;

	pthread_mutex_t lock;
	struct qmt_rails rails;
	struct qmt_region_list regions;
	struct qmt_verbs_peer_list peers;
	uint32_t peer_count;

	/* The thread's. */
	qmc_time_t reopen_at;
	int64_t reopen_pause;
};

static inline struct qmt_verbs_server *qmt_verbs_server_of(struct qmt_server *server)
{
	return (struct qmt_verbs_server *)server;
}

/** For const functions: the lock and what it guards are not part of what they promise. */
static inline struct qmt_verbs_server *qmt_verbs_server_of_const(const struct qmt_server *server)
{
	return (struct qmt_verbs_server *)(uintptr_t)server;
}

/** Has the thread look at everything. Any thread. */
void qmt_verbs_server_wake(struct qmt_verbs_server *server);

/** The thread; @p server is a struct qmt_verbs_server. Ends all peers when told to stop. */
void *qmt_verbs_server_run(void *server);

/** The rails have been opened: peers use them from now on. The lock is held. */
void qmt_verbs_server_link(struct qmt_verbs_server *server);

#endif /* QMT_VERBS_SERVER_INTERNAL_H */
