/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, dropping and describing the identities of the store. */
#include <string.h>

#include "common/digest.h"
#include "common/log.h"
#include "server/store/store_internal.h"

static void name_identity(const struct qms_identity *identity, char text[17])
{
	qmc_hex_encode(identity->bytes, 8, text);
}

static bool layout_equal(const struct qms_layout *a, const struct qms_layout *b)
{
	return a->format == b->format && a->layers == b->layers &&
	       a->content_dim == b->content_dim && a->rope_dim == b->rope_dim &&
	       a->page_tokens == b->page_tokens && a->version == b->version &&
	       a->fingerprint == b->fingerprint && a->block_bytes == b->block_bytes;
}

static void fill_info(struct qms_partition *partition, struct qms_pool_info *info)
{
	*info = (struct qms_pool_info){
		.identity = partition->identity,
		.layout = partition->layout,
		.region = partition->number,
		.slots = qms_pool_slots(partition->pool),
		.used_slots =
			qms_pool_slots(partition->pool) - qms_pool_free_slots(partition->pool),
		.slot_bytes = qms_pool_slot_bytes(partition->pool),
	};
}

/* A free arena, else that of the identity unused for longest among those that may go. Write-locked.
 */
static qmla_status_t choose_place(struct qms_store *store, uint32_t *place)
{
	qmc_time_t limit = qmc_clock_now() -
			   atomic_load_explicit(&store->identity_idle_ns, memory_order_relaxed);
	qmc_time_t oldest = QMC_TIME_NEVER;
	bool found = false;

	for (uint32_t i = 0; i < store->config.max_identities; i++) {
		struct qms_partition *partition = qms_store_borrow(store, i);
		qmc_time_t used;

		if (!partition) {
			*place = i;
			return QMLA_OK;
		}
		used = atomic_load_explicit(&partition->last_used, memory_order_relaxed);
		if (atomic_load_explicit(&partition->users, memory_order_acquire) == 0 &&
		    used <= limit && used < oldest) {
			oldest = used;
			*place = i;
			found = true;
		}
	}
	return found ? QMLA_OK : QMLA_ERR_RESOURCE_EXHAUSTED;
}

/* Watchers learn that the keys are gone. Write-locked and without users: no lock is needed. */
static void announce_gone(struct qms_partition *partition)
{
	for (uint32_t b = 0; b < qms_index_buckets(partition->index); b++) {
		for (uint32_t s = qms_index_first(partition->index, b); s != QMS_SLOT_NONE;
		     s = qms_index_next(partition->index, s))
			qms_watch_publish(partition->hub, QMS_EVENT_REMOVED, &partition->identity,
					  qms_index_key(partition->index, s));
	}
}

static void drop(struct qms_store *store, uint32_t place)
{
	struct qms_partition *partition = qms_store_borrow(store, place);
	char name[17];

	if (!partition)
		return;
	name_identity(&partition->identity, name);
	qmc_info("store", "identity %s was idle: its pool makes room for another one", name);
	announce_gone(partition);
	if (store->config.callbacks.dropped)
		store->config.callbacks.dropped(store->config.callbacks.user, place);
	qms_count(&store->counters.past_evictions,
		  atomic_load_explicit(&partition->evictions, memory_order_relaxed));
	qms_count(&store->counters.dropped_identities, 1);
	qms_partition_destroy(partition);
	atomic_store_explicit(&store->partitions[place], NULL, memory_order_release);
}

static qmla_status_t open_new(struct qms_store *store, const struct qms_identity *identity,
			      const struct qms_layout *layout, struct qms_partition **partition)
{
	uint64_t arena = qms_arena_bytes(store->arenas[0]);
	uint32_t place = 0;
	qmla_status_t status;
	char name[17];

	name_identity(identity, name);
	if (layout->block_bytes == 0 || layout->block_bytes > arena) {
		qmc_warn_limited(
			"store",
			"identity %s: a block of %llu bytes does not fit its share of %llu "
			"bytes; raise --pool-size or lower --max-identities",
			name, (unsigned long long)layout->block_bytes, (unsigned long long)arena);
		return QMLA_ERR_TOO_LARGE;
	}
	status = choose_place(store, &place);
	if (status != QMLA_OK) {
		qmc_warn_limited("store",
				 "identity %s: all %u pools are in use; raise --max-identities or "
				 "wait until one is idle",
				 name, store->config.max_identities);
		return status;
	}
	drop(store, place);
	status = qms_partition_create(place, store->arenas[place], identity, layout, store->hub,
				      store->config.max_leased_percent, partition);
	if (status != QMLA_OK)
		return status;
	atomic_store_explicit(&(*partition)->last_used, qmc_clock_now(), memory_order_relaxed);
	atomic_store_explicit(&store->partitions[place], *partition, memory_order_release);
	qmc_info("store", "identity %s: pool %u with %u slots of %llu bytes", name, place,
		 qms_pool_slots((*partition)->pool), (unsigned long long)layout->block_bytes);
	return QMLA_OK;
}

