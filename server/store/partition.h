/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * One identity's part of the store: its slots, index and eviction, and the
 * transitions of a slot's life that touch all three. Private to the store.
 *
 * Locks, always taken in this order:
 *   store's rwlock → lease or ticket table → index shard → pin table, eviction, pool, watch hub
 */
#ifndef QMS_PARTITION_H
#define QMS_PARTITION_H

#include <stdatomic.h>

#include "server/store/evict.h"
#include "server/store/index.h"
#include "server/store/pool.h"
#include "server/store/store.h"

struct qms_partition {
	uint32_t number; /**< of the arena */
	struct qms_identity identity;
	struct qms_layout layout;
	struct qms_pool *pool;
	struct qms_index *index;
	struct qms_evict *evict;
	struct qms_watch_hub *hub; /**< borrowed */
	uint32_t max_leased;
	/**
	 * Leases, tickets, pins, transfers and running calls. Acquire when it is
	 * read as zero, release when it drops: the partition goes only after
	 * everything done under a reference.
	 */
	_Atomic uint32_t users;
	_Atomic int64_t last_used; /**< relaxed: only a hint for choosing whom to drop */
	_Atomic uint32_t resident, leased, inflight; /**< relaxed counters of slots and transfers */
	_Atomic uint64_t evictions;
};

qmla_status_t qms_partition_create(uint32_t number, struct qms_arena *arena,
				   const struct qms_identity *identity,
				   const struct qms_layout *layout, struct qms_watch_hub *hub,
				   uint32_t max_leased_percent, struct qms_partition **partition);
void qms_partition_destroy(struct qms_partition *partition); /**< accepts NULL */

void qms_partition_put(struct qms_partition *partition); /**< gives a user's reference back */

/** Takes a slot for a new block, evicting if none is free. QMLA_ERR_RESOURCE_EXHAUSTED: everything
 * is held. Bounded. No lock held. */
qmla_status_t qms_partition_take(struct qms_partition *partition, uint32_t *number);

/* The rest is called with the slot's shard locked. */

/** A written slot becomes visible. */
void qms_partition_publish(struct qms_partition *partition, uint32_t number, uint64_t digest);

/** A resident slot leaves the index; it is free now or when its holds end. Pins must be gone. */
void qms_partition_withdraw(struct qms_partition *partition, uint32_t number);

/** A reserved slot is given up; it is free now or when the write that is moving ends. */
void qms_partition_abandon(struct qms_partition *partition, uint32_t number);

/** After a hold ended: frees or makes evictable what nothing holds any more. */
void qms_partition_settle(struct qms_partition *partition, uint32_t number);

static inline struct qms_slot *qms_partition_slot(struct qms_partition *partition, uint32_t number)
{
	return qms_pool_slot(partition->pool, number);
}

static inline enum qms_slot_state qms_slot_state(const struct qms_slot *slot)
{
	/* Acquire pairs with the release stores in pool.c. */
	return (enum qms_slot_state)atomic_load_explicit(&slot->state, memory_order_acquire);
}

static inline uint64_t qms_slot_generation(const struct qms_slot *slot)
{
	return atomic_load_explicit(&slot->generation, memory_order_acquire);
}

static inline bool qms_slot_held(const struct qms_slot *slot)
{
	return slot->leases || slot->inflight || slot->pins;
}

#endif /* QMS_PARTITION_H */
