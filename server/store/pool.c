/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "common/log.h"

struct qms_pool {
	struct qms_arena *arena;
	uint64_t slot_bytes;
	uint32_t count;
	uint64_t first_generation;
	struct qms_slot *slots;

	pthread_mutex_t lock; /* guards the rest; innermost lock of the store */
	uint32_t *stack;      /* free slots that were used before, newest on top */
	uint32_t depth;
	uint32_t untouched;    /* slots from here on were never used */
	_Atomic uint32_t free; /* written under the lock, read anywhere */
};

/*
 * The top bit stays clear so that no sum overflows, and 2^20 lives of head room
 * keep two pools apart even if their starting points were close.
 */
static qmla_status_t random_generation(uint64_t *generation)
{
	qmla_status_t status = qmc_random_bytes(generation, sizeof(*generation));

	if (status != QMLA_OK)
		return status;
	*generation = (*generation & UINT64_C(0x3fffffffffffffff)) | UINT64_C(1) << 20;
	return QMLA_OK;
}

static qmla_status_t pool_init(struct qms_pool *pool)
{
	qmla_status_t status = random_generation(&pool->first_generation);

	if (status != QMLA_OK)
		return status;
	/* calloc of this size is untouched memory: it costs nothing until a slot is used. */
	pool->slots = calloc(pool->count, sizeof(*pool->slots));
	pool->stack = calloc(pool->count, sizeof(*pool->stack));
	if (!pool->slots || !pool->stack) {
		free(pool->slots);
		free(pool->stack);
		qmc_error("pool", "no memory for the state of %u slots", pool->count);
		return QMLA_ERR_NO_MEMORY;
	}
	pthread_mutex_init(&pool->lock, NULL);
	atomic_init(&pool->free, pool->count);
	return QMLA_OK;
}

qmla_status_t qms_pool_create(struct qms_arena *arena, uint64_t slot_bytes, struct qms_pool **pool)
{
	uint64_t count;
	struct qms_pool *made;
	qmla_status_t status;

	if (slot_bytes == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	count = qms_arena_bytes(arena) / slot_bytes;
	if (count == 0)
		return QMLA_ERR_TOO_LARGE;
	if (count > QMS_SLOT_NONE / 2)
		count = QMS_SLOT_NONE / 2;
	made = calloc(1, sizeof(*made));
	if (!made)
		return QMLA_ERR_NO_MEMORY;
	made->arena = arena;
	made->slot_bytes = slot_bytes;
	made->count = (uint32_t)count;
	status = pool_init(made);
	if (status != QMLA_OK) {
		free(made);
		return status;
	}
	*pool = made;
	return QMLA_OK;
}

void qms_pool_destroy(struct qms_pool *pool)
{
	if (!pool)
		return;
	pthread_mutex_destroy(&pool->lock);
	free(pool->stack);
	free(pool->slots);
	free(pool);
}

uint32_t qms_pool_slots(const struct qms_pool *pool)
{
	return pool->count;
}

uint64_t qms_pool_slot_bytes(const struct qms_pool *pool)
{
	return pool->slot_bytes;
}

uint32_t qms_pool_free_slots(const struct qms_pool *pool)
{
	return atomic_load_explicit(&pool->free, memory_order_relaxed);
}

struct qms_slot *qms_pool_slot(struct qms_pool *pool, uint32_t number)
{
	return &pool->slots[number];
}

void *qms_pool_address(const struct qms_pool *pool, uint32_t number)
{
	return (char *)qms_arena_base(pool->arena) + qms_pool_offset(pool, number);
}

uint64_t qms_pool_offset(const struct qms_pool *pool, uint32_t number)
{
	return (uint64_t)number * pool->slot_bytes;
}

void qms_pool_retake(struct qms_pool *pool, uint32_t number)
{
	struct qms_slot *slot = &pool->slots[number];
	uint64_t generation = atomic_load_explicit(&slot->generation, memory_order_relaxed);

	generation = generation ? generation + 1 : pool->first_generation;
	/* Generation before state: pairs with the acquire of state in partition.c. */
	atomic_store_explicit(&slot->generation, generation, memory_order_release);
	atomic_store_explicit(&slot->state, QMS_SLOT_WRITING, memory_order_release);
}

qmla_status_t qms_pool_take(struct qms_pool *pool, uint32_t *number)
{
	uint32_t taken = QMS_SLOT_NONE;

	pthread_mutex_lock(&pool->lock);
	if (pool->depth > 0)
		taken = pool->stack[--pool->depth];
	else if (pool->untouched < pool->count)
		taken = pool->untouched++;
	if (taken != QMS_SLOT_NONE)
		atomic_fetch_sub_explicit(&pool->free, 1, memory_order_relaxed);
	pthread_mutex_unlock(&pool->lock);
	if (taken == QMS_SLOT_NONE)
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	qms_pool_retake(pool, taken);
	*number = taken;
	return QMLA_OK;
}

void qms_pool_give(struct qms_pool *pool, uint32_t number)
{
	atomic_store_explicit(&pool->slots[number].state, QMS_SLOT_FREE, memory_order_release);
	pthread_mutex_lock(&pool->lock);
	pool->stack[pool->depth++] = number;
	atomic_fetch_add_explicit(&pool->free, 1, memory_order_relaxed);
	pthread_mutex_unlock(&pool->lock);
}

qmla_status_t qms_pool_locate(const struct qms_pool *pool, uint64_t offset, uint64_t length,
			      uint32_t *number)
{
	uint64_t slot = offset / pool->slot_bytes;

	if (length == 0 || slot >= pool->count ||
	    length > pool->slot_bytes - offset % pool->slot_bytes)
		return QMLA_ERR_INVALID_ARGUMENT;
	*number = (uint32_t)slot;
	return QMLA_OK;
}
