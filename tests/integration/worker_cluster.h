/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Real processes for the worker tests: starts qmla-node and qmla-worker on
 * loopback, waits for their health, stops them. A test's main thread only.
 */
#ifndef WORKER_CLUSTER_H
#define WORKER_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <qmla/status.h>

#include "proto/rpc_client.h"

#define CLUSTER_PROCESSES 8

struct process {
	char name[32];
	char address[64]; /**< "127.0.0.1:port", or "[::1]:port" when it listens there */
	char log[512];
	char port_file[512];
	pid_t pid; /**< 0: not running */
};

struct cluster {
	char folder[256];
	struct process processes[CLUSTER_PROCESSES];
	uint32_t count;
	const struct qmp_tls *tls; /**< of the health checks; NULL: plain text */
};

/** Makes the folder; false with a printed reason when the programs are not built. */
bool cluster_open(struct cluster *cluster);

/** Kills what still runs, prints the logs when @p failed, removes the folder. */
void cluster_close(struct cluster *cluster, bool failed);

/**
 * Starts PROGRAM with @p arguments (NULL-terminated), --listen on a free port of
 * loopback (or on @p listen) and --port-file; returns once grpc.health.v1 says
 * serving. NULL when it does not within 20 s.
 */
struct process *cluster_start(struct cluster *cluster, const char *name, const char *listen,
			      const char *program, const char *const *arguments);

/** As above, but waits for nothing: the caller says --listen and --port-file itself, if at all. */
struct process *cluster_spawn(struct cluster *cluster, const char *name, const char *program,
			      const char *const *arguments);

/** A node with @p pool_size ("64MiB"). */
struct process *cluster_node(struct cluster *cluster, const char *name, const char *pool_size);

/** A worker on tests/data/mla-s; @p more are further flags, NULL-terminated or NULL. */
struct process *cluster_worker(struct cluster *cluster, const char *role, const char *nodes,
			       const char *prefill, const char *const *more);

/** Sends @p signal. */
void process_signal(const struct process *process, int signal);

/** SIGKILL, and waits for the end. */
void process_kill(struct process *process);

/** SIGTERM; the exit status, or -1 when it did not end within 60 s or by itself. */
int process_stop(struct process *process);

/** Waits up to @p ms for the end by itself: exit status, 128 + n for a signal, -1: it goes on. */
int process_wait(struct process *process, int ms);

/** True once @p text is in the process's log; waits up to 5 s for it. */
bool process_says(const struct process *process, const char *text);

/** True when @p text is in the process's log. */
bool process_logged(const struct process *process, const char *text);

#endif /* WORKER_CLUSTER_H */
