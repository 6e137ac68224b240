/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Notices when gRPC can accept no connection, for want of file descriptors. libgrpc
 * 1.51 then takes the listening socket out of its polling for good: the server
 * goes on with the connections it has, but nobody new gets in. Whoever owns a
 * server can wait here and make it anew. Counts for the whole process.
 */
#ifndef QMP_ACCEPT_WATCH_H
#define QMP_ACCEPT_WATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/** Failures so far. Any thread; does not block. */
uint64_t qmp_accept_failures(void);

/** Blocks until there are others than @p seen or @p stop is set and qmp_accept_watch_wake called.
 * Any thread. */
void qmp_accept_watch_wait(uint64_t seen, const atomic_bool *stop);

/** Makes waiters look at their stop flags. Any thread. */
void qmp_accept_watch_wake(void);

/** Counts one failure. Called from gRPC's log, maybe with its locks held: does not block. */
void qmp_accept_watch_note(void);

#endif /* QMP_ACCEPT_WATCH_H */
