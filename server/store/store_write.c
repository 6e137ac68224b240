/* SPDX-License-Identifier: Apache-2.0 */
/* Reserving slots, and how a ticket ends. */
#include <string.h>

#include "server/store/store_internal.h"

struct reservation {
	struct qms_store *store;
	struct qms_partition *partition;
	uint32_t group;
	bool full; /* a key was refused: so are all new ones after it */
};

/* What a key's presence means to a new writer. Shard locked. */
static qmla_status_t standing(struct qms_partition *partition, uint64_t hash,
			      const struct qms_key *key)
{
	uint32_t number = qms_index_find(partition->index, hash, key);

	if (number == QMS_SLOT_NONE)
		return QMLA_OK;
	if (qms_slot_state(qms_partition_slot(partition, number)) != QMS_SLOT_RESIDENT)
		return QMLA_ERR_BUSY;
	/* Wanted again, even if by a writer. */
	qms_evict_touch(partition->evict, number);
	return QMLA_ERR_ALREADY_EXISTS;
}

static qmla_status_t check_standing(struct qms_partition *partition, uint64_t hash,
				    const struct qms_key *key)
{
	qmla_status_t status;

	qms_index_lock(partition->index, hash);
	status = standing(partition, hash, key);
	qms_index_unlock(partition->index, hash);
	return status;
}

/* The slot belongs to this thread alone until it is in the index. */
static qmla_status_t enter(struct qms_partition *partition, uint64_t hash,
			   const struct qms_key *key, uint32_t number, uint32_t ticket)
{
	struct qms_slot *slot = qms_partition_slot(partition, number);
	qmla_status_t status;

	slot->hash = hash;
	slot->digest = 0;
	atomic_store_explicit(&slot->ticket, ticket, memory_order_relaxed);
	qms_index_lock(partition->index, hash);
	status = standing(partition, hash, key);
	if (status == QMLA_OK)
		qms_index_insert(partition->index, hash, key, number);
	qms_index_unlock(partition->index, hash);
	return status;
}

static qmla_status_t reserve_new(struct reservation *r, uint64_t hash, const struct qms_key *key,
				 struct qms_reserve_entry *entry)
{
	struct qms_partition *partition = r->partition;
	uint64_t generation, ticket;
	uint32_t number, ticket_number;
	qmla_status_t status;

	status = qms_partition_take(partition, &number);
	if (status != QMLA_OK)
		return status;
	generation = qms_slot_generation(qms_partition_slot(partition, number));
	status = qms_ticket_add(r->store->tickets, r->group, number, generation, &ticket,
				&ticket_number);
	if (status != QMLA_OK)
		goto err_give;
	status = enter(partition, hash, key, number, ticket_number);
	if (status != QMLA_OK)
		goto err_retract;     /* another writer came first */
	qms_partition_ref(partition); /* the ticket's */
	*entry = (struct qms_reserve_entry){QMLA_OK, ticket,
					    qms_pool_offset(partition->pool, number),
					    partition->layout.block_bytes, generation};
	return QMLA_OK;

err_retract:
	qms_ticket_retract(r->store->tickets, ticket);
err_give:
	qms_pool_give(partition->pool, number);
	return status;
}

static bool reserve_one(struct reservation *r, const struct qms_key *key,
			struct qms_reserve_entry *entry)
{
	uint64_t hash = qms_index_hash(r->partition->index, key);
	qmla_status_t status = check_standing(r->partition, hash, key);

	*entry = (struct qms_reserve_entry){.status = status};
	if (status == QMLA_OK) {
		status = r->full ? QMLA_ERR_RESOURCE_EXHAUSTED : reserve_new(r, hash, key, entry);
		entry->status = status;
	}
	if (status == QMLA_ERR_RESOURCE_EXHAUSTED) {
		r->full = true;
		qms_count(&r->store->counters.rejected_full, 1);
	} else if (status == QMLA_ERR_BUSY) {
		qms_count(&r->store->counters.busy_writers, 1);
	}
	return status == QMLA_OK;
}

qmla_status_t qms_store_reserve(struct qms_store *store, const struct qms_identity *identity,
				const struct qms_key *keys, size_t count, int64_t lease_ns,
				struct qms_reserve_entry *entries, struct qms_grant *grant)
{
	struct reservation r = {.store = store};
	int64_t granted = qms_store_clamp_lease(store, lease_ns);
	struct qms_capability capability;
	qmc_time_t expiry;
	qmla_status_t status;
	uint64_t reserved = 0;

