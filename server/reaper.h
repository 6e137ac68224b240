/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The thread that ends what expired: leases, tickets and pins. It sleeps until
 * the next expiry and wakes for nothing else.
 */
#ifndef QMS_REAPER_H
#define QMS_REAPER_H

#include "server/store/store.h"

struct qms_reaper;

/** Prepares; nothing runs yet, so that the store can be given qms_reaper_wake first. */
qmla_status_t qms_reaper_create(struct qms_reaper **reaper);

/** Starts the thread for @p store (borrowed until destroy). */
qmla_status_t qms_reaper_start(struct qms_reaper *reaper, struct qms_store *store);

/** Something expires earlier than expected. Any thread; does not block. */
void qms_reaper_wake(void *reaper);

/** Stops and joins the thread. Accepts NULL. */
void qms_reaper_destroy(struct qms_reaper *reaper);

#endif /* QMS_REAPER_H */
