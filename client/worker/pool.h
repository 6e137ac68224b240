/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A worker's paged pool: one arena of equal slots, one block each. Requests
 * share slots by block key; a slot that no one holds any more keeps its block
 * until the room is needed (least recently used first).
 *
 * A request is admitted with a grant over every slot that it may ever need, so
 * it never waits for memory half way: there is no preemption and no deadlock.
 * Requests that wait for room are served strictly in the order of their arrival: one
 * that fits does not overtake a larger one that does not yet, which would starve under
 * load. What that costs the ones behind it is bounded by their own deadlines.
 *
 * Threads: any, all functions. Only qmw_pool_admit blocks.
 */
#ifndef QMW_POOL_H
#define QMW_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/cache.h>
#include <qmla/status.h>

#include "common/clock.h"
#include "kernels/ops.h"

struct qmw_pool;

struct qmw_pool_config {
	uint64_t block_bytes; /**< of one slot; rounded up to 128 */
	uint64_t bytes;       /**< of the arena; at least one slot */
	bool keep_unused;     /**< keep blocks that no one holds for later requests */
};

/** The right to take @ref left more slots. Caller's storage; belongs to one request. */
struct qmw_pool_grant {
	uint32_t left;
};

struct qmw_pool_stats {
	uint32_t slots;
	uint32_t held;    /**< by requests and by the publisher */
	uint32_t cached;  /**< held by no one, kept for re-use */
	uint32_t granted; /**< promised, not taken yet */
	uint32_t waiting; /**< requests that wait for room */
	uint64_t hits;    /**< blocks found by qmw_pool_admit */
	uint64_t evictions;
};

/** Whether such a pool can be: QMLA_ERR_INVALID_ARGUMENT: not even one slot fits (logged). */
qmla_status_t qmw_pool_check(const struct qmw_pool_config *config);

/** QMLA_ERR_INVALID_ARGUMENT: not even one slot fits (logged); QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_pool_create(const struct qmw_pool_config *config, struct qmw_pool **pool);

/** Nothing may be held any more. Accepts NULL. */
void qmw_pool_destroy(struct qmw_pool *pool);

/** Base and stride for the kernels. */
struct qmk_pool qmw_pool_kernel(const struct qmw_pool *pool);
uint64_t qmw_pool_bytes(const struct qmw_pool *pool); /**< of the arena */
uint32_t qmw_pool_slots(const struct qmw_pool *pool);

/** Address of @p slot's block. */
void *qmw_pool_block(const struct qmw_pool *pool, uint32_t slot);

/** What a request asks for. */
struct qmw_pool_need {
	const qmla_key_t *keys; /**< of the blocks that may be shared, from the first */
	uint32_t key_count;     /**< 0: share nothing */
	uint32_t blocks;        /**< slots in all, hits included; >= key_count */
	qmc_time_t deadline;
	bool (*cancelled)(void *user); /**< polled while waiting; NULL: never */
	void *user;
};

/**
 * Admits a request: holds the longest run of its keys that is in the pool
 * (@p slots [key_count], @p hits of them) and grants the rest. Blocks while the
 * pool is full. QMLA_ERR_TOO_LARGE: more than the whole pool;
 * QMLA_ERR_RESOURCE_EXHAUSTED: still full at the deadline; QMLA_ERR_CANCELLED.
 */
qmla_status_t qmw_pool_admit(struct qmw_pool *pool, const struct qmw_pool_need *need,
			     uint32_t *slots, uint32_t *hits, struct qmw_pool_grant *grant);

/**
 * Holds the run of keys[0 … count-1] that came to the pool since the request was
 * admitted, in place of granted slots. Returns how many; @p slots gets them.
 */
uint32_t qmw_pool_extend(struct qmw_pool *pool, const qmla_key_t *keys, uint32_t count,
			 uint32_t *slots, struct qmw_pool_grant *grant);

/** Takes one slot of the grant (which must have one left); held once, without a key. Never fails.
 */
uint32_t qmw_pool_take(struct qmw_pool *pool, struct qmw_pool_grant *grant);

/** Gives a slot that was taken, and is held once and without a key, back to the grant. */
void qmw_pool_untake(struct qmw_pool *pool, struct qmw_pool_grant *grant, uint32_t slot);

/** Ends the grant; what was taken stays held. */
void qmw_pool_forgo(struct qmw_pool *pool, struct qmw_pool_grant *grant);

/**
 * Makes a finished block findable under @p key. Returns the slot to use from now
 * on: @p slot, or another one that holds the same block already (then @p slot is
 * let go and the other is held instead).
 */
uint32_t qmw_pool_bind(struct qmw_pool *pool, const qmla_key_t *key, uint32_t slot);

/** One more holder of a slot that is held. */
void qmw_pool_hold(struct qmw_pool *pool, uint32_t slot);

/** One holder less. */
void qmw_pool_drop(struct qmw_pool *pool, uint32_t slot);

/** Drops a sequence's slots from the last to the first, so that prefixes outlive their ends. */
void qmw_pool_drop_all(struct qmw_pool *pool, const uint32_t *slots, uint32_t count);

void qmw_pool_read_stats(struct qmw_pool *pool, struct qmw_pool_stats *stats);

#endif /* QMW_POOL_H */
