/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/lease.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "server/store/timers.h"

#define CHUNK_SLOTS 62u
#define NONE        0u /* chunk numbers start at 1 */

/* 256 bytes: the slots of a lease stand in a chain of these. */
struct chunk {
	uint32_t next;
	uint32_t count;
	uint32_t slots[CHUNK_SLOTS];
};

struct qms_lease {
	uint64_t id; /* low 32 bits: index, high: serial number; 0: not in force */
	struct qms_capability capability; /* first 4 bytes: index, the rest random */
	uint32_t owner;
	uint32_t first; /* chunk */
	uint32_t last;
	uint32_t next_free;
};

struct qms_lease_table {
	pthread_mutex_t lock;
	struct qms_lease *leases;
	uint32_t lease_limit;
	uint32_t lease_used;  /* entries from here on were never used */
	uint32_t free_oldest; /* freed entries, reused oldest first; index + 1 */
	uint32_t free_newest;
	struct chunk *chunks; /* [0] is not used */
	uint32_t chunk_limit;
	uint32_t chunk_used;
	uint32_t chunk_free;
	uint32_t count;
	uint32_t serial; /* of grants, starts at a random number */
	struct qms_timers *timers;
};

qmla_status_t qms_lease_table_create(uint32_t leases, uint32_t entries,
				     struct qms_lease_table **table)
{
	struct qms_lease_table *made = calloc(1, sizeof(*made));

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	pthread_mutex_init(&made->lock, NULL);
	made->lease_limit = leases;
	if (qmc_random_bytes(&made->serial, sizeof(made->serial)) != QMLA_OK)
		made->serial = 0; /* only convenience: incarnation tells lives apart */
	made->serial &= INT32_MAX;
	/* Every lease may leave its last chunk part empty. */
	made->chunk_limit = entries / CHUNK_SLOTS + leases;
	made->leases = calloc(leases, sizeof(*made->leases));
	made->chunks = calloc((size_t)made->chunk_limit + 1, sizeof(*made->chunks));
	if (!made->leases || !made->chunks || qms_timers_create(leases, &made->timers) != QMLA_OK) {
		qms_lease_table_destroy(made);
		return QMLA_ERR_NO_MEMORY;
	}
	*table = made;
	return QMLA_OK;
}

void qms_lease_table_destroy(struct qms_lease_table *table)
{
	if (!table)
		return;
	pthread_mutex_destroy(&table->lock);
	qms_timers_destroy(table->timers);
	free(table->leases);
	free(table->chunks);
	free(table);
}

static uint32_t index_of(const struct qms_lease_table *table, const struct qms_lease *lease)
{
	return (uint32_t)(lease - table->leases);
}

static struct qms_lease *entry_take(struct qms_lease_table *table)
{
	struct qms_lease *lease;

	if (table->lease_used < table->lease_limit)
		return &table->leases[table->lease_used++];
	if (table->free_oldest == 0)
		return NULL;
	lease = &table->leases[table->free_oldest - 1];
	table->free_oldest = lease->next_free;
	if (table->free_oldest == 0)
		table->free_newest = 0;
	return lease;
}

static void entry_give(struct qms_lease_table *table, struct qms_lease *lease)
{
	uint32_t number = index_of(table, lease) + 1;

	lease->next_free = 0;
	if (table->free_newest)
		table->leases[table->free_newest - 1].next_free = number;
	else
		table->free_oldest = number;
	table->free_newest = number;
}

qmla_status_t qms_lease_begin(struct qms_lease_table *table, uint32_t owner,
			      struct qms_lease **lease)
{
	uint8_t random[QMS_CAPABILITY_BYTES];
	qmla_status_t status = qmc_random_bytes(random, sizeof(random));
	struct qms_lease *made;
	uint32_t number;

