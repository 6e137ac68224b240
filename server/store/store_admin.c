/* SPDX-License-Identifier: Apache-2.0 */
/* Removing, reporting, pinning and walking over keys. */
#include <string.h>

#include "server/store/store_internal.h"

/* A key's slot with its shard locked, for one operation on it. */
struct spot {
	struct qms_partition *partition;
	struct qms_slot *slot;
	uint32_t number;
	uint64_t hash;
};

/* QMLA_ERR_NOT_FOUND: no such visible block, and then nothing is locked. */
static qmla_status_t spot_open(struct qms_store *store, const struct qms_identity *identity,
			       const struct qms_key *key, struct spot *spot)
{
	spot->partition = qms_store_get(store, identity);
	if (!spot->partition)
		return QMLA_ERR_NOT_FOUND;
	spot->hash = qms_index_hash(spot->partition->index, key);
	qms_index_lock(spot->partition->index, spot->hash);
	spot->number = qms_index_find(spot->partition->index, spot->hash, key);
	if (spot->number != QMS_SLOT_NONE) {
		spot->slot = qms_partition_slot(spot->partition, spot->number);
		if (qms_slot_state(spot->slot) == QMS_SLOT_RESIDENT)
			return QMLA_OK;
	}
	qms_index_unlock(spot->partition->index, spot->hash);
	qms_partition_put(spot->partition);
	return QMLA_ERR_NOT_FOUND;
}

static void spot_close(struct spot *spot)
{
	qms_index_unlock(spot->partition->index, spot->hash);
	qms_partition_put(spot->partition);
}

qmla_status_t qms_store_remove(struct qms_store *store, const struct qms_identity *identity,
			       const struct qms_key *key)
{
	struct spot spot;
	qmla_status_t status = spot_open(store, identity, key, &spot);

	if (status != QMLA_OK)
		return status;
	if (spot.slot->pins) {
		status = QMLA_ERR_BUSY;
	} else {
		qms_partition_withdraw(spot.partition, spot.number);
		qms_count(&store->counters.removals, 1);
	}
	spot_close(&spot);
	return status;
}

static void remove_bucket(struct qms_partition *partition, uint32_t bucket, uint64_t *removed,
			  uint64_t *busy)
{
	uint32_t next;

	qms_index_lock(partition->index, bucket);
	for (uint32_t number = qms_index_first(partition->index, bucket); number != QMS_SLOT_NONE;
	     number = next) {
		struct qms_slot *slot = qms_partition_slot(partition, number);

		next = qms_index_next(partition->index, number);
		if (qms_slot_state(slot) != QMS_SLOT_RESIDENT)
			continue;
		if (slot->pins) {
			++*busy;
			continue;
		}
		qms_partition_withdraw(partition, number);
		++*removed;
	}
	qms_index_unlock(partition->index, bucket);
}

void qms_store_remove_all(struct qms_store *store, const struct qms_identity *identity,
			  uint64_t *removed, uint64_t *busy)
{
	struct qms_partition *partition = qms_store_get(store, identity);

	*removed = *busy = 0;
	if (!partition)
		return;
	for (uint32_t b = 0; b < qms_index_buckets(partition->index); b++)
		remove_bucket(partition, b, removed, busy);
	qms_count(&store->counters.removals, *removed);
	qms_partition_put(partition);
}

/* Shard locked. */
static void clear_pins(struct qms_store *store, struct spot *spot)
{
	uint32_t cleared = qms_pin_clear(store->pins, &spot->slot->pin_head);

	spot->slot->pins -= cleared;
	for (; cleared > 0; cleared--)
		qms_partition_put(spot->partition); /* each pin's own; the spot has another */
}

qmla_status_t qms_store_report(struct qms_store *store, const struct qms_identity *identity,
			       const struct qms_key *key, uint64_t generation)
{
	struct spot spot;
	qmla_status_t status = spot_open(store, identity, key, &spot);

	if (status != QMLA_OK)
		return status;
	if (qms_slot_generation(spot.slot) != generation) {
		status = QMLA_ERR_STALE;
	} else {
		/* Nobody's wish to keep it outweighs that it is bad. */
		clear_pins(store, &spot);
		qms_partition_withdraw(spot.partition, spot.number);
		qms_count(&store->counters.corrupt_reports, 1);
	}
	spot_close(&spot);
	return status;
}

