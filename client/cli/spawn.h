/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Starts one of our servers beside this program on a free port of loopback, for
 * benchmarks. The child ends with this process, come what may. Main thread only.
 */
#ifndef QMW_SPAWN_H
#define QMW_SPAWN_H

#include <sys/types.h>

#include <qmla/status.h>

#define QMW_SPAWN_ARGUMENTS 32

struct qmw_child {
	pid_t pid; /**< 0: none */
	char address[64];
	char folder[64]; /**< of its port file and log */
};

/**
 * Runs @p program from this program's own folder with @p arguments
 * (NULL-terminated), --listen and --port-file, and waits until it serves.
 * QMLA_ERR_NOT_FOUND: no such program; QMLA_ERR_UNAVAILABLE: it ended, or did not
 * serve within 60 s (its last words are printed).
 */
qmla_status_t qmw_spawn(const char *program, const char *const *arguments, struct qmw_child *child);

/** SIGTERM, then SIGKILL after 10 s; removes its files. A child that was never started is fine. */
void qmw_spawn_end(struct qmw_child *child);

#endif /* QMW_SPAWN_H */