	if (status != QMLA_OK)
		return status;
	pthread_mutex_lock(&table->lock);
	made = entry_take(table);
	if (made) {
		number = index_of(table, made);
		made->id = 0;
		made->owner = owner;
		made->first = made->last = NONE;
		memcpy(made->capability.bytes, random, sizeof(random));
		memcpy(made->capability.bytes, &number, sizeof(number));
	}
	pthread_mutex_unlock(&table->lock);
	if (!made)
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	*lease = made;
	return QMLA_OK;
}

static uint32_t chunk_take(struct qms_lease_table *table)
{
	uint32_t number = table->chunk_free;

	if (number != NONE)
		table->chunk_free = table->chunks[number].next;
	else if (table->chunk_used < table->chunk_limit)
		number = ++table->chunk_used;
	return number;
}

static qmla_status_t add_chunk(struct qms_lease_table *table, struct qms_lease *lease)
{
	uint32_t number;

	pthread_mutex_lock(&table->lock);
	number = chunk_take(table);
	pthread_mutex_unlock(&table->lock);
	if (number == NONE)
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	table->chunks[number].next = NONE;
	table->chunks[number].count = 0;
	if (lease->last != NONE)
		table->chunks[lease->last].next = number;
	else
		lease->first = number;
	lease->last = number;
	return QMLA_OK;
}

qmla_status_t qms_lease_make_room(struct qms_lease_table *table, struct qms_lease *lease)
{
	if (lease->last != NONE && table->chunks[lease->last].count < CHUNK_SLOTS)
		return QMLA_OK;
	return add_chunk(table, lease);
}

void qms_lease_add(struct qms_lease_table *table, struct qms_lease *lease, uint32_t slot)
{
	struct chunk *chunk = &table->chunks[lease->last];

	chunk->slots[chunk->count++] = slot;
}

void qms_lease_grant(struct qms_lease_table *table, struct qms_lease *lease, qmc_time_t expiry,
		     struct qms_lease_grant *grant)
{
	uint32_t number = index_of(table, lease);

	pthread_mutex_lock(&table->lock);
	lease->id = (uint64_t)++table->serial << 32 | number;
	grant->id = lease->id;
	grant->capability = lease->capability;
	qms_timers_set(table->timers, number, expiry);
	table->count++;
	pthread_mutex_unlock(&table->lock);
}

/* Hands out the slots of a detached lease, then gives its room back. */
static void drain(struct qms_lease_table *table, struct qms_lease *lease,
		  qms_lease_slot_func_t func, void *user)
{
	for (uint32_t at = lease->first; at != NONE; at = table->chunks[at].next) {
		const struct chunk *chunk = &table->chunks[at];

		for (uint32_t i = 0; i < chunk->count; i++)
			func(user, lease->owner, chunk->slots[i]);
	}
	pthread_mutex_lock(&table->lock);
	if (lease->first != NONE) {
		table->chunks[lease->last].next = table->chunk_free;
		table->chunk_free = lease->first;
	}
	entry_give(table, lease);
	pthread_mutex_unlock(&table->lock);
}

void qms_lease_cancel(struct qms_lease_table *table, struct qms_lease *lease,
		      qms_lease_slot_func_t func, void *user)
{
	drain(table, lease, func, user);
}

static struct qms_lease *find(struct qms_lease_table *table, uint64_t id)
{
	uint32_t number = (uint32_t)id;

	if (id == 0 || number >= table->lease_used || table->leases[number].id != id)
		return NULL;
	return &table->leases[number];
}

static void detach(struct qms_lease_table *table, struct qms_lease *lease)
{
	lease->id = 0; /* the capability stays: a late user is told that the lease ended */
	qms_timers_clear(table->timers, index_of(table, lease));
	table->count--;
}

qmla_status_t qms_lease_renew(struct qms_lease_table *table, uint64_t id, qmc_time_t now,
			      qmc_time_t expiry)
{
	qmla_status_t status = QMLA_ERR_LEASE_EXPIRED;
	struct qms_lease *lease;

	pthread_mutex_lock(&table->lock);
	lease = find(table, id);
	if (lease) {
		qmc_time_t current = qms_timers_get(table->timers, index_of(table, lease));

		/* One that the reaper has not come to yet is over all the same. */
		if (current > now) {
			if (expiry > current)
				qms_timers_set(table->timers, index_of(table, lease), expiry);
			status = QMLA_OK;
		}
	}
	pthread_mutex_unlock(&table->lock);
	return status;
}

