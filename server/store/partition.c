/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/partition.h"

#include <stdlib.h>

/*
 * Held slots that one call may set aside while it looks for a victim. Each is
 * parked once a hold, so over time this is O(1) an eviction; the bound keeps a
 * single call short.
 */
#define MAX_EXAMINED 8192u

qmla_status_t qms_partition_create(uint32_t number, struct qms_arena *arena,
				   const struct qms_identity *identity,
				   const struct qms_layout *layout, struct qms_watch_hub *hub,
				   uint32_t max_leased_percent, struct qms_partition **partition)
{
	struct qms_partition *made = calloc(1, sizeof(*made));
	qmla_status_t status;
	uint32_t slots;

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	made->number = number;
	made->identity = *identity;
	made->layout = *layout;
	made->hub = hub;
	status = qms_pool_create(arena, layout->block_bytes, &made->pool);
	if (status != QMLA_OK)
		goto err_destroy;
	slots = qms_pool_slots(made->pool);
	made->max_leased = (uint32_t)((uint64_t)slots * max_leased_percent / 100);
	if (made->max_leased == 0)
		made->max_leased = 1;
	status = qms_index_create(slots, &made->index);
	if (status != QMLA_OK)
		goto err_destroy;
	status = qms_evict_create(slots, &made->evict);
	if (status != QMLA_OK)
		goto err_destroy;
	*partition = made;
	return QMLA_OK;

err_destroy:
	qms_partition_destroy(made);
	return status;
}

void qms_partition_destroy(struct qms_partition *partition)
{
	if (!partition)
		return;
	qms_evict_destroy(partition->evict);
	qms_index_destroy(partition->index);
	qms_pool_destroy(partition->pool);
	free(partition);
}

void qms_partition_put(struct qms_partition *partition)
{
	atomic_fetch_sub_explicit(&partition->users, 1, memory_order_release);
}

static void set_state(struct qms_slot *slot, enum qms_slot_state state)
{
	atomic_store_explicit(&slot->state, (uint8_t)state, memory_order_release);
}

/* Takes the slot out of the index and tells the watchers. Shard locked. */
static void disappear(struct qms_partition *partition, uint32_t number)
{
	struct qms_slot *slot = qms_partition_slot(partition, number);

	qms_watch_publish(partition->hub, QMS_EVENT_REMOVED, &partition->identity,
			  qms_index_key(partition->index, number));
	qms_index_remove(partition->index, slot->hash, number);
	atomic_fetch_sub_explicit(&partition->resident, 1, memory_order_relaxed);
}

/*
 * The candidate left the queues without its shard's lock: by now it may have been
 * removed, and even be in another life under another shard. A resident state with
 * the same generation, seen under the lock of the old life's shard, proves that
 * the old life goes on; state is read first because a new life raises the
 * generation before it becomes resident.
 */
static bool claim(struct qms_partition *partition, const struct qms_evict_candidate *candidate)
{
	struct qms_slot *slot = qms_partition_slot(partition, candidate->slot);

	if (qms_slot_state(slot) != QMS_SLOT_RESIDENT ||
	    qms_slot_generation(slot) != candidate->generation)
		return false;
	if (qms_slot_held(slot)) {
		slot->parked = true;
		qms_evict_park(partition->evict, candidate);
		return false;
	}
	disappear(partition, candidate->slot);
	set_state(slot, QMS_SLOT_REMOVED);
	return true;
}

static qmla_status_t evict_one(struct qms_partition *partition, uint32_t *number)
{
	struct qms_evict_candidate candidate;

	for (uint32_t examined = 0; examined < MAX_EXAMINED; examined++) {
		bool mine;

		if (!qms_evict_next(partition->evict, &candidate))
			return QMLA_ERR_RESOURCE_EXHAUSTED;
		qms_index_lock(partition->index, candidate.hash);
		mine = claim(partition, &candidate);
		qms_index_unlock(partition->index, candidate.hash);
		if (mine) {
			qms_evict_forget(partition->evict, &candidate);
			atomic_fetch_add_explicit(&partition->evictions, 1, memory_order_relaxed);
			*number = candidate.slot;
			return QMLA_OK;
		}
	}
	return QMLA_ERR_RESOURCE_EXHAUSTED;
}

qmla_status_t qms_partition_take(struct qms_partition *partition, uint32_t *number)
{
	qmla_status_t status = qms_pool_take(partition->pool, number);

	if (status == QMLA_OK)
		return QMLA_OK;
	status = evict_one(partition, number);
	if (status == QMLA_OK)
		qms_pool_retake(partition->pool, *number);
	return status;
}

void qms_partition_publish(struct qms_partition *partition, uint32_t number, uint64_t digest)
{
	struct qms_slot *slot = qms_partition_slot(partition, number);

	slot->digest = digest;
	slot->parked = false;
	set_state(slot, QMS_SLOT_RESIDENT);
	qms_evict_insert(partition->evict, number, qms_slot_generation(slot), slot->hash);
	atomic_fetch_add_explicit(&partition->resident, 1, memory_order_relaxed);
	qms_watch_publish(partition->hub, QMS_EVENT_INSERTED, &partition->identity,
			  qms_index_key(partition->index, number));
}

void qms_partition_withdraw(struct qms_partition *partition, uint32_t number)
{
	struct qms_slot *slot = qms_partition_slot(partition, number);

	disappear(partition, number);
	qms_evict_remove(partition->evict, number);
	slot->parked = false;
	set_state(slot, QMS_SLOT_REMOVED);
	qms_partition_settle(partition, number);
}

void qms_partition_abandon(struct qms_partition *partition, uint32_t number)
{
	struct qms_slot *slot = qms_partition_slot(partition, number);

	qms_index_remove(partition->index, slot->hash, number);
	set_state(slot, QMS_SLOT_QUARANTINED);
	qms_partition_settle(partition, number);
}

void qms_partition_settle(struct qms_partition *partition, uint32_t number)
{
	struct qms_slot *slot = qms_partition_slot(partition, number);
	enum qms_slot_state state = qms_slot_state(slot);

	if (qms_slot_held(slot))
		return;
	if (state == QMS_SLOT_REMOVED || state == QMS_SLOT_QUARANTINED) {
		qms_pool_give(partition->pool, number);
	} else if (state == QMS_SLOT_RESIDENT && slot->parked) {
		slot->parked = false;
		qms_evict_unpark(partition->evict, number);
	}
}
