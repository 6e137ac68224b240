/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Out of memory in the index: the block is simply not shared. */
#define HASH_NONFATAL_OOM          1
#define uthash_nonfatal_oom(entry) ((entry)->keyed = false)
#include <uthash.h>
#include <utlist.h>

#include "common/log.h"

#define COMPONENT      "pool"
#define CANCEL_POLL_NS (50 * QMC_NS_PER_MS)

struct slot {
	qmla_key_t key;
	bool keyed;       /* in the index */
	uint32_t holders; /* 0: on the free list, or on the unused list when keyed */
	struct slot *prev, *next;
	UT_hash_handle hh;
};

struct waiter {
	struct waiter *prev, *next;
};

struct qmw_pool {
	pthread_mutex_t mutex;
	pthread_cond_t changed; /* room may have come, or the first waiter left */
	uint8_t *base;
	uint64_t stride;
	uint32_t slot_count;
	bool keep_unused;
	struct slot *slots;
	struct slot *index;        /* uthash by key */
	struct slot *free_slots;   /* no content */
	struct slot *unused_slots; /* keyed, no holder; head is the oldest */
	struct waiter *waiters;    /* head is served next */
	uint32_t available;        /* on either list */
	uint32_t granted;          /* <= available, always */
	struct qmw_pool_stats stats;
};

static qmla_status_t arena_map(struct qmw_pool *pool)
{
	void *base = mmap(NULL, pool->slot_count * pool->stride, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (base == MAP_FAILED) {
		qmc_error(COMPONENT, "cannot map %llu bytes for the pool: lower --pool-size",
			  (unsigned long long)(pool->slot_count * pool->stride));
		return QMLA_ERR_NO_MEMORY;
	}
	pool->base = base;
	return QMLA_OK;
}

static void sync_init(struct qmw_pool *pool)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&pool->mutex, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&pool->changed, &attr);
	pthread_condattr_destroy(&attr);
}

static uint64_t stride_of(const struct qmw_pool_config *config)
{
	return (config->block_bytes + QMK_ALIGN - 1) / QMK_ALIGN * QMK_ALIGN;
}