qmla_status_t qms_lease_release(struct qms_lease_table *table, uint64_t id,
				qms_lease_slot_func_t func, void *user, uint32_t *owner)
{
	struct qms_lease *lease;

	pthread_mutex_lock(&table->lock);
	lease = find(table, id);
	if (lease)
		detach(table, lease);
	pthread_mutex_unlock(&table->lock);
	if (!lease)
		return QMLA_ERR_LEASE_EXPIRED;
	*owner = lease->owner;
	drain(table, lease, func, user);
	return QMLA_OK;
}

bool qms_lease_expire(struct qms_lease_table *table, qmc_time_t now, qms_lease_slot_func_t func,
		      void *user, uint32_t *owner)
{
	struct qms_lease *lease = NULL;
	uint32_t number;

	pthread_mutex_lock(&table->lock);
	if (qms_timers_due(table->timers, now, &number)) {
		lease = &table->leases[number];
		detach(table, lease);
	}
	pthread_mutex_unlock(&table->lock);
	if (!lease)
		return false;
	*owner = lease->owner;
	drain(table, lease, func, user);
	return true;
}

static bool covers(const struct qms_lease_table *table, const struct qms_lease *lease,
		   uint32_t slot)
{
	for (uint32_t at = lease->first; at != NONE; at = table->chunks[at].next) {
		const struct chunk *chunk = &table->chunks[at];
		uint32_t found = 0;

		/* No early exit: the compiler turns this into vector compares. */
		for (uint32_t i = 0; i < chunk->count; i++)
			found |= chunk->slots[i] == slot;
		if (found)
			return true;
	}
	return false;
}

qmla_status_t qms_lease_access(struct qms_lease_table *table,
			       const struct qms_capability *capability, uint32_t owner,
			       uint32_t slot, qmc_time_t now, qms_lease_slot_func_t hold,
			       void *user)
{
	qmla_status_t status = QMLA_ERR_PERMISSION;
	const struct qms_lease *lease;
	uint32_t number;

	memcpy(&number, capability->bytes, sizeof(number));
	pthread_mutex_lock(&table->lock);
	lease = number < table->lease_used ? &table->leases[number] : NULL;
	if (lease && lease->owner == owner &&
	    qmc_equal_constant_time(&lease->capability, capability, sizeof(*capability))) {
		if (lease->id == 0 || qms_timers_get(table->timers, number) <= now) {
			status = QMLA_ERR_LEASE_EXPIRED;
		} else if (covers(table, lease, slot)) {
			hold(user, owner, slot);
			status = QMLA_OK;
		}
	}
	pthread_mutex_unlock(&table->lock);
	return status;
}

qmc_time_t qms_lease_next_expiry(struct qms_lease_table *table)
{
	qmc_time_t next;

	pthread_mutex_lock(&table->lock);
	next = qms_timers_next(table->timers);
	pthread_mutex_unlock(&table->lock);
	return next;
}

uint32_t qms_lease_count(struct qms_lease_table *table)
{
	uint32_t count;

	pthread_mutex_lock(&table->lock);
	count = table->count;
	pthread_mutex_unlock(&table->lock);
	return count;
}

void qms_lease_walk(struct qms_lease_table *table, qms_lease_slot_func_t func, void *user)
{
	pthread_mutex_lock(&table->lock);
	for (uint32_t i = 0; i < table->lease_used; i++) {
		const struct qms_lease *lease = &table->leases[i];

		if (lease->id == 0)
			continue;
		for (uint32_t at = lease->first; at != NONE; at = table->chunks[at].next) {
			for (uint32_t k = 0; k < table->chunks[at].count; k++)
				func(user, lease->owner, table->chunks[at].slots[k]);
		}
	}
	pthread_mutex_unlock(&table->lock);
}
