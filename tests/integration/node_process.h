/* SPDX-License-Identifier: Apache-2.0 */
/** @file A real qmla-node process, its log, its ports and its end. A test's main thread only. */
#ifndef NODE_PROCESS_H
#define NODE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct node_process {
	pid_t pid; /**< 0: ended */
	char folder[64];
	char log[128];
	char port_file[128];
	char target[64]; /**< of its gRPC port */
	uint16_t grpc, data, http;
};

/** Path of the program. */
const char *node_program(void);

/**
 * Starts a node with @p flags (NULL-terminated), free ports, a small pool and a
 * port file in a folder of its own. @p prefix is put before the program in a
 * shell ("ulimit -n 64; exec"), NULL: none. Does not wait.
 */
bool node_process_spawn(struct node_process *process, const char *prefix, const char *const *flags);

/** Waits for the port file, at most 20 s. False, with the log, when the node ends before. */
bool node_process_ready(struct node_process *process);

/** Both of the above without prefix. */
bool node_process_start(struct node_process *process, const char *const *flags);

/** Waits up to @p ms for the end: its exit status, -1 when it goes on, 128 + n for a signal. */
int node_process_wait(struct node_process *process, int ms);

/** Kills what still runs, removes the folder. */
void node_process_stop(struct node_process *process);

/** True when the log holds @p text (waits up to 5 s for it). */
bool node_process_says(struct node_process *process, const char *text);

/** GET of @p path on the HTTP port: the status code, and the body in @p body. */
int node_process_get(const struct node_process *process, const char *path, char *body, size_t size);

/** Open file descriptors. */
size_t node_process_descriptors(const struct node_process *process);

/** Seconds of processor time used so far. */
double node_process_cpu(const struct node_process *process);

#endif /* NODE_PROCESS_H */
