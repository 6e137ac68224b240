/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Watches the asynchronous events of open ports on a thread that sleeps until there is
 * one, and tells the queue pairs concerned, each once. Functions: any thread.
 */
#ifndef QMT_VERBS_MONITOR_H
#define QMT_VERBS_MONITOR_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "transport/verbs/qp.h"

struct qmt_monitor;

/** A queue pair that wants to know. Owner's storage; also the user pointer of QP and CQ. */
struct qmt_watched {
	const struct qmt_port *port;
	struct qmt_port_state state; /**< what it was made with */
	int wake_fd;                 /**< eventfd written to when it fails; -1: none */
	atomic_int failed;           /**< 0, or 1 + enum ibv_event_type of the first failure */
	LIST_ENTRY(qmt_watched) link;
};

/** @p ports are borrowed and stay where they are. */
qmla_status_t qmt_monitor_create(const struct qmt_port *ports, size_t count,
				 struct qmt_monitor **monitor);

/** Ends the thread; nothing may be watched. Accepts NULL. */
void qmt_monitor_destroy(struct qmt_monitor *monitor);

/** Before the queue pair can fail; @p watched is set up but for `failed`. */
void qmt_monitor_add(struct qmt_monitor *monitor, struct qmt_watched *watched);

/** After its queue pair was destroyed. */
void qmt_monitor_remove(struct qmt_monitor *monitor, struct qmt_watched *watched);

/** True once a device has died for good: whoever opened the ports must open them anew. */
bool qmt_monitor_is_fatal(const struct qmt_monitor *monitor);

/** Why @p watched failed, for the log; NULL while it did not. */
const char *qmt_watched_reason(const struct qmt_watched *watched);

#endif /* QMT_VERBS_MONITOR_H */
