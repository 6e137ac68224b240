/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants of the whole store, for tests: what every table says must agree. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/store/store_internal.h"

struct tally {
	uint32_t *leases; /* a slot, counted in the lease table */
	uint8_t *tickets;
	uint8_t *indexed;
	uint8_t *queued;
};

struct check {
	struct qms_store *store;
	struct qms_partition *partition;
	struct tally tally;
	uint32_t owner;
	uint32_t ticket_count;
	uint32_t counts[QMS_SLOT_QUARANTINED + 1];
	uint64_t leased, inflight, pins;
	char *why;
	size_t size;
};

static bool fail(struct check *check, const char *format, ...)
{
	va_list args;
	int used = snprintf(check->why, check->size, "pool %u: ", check->owner);

	va_start(args, format);
	vsnprintf(check->why + used, check->size - (size_t)used, format, args);
	va_end(args);
	return false;
}

static void count_lease(void *user, uint32_t owner, uint32_t slot)
{
	struct check *check = user;

	if (owner == check->owner)
		check->tally.leases[slot]++;
}

static void count_ticket(void *user, const struct qms_ticket_ref *ref)
{
	struct check *check = user;

	if (ref->owner == check->owner) {
		check->tally.tickets[ref->slot]++;
		check->ticket_count++;
	}
}

static bool check_index(struct check *check)
{
	struct qms_index *index = check->partition->index;

	for (uint32_t b = 0; b < qms_index_buckets(index); b++) {
		for (uint32_t s = qms_index_first(index, b); s != QMS_SLOT_NONE;
		     s = qms_index_next(index, s)) {
			struct qms_slot *slot = qms_partition_slot(check->partition, s);
			uint64_t hash = qms_index_hash(index, qms_index_key(index, s));

			if (check->tally.indexed[s]++)
				return fail(check, "slot %u is in the index twice", s);
			if (slot->hash != hash || (hash & (qms_index_buckets(index) - 1)) != b)
				return fail(check, "slot %u stands in the wrong bucket", s);
			if (qms_index_find(index, hash, qms_index_key(index, s)) != s)
				return fail(check, "slot %u's key is found elsewhere", s);
		}
	}
	return true;
}

static bool check_holds(struct check *check, uint32_t number, struct qms_slot *slot)
{
	if (slot->leases != check->tally.leases[number])
		return fail(check, "slot %u counts %u leases, the table %u", number, slot->leases,
			    check->tally.leases[number]);
	if (slot->pins != qms_pin_list_length(check->store->pins, slot->pin_head))
		return fail(check, "slot %u's pins are miscounted", number);
	if (slot->parked && !qms_slot_held(slot))
		return fail(check, "slot %u is parked but nothing holds it", number);
	check->leased += slot->leases > 0;
	check->inflight += slot->inflight;
	check->pins += slot->pins;
	return true;
}

static bool check_slot(struct check *check, uint32_t number)
{
	struct qms_slot *slot = qms_partition_slot(check->partition, number);
	enum qms_slot_state state = qms_slot_state(slot);
	bool indexed = check->tally.indexed[number];

	check->counts[state]++;
	if (indexed != (state == QMS_SLOT_WRITING || state == QMS_SLOT_RESIDENT))
		return fail(check, "slot %u: state %d does not fit the index", number, (int)state);
	if (check->tally.queued[number] != (state == QMS_SLOT_RESIDENT))
		return fail(check, "slot %u: state %d does not fit the eviction queues", number,
			    (int)state);
	if (check->tally.tickets[number] != (state == QMS_SLOT_WRITING))
		return fail(check, "slot %u: state %d with %u tickets", number, (int)state,
			    check->tally.tickets[number]);
	if ((state == QMS_SLOT_FREE && qms_slot_held(slot)) ||
	    ((state == QMS_SLOT_REMOVED || state == QMS_SLOT_QUARANTINED) && !qms_slot_held(slot)))
		return fail(check, "slot %u: state %d does not fit its holds", number, (int)state);
	if (state != QMS_SLOT_RESIDENT && (slot->parked || slot->pins))
		return fail(check, "slot %u is parked or pinned but not resident", number);
	return check_holds(check, number, slot);
}

static bool check_totals(struct check *check)
{
	struct qms_partition *p = check->partition;
	uint32_t users = atomic_load(&p->users);
	uint64_t holders = check->ticket_count + check->inflight + check->pins;

	if (check->counts[QMS_SLOT_FREE] != qms_pool_free_slots(p->pool))
		return fail(check, "%u slots are free, the pool counts %u",
			    check->counts[QMS_SLOT_FREE], qms_pool_free_slots(p->pool));
	if (check->counts[QMS_SLOT_RESIDENT] != atomic_load(&p->resident))
		return fail(check, "the count of resident slots is wrong");
	if (check->leased != atomic_load(&p->leased) ||
	    check->inflight != atomic_load(&p->inflight))
		return fail(check, "the count of leased or moving slots is wrong");
	/* Leases are counted for all partitions together; each holds one reference. */
	if (users < holders || users - holders > qms_lease_count(check->store->leases))
		return fail(check, "%u references for %llu holders and at most %u leases", users,
			    (unsigned long long)holders, qms_lease_count(check->store->leases));
	return true;
}

/* Orders everything that other threads did under a shard's lock before what follows. */
static void meet_all_shards(struct check *check)
{
	for (uint32_t shard = 0; shard < QMS_INDEX_SHARDS; shard++) {
		qms_index_lock(check->partition->index, shard);
		qms_index_unlock(check->partition->index, shard);
	}
}

static bool check_partition(struct check *check)
{
	uint32_t slots = qms_pool_slots(check->partition->pool);
	const char *reason = "";

	meet_all_shards(check);
	qms_lease_walk(check->store->leases, count_lease, check);
	qms_ticket_walk(check->store->tickets, count_ticket, check);
	if (!qms_evict_check(check->partition->evict, check->tally.queued, &reason))
		return fail(check, "%s", reason);
	if (!check_index(check))
		return false;
	for (uint32_t i = 0; i < slots; i++) {
		if (!check_slot(check, i))
			return false;
	}
	return check_totals(check);
}

static bool check_one(struct qms_store *store, struct qms_partition *partition, char *why,
		      size_t size)
{
	uint32_t slots = qms_pool_slots(partition->pool);
	struct check check = {.store = store,
			      .partition = partition,
			      .owner = partition->number,
			      .why = why,
			      .size = size};
	bool good = false;

	check.tally.leases = calloc(slots, sizeof(uint32_t));
	check.tally.tickets = calloc(slots, 1);
	check.tally.indexed = calloc(slots, 1);
	check.tally.queued = calloc(slots, 1);
	if (!check.tally.leases || !check.tally.tickets || !check.tally.indexed ||
	    !check.tally.queued)
		fail(&check, "no memory for the check");
	else
		good = check_partition(&check);
	free(check.tally.leases);
	free(check.tally.tickets);
	free(check.tally.indexed);
	free(check.tally.queued);
	return good;
}

bool qms_store_check(struct qms_store *store, char *why, size_t size)
{
	for (uint32_t i = 0; i < store->config.max_identities; i++) {
		struct qms_partition *partition = qms_store_borrow(store, i);

		if (partition && !check_one(store, partition, why, size))
			return false;
	}
	return true;
}
