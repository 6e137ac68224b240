/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "common/log.h"
#include "server/store/store_internal.h"

static void default_u32(uint32_t *value, uint32_t fallback)
{
	if (*value == 0)
		*value = fallback;
}

static void default_ns(int64_t *value, int64_t fallback)
{
	if (*value <= 0)
		*value = fallback;
}

static void apply_defaults(struct qms_store_config *config)
{
	default_u32(&config->max_identities, 4);
	default_u32(&config->max_leases, 1u << 16);
	default_u32(&config->max_leased_slots, 1u << 20);
	default_u32(&config->max_tickets, 1u << 16);
	default_u32(&config->max_pins, 1u << 16);
	default_u32(&config->max_leased_percent, 100);
	default_u32(&config->max_watchers, 64);
	default_u32(&config->watch_ring, 4096);
	default_ns(&config->max_lease_ns, 60 * QMC_NS_PER_S);
	default_ns(&config->default_lease_ns, 10 * QMC_NS_PER_S);
	default_ns(&config->default_pin_ns, 600 * QMC_NS_PER_S);
	default_ns(&config->max_pin_ns, 24 * 3600 * QMC_NS_PER_S);
}

static qmla_status_t create_arenas(struct qms_store *store)
{
	struct qms_arena_config config = {
		.bytes = store->config.pool_bytes / store->config.max_identities,
		.huge_pages = store->config.huge_pages,
		.prefault = store->config.prefault,
	};

	for (uint32_t i = 0; i < store->config.max_identities; i++) {
		qmla_status_t status;

		config.number = i;
		status = qms_arena_create(&config, &store->arenas[i]);
		if (status != QMLA_OK)
			return status;
	}
	return QMLA_OK;
}

static qmla_status_t create_tables(struct qms_store *store)
{
	const struct qms_store_config *config = &store->config;
	qmla_status_t status;

	status = qms_lease_table_create(config->max_leases, config->max_leased_slots,
					&store->leases);
	if (status == QMLA_OK)
		status = qms_ticket_table_create(config->max_tickets, &store->tickets);
	if (status == QMLA_OK)
		status = qms_pin_table_create(config->max_pins, &store->pins);
	if (status == QMLA_OK)
		status =
			qms_watch_hub_create(config->max_watchers, config->watch_ring, &store->hub);
	if (status != QMLA_OK)
		qmc_error("store", "no memory for the tables of leases, tickets and pins");
	return status;
}

qmla_status_t qms_store_create(const struct qms_store_config *config, struct qms_store **store)
{
	struct qms_store *made;
	qmla_status_t status;

	if (config->max_identities > QMS_MAX_IDENTITIES || config->pool_bytes == 0 ||
	    config->max_leased_percent > 100)
		return QMLA_ERR_INVALID_ARGUMENT;
	made = calloc(1, sizeof(*made));
	if (!made)
		return QMLA_ERR_NO_MEMORY;
	made->config = *config;
	apply_defaults(&made->config);
	pthread_rwlock_init(&made->lock, NULL);
	qms_store_set_limits(made, made->config.max_lease_ns, made->config.default_pin_ns,
			     made->config.identity_idle_ns);
	atomic_init(&made->armed, QMC_TIME_NEVER);
	status = create_arenas(made);
	if (status == QMLA_OK)
		status = create_tables(made);
	if (status != QMLA_OK) {
		qms_store_destroy(made);
		return status;
	}
	*store = made;
	return QMLA_OK;
}

void qms_store_destroy(struct qms_store *store)
{
	if (!store)
		return;
	for (uint32_t i = 0; i < QMS_MAX_IDENTITIES; i++) {
		qms_partition_destroy(qms_store_borrow(store, i));
		qms_arena_destroy(store->arenas[i]);
	}
	qms_lease_table_destroy(store->leases);
	qms_ticket_table_destroy(store->tickets);
	qms_pin_table_destroy(store->pins);
	qms_watch_hub_destroy(store->hub);
	pthread_rwlock_destroy(&store->lock);
	free(store);
}

uint32_t qms_store_regions(const struct qms_store *store)
{
	return store->config.max_identities;
}

void qms_store_region(const struct qms_store *store, uint32_t region, void **base, uint64_t *bytes,
		      int *fd)
{
	*base = qms_arena_base(store->arenas[region]);
	*bytes = qms_arena_bytes(store->arenas[region]);
	*fd = qms_arena_fd(store->arenas[region]);
}

/* Relaxed: a call that runs at the same time may use the old limit. */
void qms_store_set_limits(struct qms_store *store, int64_t max_lease_ns, int64_t default_pin_ns,
			  int64_t identity_idle_ns)
{
	atomic_store_explicit(&store->max_lease_ns, max_lease_ns, memory_order_relaxed);
	atomic_store_explicit(&store->default_pin_ns, default_pin_ns, memory_order_relaxed);
	atomic_store_explicit(&store->identity_idle_ns, identity_idle_ns, memory_order_relaxed);
}