qmla_status_t qmw_pool_check(const struct qmw_pool_config *config)
{
	uint64_t stride = stride_of(config);

	if (config->block_bytes == 0 || config->bytes < stride) {
		qmc_error(COMPONENT,
			  "a pool of %llu bytes does not hold one block of %llu: raise --pool-size",
			  (unsigned long long)config->bytes, (unsigned long long)stride);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (config->bytes / stride > UINT32_MAX / 2) {
		qmc_error(COMPONENT,
			  "a pool of %llu bytes has more than %u blocks: lower --pool-size",
			  (unsigned long long)config->bytes, UINT32_MAX / 2);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

qmla_status_t qmw_pool_create(const struct qmw_pool_config *config, struct qmw_pool **pool)
{
	struct qmw_pool *p;
	qmla_status_t status = qmw_pool_check(config);

	if (status != QMLA_OK)
		return status;
	p = calloc(1, sizeof(*p));
	if (!p)
		return QMLA_ERR_NO_MEMORY;
	p->stride = stride_of(config);
	p->slot_count = (uint32_t)(config->bytes / p->stride);
	p->keep_unused = config->keep_unused;
	p->available = p->slot_count;
	p->slots = calloc(p->slot_count, sizeof(*p->slots));
	status = p->slots ? arena_map(p) : QMLA_ERR_NO_MEMORY;
	if (status != QMLA_OK)
		goto err_free;
	sync_init(p);
	for (uint32_t i = 0; i < p->slot_count; i++)
		DL_APPEND(p->free_slots, &p->slots[i]);
	*pool = p;
	return QMLA_OK;

err_free:
	free(p->slots);
	free(p);
	return status;
}

void qmw_pool_destroy(struct qmw_pool *pool)
{
	if (!pool)
		return;
	HASH_CLEAR(hh, pool->index);
	munmap(pool->base, pool->slot_count * pool->stride);
	pthread_cond_destroy(&pool->changed);
	pthread_mutex_destroy(&pool->mutex);
	free(pool->slots);
	free(pool);
}

struct qmk_pool qmw_pool_kernel(const struct qmw_pool *pool)
{
	return (struct qmk_pool){.base = pool->base, .stride = pool->stride};
}

uint64_t qmw_pool_bytes(const struct qmw_pool *pool)
{
	return pool->slot_count * pool->stride;
}

uint32_t qmw_pool_slots(const struct qmw_pool *pool)
{
	return pool->slot_count;
}

void *qmw_pool_block(const struct qmw_pool *pool, uint32_t slot)
{
	return pool->base + slot * pool->stride;
}

static uint32_t slot_number(const struct qmw_pool *pool, const struct slot *slot)
{
	return (uint32_t)(slot - pool->slots);
}

/* A slot without holders leaves its list; the caller counts it as held. */
static void slot_unlist(struct qmw_pool *pool, struct slot *slot)
{
	if (slot->keyed) {
		DL_DELETE(pool->unused_slots, slot);
		pool->stats.cached--;
	} else {
		DL_DELETE(pool->free_slots, slot);
	}
	pool->available--;
}

static void slot_forget(struct qmw_pool *pool, struct slot *slot)
{
	HASH_DELETE(hh, pool->index, slot);
	slot->keyed = false;
}

static struct slot *index_find(struct qmw_pool *pool, const qmla_key_t *key)
{
	struct slot *slot;

	HASH_FIND(hh, pool->index, key, sizeof(*key), slot);
	return slot;
}

static void slot_hold(struct qmw_pool *pool, struct slot *slot)
{
	if (slot->holders == 0)
		slot_unlist(pool, slot);
	slot->holders++;
}

static void slot_drop(struct qmw_pool *pool, struct slot *slot)
{
	if (--slot->holders > 0)
		return;
	if (slot->keyed && !pool->keep_unused)
		slot_forget(pool, slot);
	if (slot->keyed) {
		DL_APPEND(pool->unused_slots, slot);
		pool->stats.cached++;
	} else {
		DL_PREPEND(pool->free_slots, slot);
	}
	pool->available++;
	pthread_cond_broadcast(&pool->changed);
}

/* The run that is here; @p idle counts those of it that no one holds now. */
static uint32_t find_run(struct qmw_pool *pool, const struct qmw_pool_need *need, uint32_t *idle)
{
	uint32_t hits = 0;

	*idle = 0;
	while (hits < need->key_count) {
		const struct slot *slot = index_find(pool, &need->keys[hits]);

		if (!slot)
			break;
		*idle += slot->holders == 0;
		hits++;
	}
	return hits;
}

static bool try_admit(struct qmw_pool *pool, const struct qmw_pool_need *need, uint32_t *slots,
		      uint32_t *hits, struct qmw_pool_grant *grant)
{
	uint32_t idle;
	uint32_t run = find_run(pool, need, &idle);

	if (pool->available - pool->granted < idle + (need->blocks - run))
		return false;
	for (uint32_t i = 0; i < run; i++) {
		struct slot *slot = index_find(pool, &need->keys[i]);

		slot_hold(pool, slot);
		slots[i] = slot_number(pool, slot);
	}
	grant->left = need->blocks - run;
	pool->granted += grant->left;
	pool->stats.hits += run;
	*hits = run;
	return true;
}

/* Sleeps until something changed, the deadline, or the next look at `cancelled`. */
static void wait_changed(struct qmw_pool *pool, qmc_time_t deadline)
{
	qmc_time_t until = qmc_clock_after(CANCEL_POLL_NS);
	struct timespec ts;

	if (deadline < until)
		until = deadline;
	ts.tv_sec = until / QMC_NS_PER_S;
	ts.tv_nsec = until % QMC_NS_PER_S;
	pthread_cond_timedwait(&pool->changed, &pool->mutex, &ts);
}

qmla_status_t qmw_pool_admit(struct qmw_pool *pool, const struct qmw_pool_need *need,
			     uint32_t *slots, uint32_t *hits, struct qmw_pool_grant *grant)
{
	struct waiter self = {0};
	qmla_status_t status = QMLA_OK;

	if (need->blocks > pool->slot_count)
		return QMLA_ERR_TOO_LARGE;
	pthread_mutex_lock(&pool->mutex);
	DL_APPEND(pool->waiters, &self);
	pool->stats.waiting++;
	while (pool->waiters != &self || !try_admit(pool, need, slots, hits, grant)) {
		if (need->cancelled && need->cancelled(need->user))
			status = QMLA_ERR_CANCELLED;
		else if (qmc_clock_left(need->deadline) == 0)
			status = QMLA_ERR_RESOURCE_EXHAUSTED;
		if (status != QMLA_OK)
			break;
		wait_changed(pool, need->deadline);
	}
	DL_DELETE(pool->waiters, &self);
	pool->stats.waiting--;
	pthread_cond_broadcast(&pool->changed); /* the next in line may fit */
	pthread_mutex_unlock(&pool->mutex);
	return status;
}

uint32_t qmw_pool_extend(struct qmw_pool *pool, const qmla_key_t *keys, uint32_t count,
			 uint32_t *slots, struct qmw_pool_grant *grant)
{
	uint32_t n = 0;

	pthread_mutex_lock(&pool->mutex);
	while (n < count && grant->left > 0) {
		struct slot *slot = index_find(pool, &keys[n]);

		if (!slot)
			break;
		slot_hold(pool, slot);
		slots[n++] = slot_number(pool, slot);
		grant->left--;
		pool->granted--;
	}
	pool->stats.hits += n;
	pthread_cond_broadcast(&pool->changed); /* a block that was held already leaves room */
	pthread_mutex_unlock(&pool->mutex);
	return n;
}

uint32_t qmw_pool_take(struct qmw_pool *pool, struct qmw_pool_grant *grant)
{
	struct slot *slot;

	pthread_mutex_lock(&pool->mutex);
	slot = pool->free_slots;
	if (!slot) {
		slot = pool->unused_slots; /* granted <= available: one of the lists has a slot */
		pool->stats.evictions++;
	}
	slot_hold(pool, slot);
	if (slot->keyed)
		slot_forget(pool, slot);
	grant->left--;
	pool->granted--;
	pthread_mutex_unlock(&pool->mutex);
	return slot_number(pool, slot);
}

void qmw_pool_untake(struct qmw_pool *pool, struct qmw_pool_grant *grant, uint32_t slot)
{
	pthread_mutex_lock(&pool->mutex);
	slot_drop(pool, &pool->slots[slot]);
	grant->left++;
	pool->granted++;
	pthread_mutex_unlock(&pool->mutex);
}

void qmw_pool_forgo(struct qmw_pool *pool, struct qmw_pool_grant *grant)
{
	pthread_mutex_lock(&pool->mutex);
	pool->granted -= grant->left;
	grant->left = 0;
	pthread_cond_broadcast(&pool->changed);
	pthread_mutex_unlock(&pool->mutex);
}

uint32_t qmw_pool_bind(struct qmw_pool *pool, const qmla_key_t *key, uint32_t slot)
{
	struct slot *mine = &pool->slots[slot];
	struct slot *same;

	pthread_mutex_lock(&pool->mutex);
	same = index_find(pool, key);
	if (same && same != mine) {
		slot_hold(pool, same);
		slot_drop(pool, mine);
	} else if (!same && !mine->keyed) {
		mine->key = *key;
		mine->keyed = true;
		HASH_ADD(hh, pool->index, key, sizeof(mine->key), mine);
	}
	pthread_mutex_unlock(&pool->mutex);
	return same ? slot_number(pool, same) : slot;
}

void qmw_pool_hold(struct qmw_pool *pool, uint32_t slot)
{
	pthread_mutex_lock(&pool->mutex);
	slot_hold(pool, &pool->slots[slot]);
	pthread_mutex_unlock(&pool->mutex);
}

void qmw_pool_drop(struct qmw_pool *pool, uint32_t slot)
{
	qmw_pool_drop_all(pool, &slot, 1);
}

void qmw_pool_drop_all(struct qmw_pool *pool, const uint32_t *slots, uint32_t count)
{
	pthread_mutex_lock(&pool->mutex);
	while (count > 0)
		slot_drop(pool, &pool->slots[slots[--count]]);
	pthread_mutex_unlock(&pool->mutex);
}

void qmw_pool_read_stats(struct qmw_pool *pool, struct qmw_pool_stats *stats)
{
	pthread_mutex_lock(&pool->mutex);
	*stats = pool->stats;
	stats->slots = pool->slot_count;
	stats->held = pool->slot_count - pool->available;
	stats->granted = pool->granted;
	pthread_mutex_unlock(&pool->mutex);
}