	r.partition = qms_store_get(store, identity);
	if (!r.partition)
		return QMLA_ERR_NOT_FOUND;
	status = qms_ticket_group_open(store->tickets, r.partition->number, &r.group, &capability);
	if (status != QMLA_OK)
		goto out;
	for (size_t i = 0; i < count; i++)
		reserved += reserve_one(&r, &keys[i], &entries[i]);
	expiry = qmc_clock_after(granted);
	qms_ticket_group_close(store->tickets, r.group, expiry);
	memset(grant, 0, sizeof(*grant));
	if (reserved > 0) {
		grant->granted_ns = granted;
		grant->capability = capability;
		qms_store_expires_at(store, expiry);
	}
	qms_count(&store->counters.reserves, reserved);
out:
	qms_partition_put(r.partition);
	return status;
}

/* Gives up the slot of a ticket that ended without commit. */
static void abandon(struct qms_store *store, const struct qms_ticket_ref *ref)
{
	struct qms_partition *partition = qms_store_borrow(store, ref->owner);
	uint64_t hash = qms_partition_slot(partition, ref->slot)->hash;

	qms_index_lock(partition->index, hash);
	qms_partition_abandon(partition, ref->slot);
	qms_index_unlock(partition->index, hash);
	qms_partition_put(partition); /* the ticket's */
}

void qms_store_ticket_ended(void *user, const struct qms_ticket_ref *ref)
{
	struct qms_store *store = user;

	qms_count(&store->counters.expired_tickets, 1);
	abandon(store, ref);
}

/* Ends a begun ticket without commit: first no new write, then the fence, then the slot. */
static void give_up(struct qms_store *store, const struct qms_ticket_ref *ref)
{
	struct qms_ticket_end end;

	qms_ticket_finish(store->tickets, ref, false, &end);
	/*
	 * The capability still serves the group's other tickets; then a write that
	 * is moving into this slot keeps it in quarantine instead.
	 */
	if (end.last)
		qms_store_fence(store, &end.capability);
	abandon(store, ref);
}

/* False when a write into the slot is still moving; else fills the view. */
static bool look(struct qms_partition *partition, const struct qms_ticket_ref *ref,
		 struct qms_block_view *view)
{
	struct qms_slot *slot = qms_partition_slot(partition, ref->slot);
	bool still;

	qms_index_lock(partition->index, slot->hash);
	still = slot->inflight == 0;
	view->key = *qms_index_key(partition->index, ref->slot);
	qms_index_unlock(partition->index, slot->hash);
	view->data = qms_pool_address(partition->pool, ref->slot);
	view->identity = partition->identity;
	view->layout = partition->layout;
	view->generation = ref->generation;
	return still;
}

static void publish(struct qms_store *store, struct qms_partition *partition,
		    const struct qms_ticket_ref *ref, uint64_t digest)
{
	uint64_t hash = qms_partition_slot(partition, ref->slot)->hash;
	struct qms_ticket_end end;

	qms_index_lock(partition->index, hash);
	qms_partition_publish(partition, ref->slot, digest);
	qms_index_unlock(partition->index, hash);
	qms_ticket_finish(store->tickets, ref, true, &end);
	/* Some ticket of the group ended badly with a write perhaps still moving: cut it off. */
	if (end.last && !end.clean)
		qms_store_fence(store, &end.capability);
	qms_partition_put(partition); /* the ticket's */
	qms_count(&store->counters.commits, 1);
}

qmla_status_t qms_store_commit(struct qms_store *store, uint64_t ticket, uint64_t digest)
{
	const struct qms_store_callbacks *callbacks = &store->config.callbacks;
	struct qms_block_view view = {.digest = digest};
	struct qms_partition *partition;
	struct qms_ticket_ref ref;
	qmla_status_t status = qms_ticket_begin(store->tickets, ticket, qmc_clock_now(), &ref);

	if (status != QMLA_OK)
		return status;
	partition = qms_store_borrow(store, ref.owner);
	if (!look(partition, &ref, &view)) {
		qms_ticket_reopen(store->tickets, &ref);
		return QMLA_ERR_BUSY;
	}
	if (callbacks->verify)
		status = callbacks->verify(callbacks->user, &view);
	if (status == QMLA_OK) {
		publish(store, partition, &ref, digest);
	} else {
		qms_count(&store->counters.corrupt_commits, 1);
		give_up(store, &ref);
	}
	return status;
}

qmla_status_t qms_store_abort(struct qms_store *store, uint64_t ticket)
{
	struct qms_ticket_ref ref;
	qmla_status_t status = qms_ticket_begin(store->tickets, ticket, qmc_clock_now(), &ref);

	if (status == QMLA_OK)
		give_up(store, &ref);
	return status;
}
