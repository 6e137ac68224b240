/* SPDX-License-Identifier: Apache-2.0 */
/* Finding blocks, leasing them, and the transfers that read or write them. */
#include <string.h>

#include "server/store/store_internal.h"

/* Keys loaded ahead of use. */
#define AHEAD 32u

struct lookup {
	struct qms_store *store;
	struct qms_partition *partition;
	struct qms_lease *lease; /* NULL: presence only */
	bool leased_any;
};

void qms_store_lease_ended(void *user, uint32_t owner, uint32_t number)
{
	struct qms_partition *partition = qms_store_borrow(user, owner);
	struct qms_slot *slot = qms_partition_slot(partition, number);
	uint64_t hash = slot->hash; /* does not change while the lease holds the slot */

	qms_index_lock(partition->index, hash);
	if (--slot->leases == 0) {
		atomic_fetch_sub_explicit(&partition->leased, 1, memory_order_relaxed);
		qms_partition_settle(partition, number);
	}
	qms_index_unlock(partition->index, hash);
}

/* False when the slot would be one leased slot too many. Shard locked. */
static bool lease_slot(struct lookup *lookup, struct qms_slot *slot, uint32_t number)
{
	struct qms_partition *partition = lookup->partition;

	if (slot->leases == 0) {
		/* Other shards may count at the same time: add first, take back if too many. */
		if (atomic_fetch_add_explicit(&partition->leased, 1, memory_order_relaxed) >=
		    partition->max_leased) {
			atomic_fetch_sub_explicit(&partition->leased, 1, memory_order_relaxed);
			return false;
		}
	}
	slot->leases++;
	qms_lease_add(lookup->store->leases, lookup->lease, number);
	lookup->leased_any = true;
	return true;
}

static void lookup_locked(struct lookup *lookup, uint64_t hash, const struct qms_key *key,
			  struct qms_lookup_entry *entry)
{
	struct qms_partition *partition = lookup->partition;
	uint32_t number = qms_index_find(partition->index, hash, key);
	struct qms_slot *slot;

	*entry = (struct qms_lookup_entry){.status = QMLA_ERR_NOT_FOUND};
	if (number == QMS_SLOT_NONE)
		return;
	slot = qms_partition_slot(partition, number);
	if (qms_slot_state(slot) != QMS_SLOT_RESIDENT)
		return;
	if (lookup->lease && !lease_slot(lookup, slot, number)) {
		entry->status = QMLA_ERR_RESOURCE_EXHAUSTED;
		return;
	}
	qms_evict_touch(partition->evict, number);
	*entry = (struct qms_lookup_entry){
		.status = QMLA_OK,
		.offset = qms_pool_offset(partition->pool, number),
		.length = partition->layout.block_bytes,
		.generation = qms_slot_generation(slot),
		.digest = slot->digest,
	};
}

static qmla_status_t lookup_one(struct lookup *lookup, uint64_t hash, const struct qms_key *key,
				struct qms_lookup_entry *entry)
{
	if (lookup->lease) {
		/* Before the shard's lock: the lease table's own comes first in the order. */
		qmla_status_t status = qms_lease_make_room(lookup->store->leases, lookup->lease);

		if (status != QMLA_OK)
			return status;
	}
	qms_index_lock(lookup->partition->index, hash);
	lookup_locked(lookup, hash, key, entry);
	qms_index_unlock(lookup->partition->index, hash);
	return QMLA_OK;
}

static void all_missing(struct qms_lookup_entry *entries, size_t count)
{
	for (size_t i = 0; i < count; i++)
		entries[i] = (struct qms_lookup_entry){.status = QMLA_ERR_NOT_FOUND};
}

/*
 * A lookup is bound by memory: bucket, entry, slot and eviction node each miss the
 * cache in a large pool. Loading those of many keys at once hides most of it.
 */
static void load_ahead(const struct lookup *lookup, const struct qms_key *keys, size_t count,
		       uint64_t *hashes)
{
	struct qms_partition *partition = lookup->partition;

	for (size_t i = 0; i < count; i++) {
		hashes[i] = qms_index_hash(partition->index, &keys[i]);
		qms_index_prefetch(partition->index, hashes[i]);
	}
	for (size_t i = 0; i < count; i++) {
		uint32_t guess = qms_index_guess(partition->index, hashes[i]);

		if (guess == QMS_SLOT_NONE)
			continue;
		__builtin_prefetch(qms_partition_slot(partition, guess), 1);
		qms_evict_prefetch(partition->evict, guess);
	}
}

static qmla_status_t lookup_all(struct lookup *lookup, const struct qms_key *keys, size_t count,
				bool stop_at_hole, struct qms_lookup_entry *entries)
{
	uint64_t hashes[AHEAD];
	uint64_t hits = 0;
	qmla_status_t status;

	for (size_t i = 0; i < count; i++) {
		if (i % AHEAD == 0)
			load_ahead(lookup, &keys[i], count - i < AHEAD ? count - i : AHEAD, hashes);
		status = lookup_one(lookup, hashes[i % AHEAD], &keys[i], &entries[i]);
		if (status != QMLA_OK)
			return status;
		hits += entries[i].status == QMLA_OK;
		if (stop_at_hole && entries[i].status != QMLA_OK) {
			all_missing(entries + i + 1, count - i - 1);
			break;
		}
	}
	qms_count(&lookup->store->counters.hits, hits);
	return QMLA_OK;
}

