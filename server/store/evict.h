/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Chooses which resident slot to give up next: S3-FIFO (Yang et al., SOSP 2023).
 * New keys enter a small queue (a tenth of the slots); those used at least twice
 * before its end move to the main queue, the rest are given up and remembered
 * for a while (ghost); a remembered key that comes back enters main directly.
 * Main gives second chances to what was used.
 *
 * Held slots (leased, pinned, in transfer) that come up are parked outside the
 * queues until their last hold ends, so they are looked at once a hold, not once
 * an eviction. Own lock, taken after an index shard's; every call is O(1) but
 * `next`, which is bounded by QMS_EVICT_CHANCES.
 */
#ifndef QMS_EVICT_H
#define QMS_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#define QMS_EVICT_CHANCES 128u

struct qms_evict;

/** A slot taken off the queues to be examined; give it to exactly one of park, forget or (if it
 * changed meanwhile) nobody. */
struct qms_evict_candidate {
	uint32_t slot;
	bool young; /**< came from the small queue */
	uint64_t generation;
	uint64_t hash;
};

struct qms_evict_counts {
	uint32_t small_slots, main_slots, parked_slots;
};

qmla_status_t qms_evict_create(uint32_t slots, struct qms_evict **evict);
void qms_evict_destroy(struct qms_evict *evict); /**< accepts NULL */

/** Enters a slot that became resident. */
void qms_evict_insert(struct qms_evict *evict, uint32_t slot, uint64_t generation, uint64_t hash);

/** Notes a use of @p slot. Lock-free. */
void qms_evict_touch(struct qms_evict *evict, uint32_t slot);

/** Starts loading what a touch of @p slot needs. Lock-free. */
void qms_evict_prefetch(const struct qms_evict *evict, uint32_t slot);

/** Takes out a slot that ceases to be resident, wherever it is. */
void qms_evict_remove(struct qms_evict *evict, uint32_t slot);

/** Takes the next candidate off the queues; false when they are empty. */
bool qms_evict_next(struct qms_evict *evict, struct qms_evict_candidate *candidate);

/** The candidate is held: sets it aside. Slot's shard locked. */
void qms_evict_park(struct qms_evict *evict, const struct qms_evict_candidate *candidate);

/** The last hold of a parked slot ended: back to the old end of its queue. Slot's shard locked. */
void qms_evict_unpark(struct qms_evict *evict, uint32_t slot);

/** The candidate was given up. */
void qms_evict_forget(struct qms_evict *evict, const struct qms_evict_candidate *candidate);

/** Lengths of the queues. */
void qms_evict_count(struct qms_evict *evict, struct qms_evict_counts *counts);

/** Walks links and counters; false with a reason when they do not fit. @p member[slot] is set to 1
 * for every slot in a queue or parked. */
bool qms_evict_check(struct qms_evict *evict, uint8_t *member, const char **why);

#endif /* QMS_EVICT_H */
