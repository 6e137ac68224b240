/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * SIGTERM, SIGINT and SIGHUP of a worker. They are caught by handlers, so that
 * they are right whatever thread the kernel picks: libraries start threads before
 * main (OpenBLAS does) whose masks are not ours to set. SIGPIPE is ignored.
 *
 * A second SIGTERM or SIGINT ends the process at once with status 1.
 *
 * Threads: the main thread, except where said otherwise. Once a process.
 */
#ifndef QMW_SIGNALS_H
#define QMW_SIGNALS_H

#include <stdint.h>

#include <qmla/status.h>

#include "common/port_file.h"

enum qmw_signal {
	QMW_SIGNAL_NONE,
	QMW_SIGNAL_RELOAD, /**< SIGHUP */
	QMW_SIGNAL_END,    /**< SIGTERM or SIGINT came; from then on always this */
};

/** Installs the handlers. The first thing a process does. Logged. */
qmla_status_t qmw_signals_install(void);

/**
 * Between the two, signals wait: threads that are started in between take none, so
 * that their system calls are not interrupted. Signals that came are handled by release.
 */
void qmw_signals_hold(void);
void qmw_signals_release(void);

/** The next signal; NONE when qmw_signals_wake was called or, with @p wait_ns >= 0, when that
 * passed. Blocks. */
enum qmw_signal qmw_signals_next(int64_t wait_ns);

/** Makes qmw_signals_next return. Any thread. */
void qmw_signals_wake(void);

/** Removed when the process is ended at once. @p file lives until the process ends, or NULL. */
void qmw_signals_set_port_file(const struct qmc_port_file *file);

/** Ends the process at once, with status 1, unless it has ended by itself after @p seconds. */
void qmw_signals_end_after(unsigned seconds);

#endif /* QMW_SIGNALS_H */