static void grant_lease(struct lookup *lookup, int64_t lease_ns, struct qms_grant *grant)
{
	struct qms_store *store = lookup->store;
	int64_t granted = qms_store_clamp_lease(store, lease_ns);
	qmc_time_t expiry = qmc_clock_after(granted);
	struct qms_lease_grant made;

	qms_partition_ref(lookup->partition); /* the lease's */
	qms_lease_grant(store->leases, lookup->lease, expiry, &made);
	*grant = (struct qms_grant){made.id, granted, made.capability};
	qms_store_expires_at(store, expiry);
}

qmla_status_t qms_store_lookup(struct qms_store *store, const struct qms_identity *identity,
			       const struct qms_key *keys, size_t count, int64_t lease_ns,
			       bool stop_at_hole, struct qms_lookup_entry *entries,
			       struct qms_grant *grant)
{
	struct lookup lookup = {.store = store};
	qmla_status_t status = QMLA_OK;

	memset(grant, 0, sizeof(*grant));
	qms_count(&store->counters.lookups, count);
	lookup.partition = qms_store_get(store, identity);
	if (!lookup.partition)
		return QMLA_ERR_NOT_FOUND;
	if (lease_ns > 0)
		status = qms_lease_begin(store->leases, lookup.partition->number, &lookup.lease);
	if (status == QMLA_OK)
		status = lookup_all(&lookup, keys, count, stop_at_hole, entries);
	if (status == QMLA_OK && lookup.leased_any)
		grant_lease(&lookup, lease_ns, grant);
	else if (lookup.lease)
		qms_lease_cancel(store->leases, lookup.lease, qms_store_lease_ended, store);
	qms_partition_put(lookup.partition);
	return status;
}

qmla_status_t qms_store_renew(struct qms_store *store, uint64_t lease, int64_t lease_ns,
			      int64_t *granted_ns)
{
	int64_t granted = qms_store_clamp_lease(store, lease_ns);
	qmc_time_t expiry = qmc_clock_after(granted);
	qmla_status_t status = qms_lease_renew(store->leases, lease, qmc_clock_now(), expiry);

	if (status != QMLA_OK)
		return status;
	*granted_ns = granted;
	return QMLA_OK;
}

qmla_status_t qms_store_release(struct qms_store *store, uint64_t lease)
{
	uint32_t owner;
	qmla_status_t status =
		qms_lease_release(store->leases, lease, qms_store_lease_ended, store, &owner);

	if (status == QMLA_OK)
		qms_partition_put(qms_store_borrow(store, owner));
	return status;
}

/* --- transfers --- */

static void hold(struct qms_store *store, uint32_t owner, uint32_t number)
{
	struct qms_partition *partition = qms_store_borrow(store, owner);
	struct qms_slot *slot = qms_partition_slot(partition, number);

	qms_index_lock(partition->index, slot->hash);
	slot->inflight++;
	qms_index_unlock(partition->index, slot->hash);
}

static void hold_leased(void *user, uint32_t owner, uint32_t number)
{
	hold(user, owner, number);
}

static void hold_ticketed(void *user, const struct qms_ticket_ref *ref)
{
	hold(user, ref->owner, ref->slot);
}

static qmla_status_t authorize(struct qms_store *store, struct qms_partition *partition, bool write,
			       uint32_t number, const struct qms_capability *capability)
{
	qmc_time_t now = qmc_clock_now();
	struct qms_ticket_ref ref = {.owner = partition->number, .slot = number};

	if (!write)
		return qms_lease_access(store->leases, capability, partition->number, number, now,
					hold_leased, store);
	/* Relaxed: only a hint, the ticket table checks it. */
	ref.number = atomic_load_explicit(&qms_partition_slot(partition, number)->ticket,
					  memory_order_relaxed);
	return qms_ticket_access(store->tickets, capability, &ref, now, hold_ticketed, store);
}

qmla_status_t qms_store_access_begin(struct qms_store *store, bool write, uint64_t region,
				     uint64_t offset, uint64_t length,
				     const struct qms_capability *capability, uint64_t *token)
{
	struct qms_partition *partition = qms_store_get_number(store, region);
	qmla_status_t status;
	uint32_t number;

	if (!partition)
		return QMLA_ERR_PERMISSION;
	status = qms_pool_locate(partition->pool, offset, length, &number);
	if (status == QMLA_OK)
		status = authorize(store, partition, write, number, capability);
	if (status != QMLA_OK) {
		qms_partition_put(partition);
		return status;
	}
	atomic_fetch_add_explicit(&partition->inflight, 1, memory_order_relaxed);
	*token = (uint64_t)partition->number << 32 | number;
	return QMLA_OK; /* the reference stays until access_end */
}

void qms_store_access_end(struct qms_store *store, uint64_t token)
{
	struct qms_partition *partition = qms_store_borrow(store, (uint32_t)(token >> 32));
	uint32_t number = (uint32_t)token;
	struct qms_slot *slot = qms_partition_slot(partition, number);
	uint64_t hash = slot->hash; /* does not change while the transfer holds the slot */

	qms_index_lock(partition->index, hash);
	slot->inflight--;
	qms_partition_settle(partition, number);
	qms_index_unlock(partition->index, hash);
	atomic_fetch_sub_explicit(&partition->inflight, 1, memory_order_relaxed);
	qms_partition_put(partition);
}
