/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Tells watchers which keys came and went. Each watcher has a ring of fixed
 * size; one that does not keep up loses the whole ring and is told so: the store
 * never waits for a watcher. Own lock, taken after an index shard's.
 */
#ifndef QMS_WATCH_H
#define QMS_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "common/clock.h"
#include "server/store/types.h"

enum qms_event_kind { QMS_EVENT_INSERTED = 1, QMS_EVENT_REMOVED = 2 };

struct qms_event {
	enum qms_event_kind kind;
	struct qms_key key;
	struct qms_identity identity;
};

struct qms_watch_hub;
struct qms_watcher;

/** At most @p watchers at a time, each with a ring of @p ring events. */
qmla_status_t qms_watch_hub_create(uint32_t watchers, uint32_t ring, struct qms_watch_hub **hub);
/** Every watcher must have been closed. Accepts NULL. */
void qms_watch_hub_destroy(struct qms_watch_hub *hub);

/** Hands an event to the watchers it concerns. Never blocks for a watcher. Any thread. */
void qms_watch_publish(struct qms_watch_hub *hub, enum qms_event_kind kind,
		       const struct qms_identity *identity, const struct qms_key *key);

/** Wakes every watcher: qms_watcher_next returns QMLA_ERR_CANCELLED from now on. */
void qms_watch_hub_stop(struct qms_watch_hub *hub);

/** Undoes the stop for watchers to come. Those that were stopped must have been closed. */
void qms_watch_hub_resume(struct qms_watch_hub *hub);

/** Watches @p identity, NULL: all. QMLA_ERR_RESOURCE_EXHAUSTED: too many watchers;
 * QMLA_ERR_DRAINING: the hub was stopped. */
qmla_status_t qms_watcher_open(struct qms_watch_hub *hub, const struct qms_identity *identity,
			       struct qms_watcher **watcher);

/** Accepts NULL. No other call on it may be running. */
void qms_watcher_close(struct qms_watcher *watcher);

/**
 * Takes up to @p max events, waiting for the first until @p deadline.
 * QMLA_ERR_DEADLINE: nothing came; QMLA_ERR_STALE: events were lost, those
 * waiting are gone too; QMLA_ERR_CANCELLED: the hub was stopped.
 */
qmla_status_t qms_watcher_next(struct qms_watcher *watcher, qmc_time_t deadline,
			       struct qms_event *events, size_t max, size_t *count);

uint32_t qms_watch_hub_watchers(struct qms_watch_hub *hub);
/** Watchers that lost their events so far. */
uint64_t qms_watch_hub_lost(struct qms_watch_hub *hub);

#endif /* QMS_WATCH_H */