qmla_status_t qms_store_open(struct qms_store *store, const struct qms_identity *identity,
			     const struct qms_layout *layout, struct qms_pool_info *info)
{
	struct qms_partition *partition = qms_store_get(store, identity);
	qmla_status_t status = QMLA_OK;
	char name[17];

	if (!partition) {
		pthread_rwlock_wrlock(&store->lock);
		for (uint32_t i = 0; i < store->config.max_identities; i++) {
			struct qms_partition *p = qms_store_borrow(store, i);

			if (p && memcmp(&p->identity, identity, sizeof(*identity)) == 0)
				partition = p;
		}
		if (!partition)
			status = open_new(store, identity, layout, &partition);
		if (status == QMLA_OK)
			qms_partition_ref(partition);
		pthread_rwlock_unlock(&store->lock);
	}
	if (status != QMLA_OK)
		return status;
	if (layout_equal(&partition->layout, layout)) {
		fill_info(partition, info);
	} else {
		name_identity(identity, name);
		qmc_warn_limited("store",
				 "identity %s is open with layout %016llx, a client wants %016llx: "
				 "refused",
				 name, (unsigned long long)partition->layout.fingerprint,
				 (unsigned long long)layout->fingerprint);
		status = QMLA_ERR_LAYOUT_MISMATCH;
	}
	qms_partition_put(partition);
	return status;
}

void qms_store_pools(struct qms_store *store, struct qms_pool_info *infos, size_t *count)
{
	size_t room = *count;
	size_t filled = 0;

	pthread_rwlock_rdlock(&store->lock);
	for (uint32_t i = 0; i < store->config.max_identities && filled < room; i++) {
		struct qms_partition *partition = qms_store_borrow(store, i);

		if (partition)
			fill_info(partition, &infos[filled++]);
	}
	pthread_rwlock_unlock(&store->lock);
	*count = filled;
}

static uint64_t get(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static void add_partition(struct qms_partition *partition, struct qms_store_stats *stats)
{
	uint64_t used = qms_pool_slots(partition->pool) - qms_pool_free_slots(partition->pool);

	stats->identities++;
	stats->slots += qms_pool_slots(partition->pool);
	stats->used_bytes += used * qms_pool_slot_bytes(partition->pool);
	stats->blocks += atomic_load_explicit(&partition->resident, memory_order_relaxed);
	stats->inflight += atomic_load_explicit(&partition->inflight, memory_order_relaxed);
	stats->evictions += get(&partition->evictions);
}

void qms_store_stats(struct qms_store *store, struct qms_store_stats *stats)
{
	const struct qms_counters *c = &store->counters;

	*stats = (struct qms_store_stats){
		.capacity_bytes = qms_arena_bytes(store->arenas[0]) * store->config.max_identities,
		.leases = qms_lease_count(store->leases),
		.tickets = qms_ticket_count(store->tickets),
		.pins = qms_pin_count(store->pins),
		.watchers = qms_watch_hub_watchers(store->hub),
		.lookups = get(&c->lookups),
		.hits = get(&c->hits),
		.reserves = get(&c->reserves),
		.commits = get(&c->commits),
		.evictions = get(&c->past_evictions),
		.removals = get(&c->removals),
		.expired_leases = get(&c->expired_leases),
		.expired_tickets = get(&c->expired_tickets),
		.expired_pins = get(&c->expired_pins),
		.rejected_full = get(&c->rejected_full),
		.busy_writers = get(&c->busy_writers),
		.corrupt_commits = get(&c->corrupt_commits),
		.corrupt_reports = get(&c->corrupt_reports),
		.lost_watchers = qms_watch_hub_lost(store->hub),
		.dropped_identities = get(&c->dropped_identities),
	};
	pthread_rwlock_rdlock(&store->lock);
	for (uint32_t i = 0; i < store->config.max_identities; i++) {
		struct qms_partition *partition = qms_store_borrow(store, i);

		if (partition)
			add_partition(partition, stats);
	}
	pthread_rwlock_unlock(&store->lock);
}
