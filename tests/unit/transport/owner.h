/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The owner of memory in the transport tests: a server of one back end with one
 * region over a memfd, a policy for authorize, and a record of what was allowed
 * and finished. Counters may be read from any thread.
 */
#ifndef OWNER_H
#define OWNER_H

#include <pthread.h>
#include <sys/types.h>

#include "transport/transport.h"

#define OWNER_REGION 7

struct owner {
	const struct qmt_transport_ops *ops;
	struct qmt_server *server;
	struct qmt_server_address address;
	struct qmt_handle handle;
	struct qmt_memory memory;
	char directory[64]; /**< of the shm socket */
	bool fake;          /**< verbs of this process are in use */

	pthread_mutex_t lock;  /* of the rest */
	qmla_status_t policy;  /**< what authorize answers */
	bool check_capability; /**< allow only `capability` */
	uint8_t capability[QMT_CAPABILITY_BYTES];
	uint64_t next_token;
	unsigned asked, allowed, finished_ok, finished_failed, doubly_finished;
	qmla_status_t last_finished;
	uint8_t *token_state; /**< by token: 1 allowed, 2 finished */
};

/** Set by a test that brings its own verbs: owners leave them alone. */
extern bool owner_keeps_verbs;

/** Starts a server over @p bytes of fresh memory; for a forked child: asserts nothing. */
bool owner_create(struct owner *owner, const char *transport, uint64_t bytes, uint32_t max_peers,
		  int64_t idle_timeout_ns);
/** As owner_create without limits; fails the test when it cannot. */
void owner_start(struct owner *owner, const char *transport, uint64_t bytes);
/** As owner_start, with limits. */
void owner_start_with(struct owner *owner, const char *transport, uint64_t bytes,
		      uint32_t max_peers, int64_t idle_timeout_ns);
void owner_stop_server(struct owner *owner);
void owner_stop(struct owner *owner);

/** An endpoint to the owner's server, connected within five seconds. */
struct qmt_endpoint *owner_connect(struct owner *owner);
/** As owner_connect, to @p address and by @p deadline; for what may fail. */
qmla_status_t owner_try(struct owner *owner, const struct qmt_server_address *address,
			qmc_time_t deadline, struct qmt_endpoint **endpoint);

/** An op on the owner's region with a deadline of a minute and capability 1,1,1… */
struct qmt_op owner_op(struct owner *owner, enum qmt_access access, uint64_t offset, void *local,
		       uint64_t length);

/** Allowed accesses that were not finished yet. */
unsigned owner_in_flight(struct owner *owner);
/** Waits at most @p ms until nothing is in flight. */
bool owner_settles(struct owner *owner, int ms);
/** A consistent copy of the counters. */
struct owner owner_snapshot(struct owner *owner);

/**
 * A child process, forked while this one has no threads, that runs @p run with
 * its end of a socket to the parent and exits with what run returns. It is
 * killed with this process.
 */
pid_t child_start(int (*run)(int to_parent, const char *transport), const char *transport,
		  int *to_child);
/** Stops a child (SIGSTOP) and waits until it stands. */
void child_stop(pid_t child);
/** Kills and reaps a child and closes the socket to it. */
void child_kill(pid_t child, int to_child);
/** Waits for the child's exit status; -1 when it was killed by a signal. */
int child_join(pid_t child, int to_child);
/** Sends or receives exactly @p bytes within five seconds. */
bool tell(int fd, const void *data, size_t bytes);
bool hear(int fd, void *data, size_t bytes);

/** For cmocka: the test must leave as many descriptors open as it found. */
int remember_descriptors(void **state);
int check_descriptors(void **state);

/** Reproducible bytes. */
void fill_pattern(void *memory, size_t bytes, uint64_t seed);
/** Open descriptors of this process. */
unsigned open_descriptors(void);
void sleep_ms(int ms);

#endif /* OWNER_H */
