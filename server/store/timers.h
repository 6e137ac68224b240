/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Expiry times of the entries of a table: a binary heap of fixed capacity, one
 * timer a table entry. The owner's lock guards it; nothing here blocks or
 * allocates after creation.
 */
#ifndef QMS_TIMERS_H
#define QMS_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "common/clock.h"

struct qms_timers;

/** For entries numbered 0 … @p capacity - 1. */
qmla_status_t qms_timers_create(uint32_t capacity, struct qms_timers **timers);
void qms_timers_destroy(struct qms_timers *timers); /**< accepts NULL */

/** Sets or moves the timer of @p entry. O(log n). */
void qms_timers_set(struct qms_timers *timers, uint32_t entry, qmc_time_t when);

/** Takes the timer of @p entry away, if it has one. O(log n). */
void qms_timers_clear(struct qms_timers *timers, uint32_t entry);

/** Time of @p entry's timer, QMC_TIME_NEVER when it has none. */
qmc_time_t qms_timers_get(const struct qms_timers *timers, uint32_t entry);

/** Earliest time set, QMC_TIME_NEVER when there is none. */
qmc_time_t qms_timers_next(const struct qms_timers *timers);

/** True, with the entry, when the earliest timer is at or before @p now. It stays set. */
bool qms_timers_due(const struct qms_timers *timers, qmc_time_t now, uint32_t *entry);

#endif /* QMS_TIMERS_H */