static int64_t clamp_pin(const struct qms_store *store, int64_t ttl_ns)
{
	if (ttl_ns <= 0)
		ttl_ns = atomic_load_explicit(&store->default_pin_ns, memory_order_relaxed);
	return ttl_ns < store->config.max_pin_ns ? ttl_ns : store->config.max_pin_ns;
}

qmla_status_t qms_store_pin(struct qms_store *store, const struct qms_identity *identity,
			    const struct qms_key *key, const char *owner, int64_t ttl_ns)
{
	qmc_time_t expiry = qmc_clock_after(clamp_pin(store, ttl_ns));
	struct spot spot;
	bool added = false;
	qmla_status_t status;

	if (owner[0] == '\0' || strlen(owner) >= QMS_OWNER_MAX)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = spot_open(store, identity, key, &spot);
	if (status != QMLA_OK)
		return status;
	status = qms_pin_add(store->pins, spot.partition->number, spot.number, spot.hash,
			     &spot.slot->pin_head, owner, expiry, &added);
	if (added) {
		spot.slot->pins++;
		qms_partition_ref(spot.partition); /* the pin's */
	}
	spot_close(&spot);
	if (status == QMLA_OK)
		qms_store_expires_at(store, expiry);
	return status;
}

qmla_status_t qms_store_unpin(struct qms_store *store, const struct qms_identity *identity,
			      const struct qms_key *key, const char *owner)
{
	struct spot spot;
	qmla_status_t status = spot_open(store, identity, key, &spot);

	if (status != QMLA_OK)
		return status;
	if (qms_pin_remove(store->pins, &spot.slot->pin_head, owner)) {
		spot.slot->pins--;
		qms_partition_settle(spot.partition, spot.number);
		qms_partition_put(spot.partition); /* the pin's */
	} else {
		status = QMLA_ERR_NOT_FOUND;
	}
	spot_close(&spot);
	return status;
}

/* --- walking over the keys --- */

/* Visible keys of one bucket; false when they do not fit and nothing was taken. */
static bool scan_bucket(struct qms_partition *partition, uint32_t bucket, struct qms_event *events,
			size_t room, size_t *taken)
{
	size_t n = 0;
	bool fits = true;

	qms_index_lock(partition->index, bucket);
	for (uint32_t number = qms_index_first(partition->index, bucket);
	     number != QMS_SLOT_NONE && fits; number = qms_index_next(partition->index, number)) {
		if (qms_slot_state(qms_partition_slot(partition, number)) != QMS_SLOT_RESIDENT)
			continue;
		fits = n < room;
		if (fits)
			events[n++] = (struct qms_event){QMS_EVENT_INSERTED,
							 *qms_index_key(partition->index, number),
							 partition->identity};
	}
	qms_index_unlock(partition->index, bucket);
	*taken = fits ? n : 0;
	return fits;
}

static bool wanted(const struct qms_partition *partition, const struct qms_identity *identity)
{
	return !identity || memcmp(&partition->identity, identity, sizeof(*identity)) == 0;
}

size_t qms_store_scan(struct qms_store *store, const struct qms_identity *identity,
		      struct qms_scan *scan, struct qms_event *events, size_t max)
{
	size_t filled = 0;

	for (; scan->region < store->config.max_identities; scan->region++, scan->bucket = 0) {
		struct qms_partition *partition = qms_store_get_number(store, scan->region);
		bool room = true;

		if (!partition)
			continue;
		while (room && wanted(partition, identity) &&
		       scan->bucket < qms_index_buckets(partition->index)) {
			size_t taken;

			room = scan_bucket(partition, scan->bucket, events + filled, max - filled,
					   &taken);
			/* A chain longer than a whole batch cannot arise from a keyed hash. */
			if (room || filled == 0)
				scan->bucket++;
			filled += taken;
		}
		qms_partition_put(partition);
		if (!room && filled > 0)
			break;
	}
	return filled;
}
