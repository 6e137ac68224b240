/* SPDX-License-Identifier: Apache-2.0 */
/** @file What the files of the store share. Private to server/store. */
#ifndef QMS_STORE_INTERNAL_H
#define QMS_STORE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/store/arena.h"
#include "server/store/lease.h"
#include "server/store/partition.h"
#include "server/store/pin.h"
#include "server/store/store.h"
#include "server/store/ticket.h"

/** Relaxed: figures for people. */
struct qms_counters {
	_Atomic uint64_t lookups, hits, reserves, commits, removals, expired_leases;
	_Atomic uint64_t expired_tickets, expired_pins, rejected_full, busy_writers;
	_Atomic uint64_t corrupt_commits, corrupt_reports, dropped_identities, past_evictions;
};

struct qms_store {
	struct qms_store_config config;
	_Atomic int64_t max_lease_ns, default_pin_ns, identity_idle_ns;
	struct qms_arena *arenas[QMS_MAX_IDENTITIES];
	/**
	 * Guards which partitions are open. The pointers are atomic for those that
	 * hold a reference and need no lock: release in open, acquire in borrow.
	 */
	pthread_rwlock_t lock;
	struct qms_partition *_Atomic partitions[QMS_MAX_IDENTITIES];
	struct qms_lease_table *leases;
	struct qms_ticket_table *tickets;
	struct qms_pin_table *pins;
	struct qms_watch_hub *hub;
	_Atomic int64_t armed; /**< when the reaper comes next */
	struct qms_counters counters;
};

static inline void qms_count(_Atomic uint64_t *counter, uint64_t by)
{
	atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/** Partition of @p identity with a user's reference, NULL when it is not open. */
struct qms_partition *qms_store_get(struct qms_store *store, const struct qms_identity *identity);

/** Partition by number with a user's reference, NULL when it is not open. */
struct qms_partition *qms_store_get_number(struct qms_store *store, uint64_t number);

/** Partition by number for a caller that holds a reference already. No lock. */
static inline struct qms_partition *qms_store_borrow(struct qms_store *store, uint32_t number)
{
	return atomic_load_explicit(&store->partitions[number], memory_order_acquire);
}

/** Takes one more reference for a caller that has one. */
static inline void qms_partition_ref(struct qms_partition *partition)
{
	atomic_fetch_add_explicit(&partition->users, 1, memory_order_relaxed);
}

/** Wakes the reaper if it would come later than @p when. */
void qms_store_expires_at(struct qms_store *store, qmc_time_t when);

/** Wanted time within the node's limit; 0 gives the default. */
int64_t qms_store_clamp_lease(const struct qms_store *store, int64_t wanted_ns);

/* Slot callbacks of the tables; @p user is the store. */
void qms_store_lease_ended(void *user, uint32_t owner, uint32_t slot);
void qms_store_ticket_ended(void *user, const struct qms_ticket_ref *ref);
void qms_store_fence(void *user, const struct qms_capability *capability);

#endif /* QMS_STORE_INTERNAL_H */