int64_t qms_store_max_lease(const struct qms_store *store)
{
	return atomic_load_explicit(&store->max_lease_ns, memory_order_relaxed);
}

int64_t qms_store_clamp_lease(const struct qms_store *store, int64_t wanted_ns)
{
	int64_t most = qms_store_max_lease(store);

	if (wanted_ns <= 0)
		wanted_ns = store->config.default_lease_ns;
	return wanted_ns < most ? wanted_ns : most;
}

struct qms_watch_hub *qms_store_watch_hub(struct qms_store *store)
{
	return store->hub;
}

/* --- partitions --- */

static struct qms_partition *find_locked(struct qms_store *store,
					 const struct qms_identity *identity)
{
	for (uint32_t i = 0; i < store->config.max_identities; i++) {
		struct qms_partition *partition = qms_store_borrow(store, i);

		if (partition && memcmp(&partition->identity, identity, sizeof(*identity)) == 0)
			return partition;
	}
	return NULL;
}

struct qms_partition *qms_store_get(struct qms_store *store, const struct qms_identity *identity)
{
	struct qms_partition *partition;

	pthread_rwlock_rdlock(&store->lock);
	partition = find_locked(store, identity);
	if (partition) {
		qms_partition_ref(partition);
		atomic_store_explicit(&partition->last_used, qmc_clock_now(), memory_order_relaxed);
	}
	pthread_rwlock_unlock(&store->lock);
	return partition;
}

struct qms_partition *qms_store_get_number(struct qms_store *store, uint64_t number)
{
	struct qms_partition *partition = NULL;

	pthread_rwlock_rdlock(&store->lock);
	if (number < store->config.max_identities)
		partition = qms_store_borrow(store, (uint32_t)number);
	if (partition)
		qms_partition_ref(partition);
	pthread_rwlock_unlock(&store->lock);
	return partition;
}

/* --- expiry --- */

void qms_store_arm(struct qms_store *store, qmc_time_t when)
{
	/* Sequentially consistent with the load below: one of the two sides sees the other. */
	atomic_store_explicit(&store->armed, when, memory_order_seq_cst);
}

void qms_store_expires_at(struct qms_store *store, qmc_time_t when)
{
	if (when < atomic_load_explicit(&store->armed, memory_order_seq_cst) &&
	    store->config.callbacks.rearm)
		store->config.callbacks.rearm(store->config.callbacks.user);
}

void qms_store_fence(void *user, const struct qms_capability *capability)
{
	const struct qms_store_callbacks *callbacks = &((struct qms_store *)user)->config.callbacks;

	if (callbacks->fence)
		callbacks->fence(callbacks->user, capability);
}

static bool expire_pin(struct qms_store *store, qmc_time_t now)
{
	struct qms_partition *partition;
	struct qms_pin_due due;

	if (!qms_pin_due(store->pins, now, &due))
		return false;
	/* A reference, because the pin that holds the partition may go at any time. */
	partition = qms_store_get_number(store, due.owner);
	if (!partition)
		return true;
	qms_index_lock(partition->index, due.hash);
	if (qms_pin_expire(store->pins, now, &qms_partition_slot(partition, due.slot)->pin_head,
			   &due)) {
		qms_partition_slot(partition, due.slot)->pins--;
		qms_partition_settle(partition, due.slot);
		qms_partition_put(partition); /* the pin's own */
		qms_count(&store->counters.expired_pins, 1);
	}
	qms_index_unlock(partition->index, due.hash);
	qms_partition_put(partition);
	return true;
}

static qmc_time_t earliest(struct qms_store *store)
{
	qmc_time_t next = qms_lease_next_expiry(store->leases);
	qmc_time_t other = qms_ticket_next_expiry(store->tickets);

	if (other < next)
		next = other;
	other = qms_pin_next_expiry(store->pins);
	return other < next ? other : next;
}

qmc_time_t qms_store_expire(struct qms_store *store, qmc_time_t now)
{
	uint32_t owner;

	/* Bounded, so that a caller that wants to stop gets a chance. */
	for (int i = 0; i < 4096; i++) {
		bool any = false;

		if (qms_lease_expire(store->leases, now, qms_store_lease_ended, store, &owner)) {
			qms_partition_put(qms_store_borrow(store, owner));
			qms_count(&store->counters.expired_leases, 1);
			any = true;
		}
		if (qms_ticket_expire(store->tickets, now, qms_store_fence, qms_store_ticket_ended,
				      store))
			any = true;
		if (expire_pin(store, now))
			any = true;
		if (!any)
			break;
	}
	return earliest(store);
}

uint32_t qms_store_retry_hint(struct qms_store *store)
{
	int64_t left = qmc_clock_left(earliest(store)) / QMC_NS_PER_MS + 1;

	if (left < 10)
		return 10;
	return left > 1000 ? 1000 : (uint32_t)left;
}
