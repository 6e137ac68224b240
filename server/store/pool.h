/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * An arena cut into equal slots, one block each, and the state of every slot.
 *
 * A slot's life: FREE → WRITING (reserved by a ticket) → RESIDENT (committed, in
 * the index) → FREE. A resident slot that is removed while it is leased or read
 * becomes REMOVED, a reserved one whose ticket ended while a write was still
 * moving becomes QUARANTINED; both become FREE with their last hold. Every take
 * raises the slot's generation, so that a descriptor of an earlier life is known.
 */
#ifndef QMS_POOL_H
#define QMS_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "server/store/arena.h"
#include "server/store/types.h"

enum qms_slot_state {
	QMS_SLOT_FREE,
	QMS_SLOT_WRITING,
	QMS_SLOT_RESIDENT,
	QMS_SLOT_REMOVED,
	QMS_SLOT_QUARANTINED,
};

/**
 * Everything but the atomics is guarded by the index shard of the key that the
 * slot holds; the pool itself only touches generation and state.
 */
struct qms_slot {
	_Atomic uint64_t generation; /**< rises at every take */
	uint64_t digest;             /**< as committed */
	uint64_t hash;               /**< of its key, from the index */
	uint32_t leases;
	uint32_t inflight; /**< transfers that the transport is moving */
	uint32_t pins;
	uint32_t pin_head;       /**< list in the pin table */
	_Atomic uint32_t ticket; /**< index in the ticket table; a hint, checked there */
	_Atomic uint8_t state;   /**< enum qms_slot_state */
	bool parked;             /**< eviction set it aside because it was held */
};

struct qms_pool;

/**
 * Cuts @p arena (borrowed, must outlive the pool) into slots of @p slot_bytes.
 * Generations start at a random number, so a descriptor of another pool or life
 * never fits. QMLA_ERR_TOO_LARGE: not one slot fits.
 */
qmla_status_t qms_pool_create(struct qms_arena *arena, uint64_t slot_bytes, struct qms_pool **pool);
void qms_pool_destroy(struct qms_pool *pool); /**< accepts NULL */

uint32_t qms_pool_slots(const struct qms_pool *pool);
uint64_t qms_pool_slot_bytes(const struct qms_pool *pool);
uint32_t qms_pool_free_slots(const struct qms_pool *pool); /**< any thread; a snapshot */

/** State of slot @p number; lives as long as the pool. */
struct qms_slot *qms_pool_slot(struct qms_pool *pool, uint32_t number);

/** First byte of the slot and its offset in the arena. */
void *qms_pool_address(const struct qms_pool *pool, uint32_t number);
uint64_t qms_pool_offset(const struct qms_pool *pool, uint32_t number);

/** Takes a free slot: its generation rises, its state is WRITING. QMLA_ERR_RESOURCE_EXHAUSTED: none
 * is free. Any thread. */
qmla_status_t qms_pool_take(struct qms_pool *pool, uint32_t *number);

/** Starts the next life of a slot that the caller has just emptied, without a trip through the free
 * list. */
void qms_pool_retake(struct qms_pool *pool, uint32_t number);

/** Gives a slot back: its state is FREE. Any thread. */
void qms_pool_give(struct qms_pool *pool, uint32_t number);

/** Slot that holds all of [offset, offset + length). QMLA_ERR_INVALID_ARGUMENT: no slot does, or
 * length is 0. */
qmla_status_t qms_pool_locate(const struct qms_pool *pool, uint64_t offset, uint64_t length,
			      uint32_t *number);

#endif /* QMS_POOL_H */
