/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Tickets: the right to write one reserved slot, once. Tickets given in one call
 * form a group with one capability and one expiry. A ticket ends by commit, abort
 * or expiry; from then on no new write is authorised under it. Tables of fixed
 * size, own lock, which may be held while an index shard's is taken.
 */
#ifndef QMS_TICKET_H
#define QMS_TICKET_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "common/clock.h"
#include "server/store/types.h"

struct qms_ticket_table;

/** What a ticket stands for. */
struct qms_ticket_ref {
	uint32_t owner; /**< partition */
	uint32_t slot;
	uint32_t number; /**< index of the ticket, as noted in the slot */
	uint64_t generation;
};

/** What became of a ticket's group. */
struct qms_ticket_end {
	bool last;  /**< no ticket of the group is left: its capability is dead */
	bool clean; /**< all of them were committed */
	struct qms_capability capability;
};

/** Called for one slot. */
typedef void (*qms_ticket_slot_func_t)(void *user, const struct qms_ticket_ref *ref);
/** Returns when no write under the capability can land any more; may block. */
typedef void (*qms_ticket_fence_func_t)(void *user, const struct qms_capability *capability);

/** Room for @p tickets tickets in as many groups. */
qmla_status_t qms_ticket_table_create(uint32_t tickets, struct qms_ticket_table **table);
void qms_ticket_table_destroy(struct qms_ticket_table *table); /**< accepts NULL */

/** Opens a group. QMLA_ERR_RESOURCE_EXHAUSTED: the table is full. */
qmla_status_t qms_ticket_group_open(struct qms_ticket_table *table, uint32_t owner, uint32_t *group,
				    struct qms_capability *capability);

/** Adds a ticket to an open group; it is in force at once. @p number goes into the slot. */
qmla_status_t qms_ticket_add(struct qms_ticket_table *table, uint32_t group, uint32_t slot,
			     uint64_t generation, uint64_t *id, uint32_t *number);

/** Takes back the ticket added last, before anyone was told of it. */
void qms_ticket_retract(struct qms_ticket_table *table, uint64_t id);

/** Ends the building of the group and starts its clock; a group without tickets vanishes. */
void qms_ticket_group_close(struct qms_ticket_table *table, uint32_t group, qmc_time_t expiry);

/**
 * Takes the ticket for commit: no write is authorised and no expiry or abort
 * touches it until qms_ticket_finish or qms_ticket_reopen. QMLA_ERR_ALREADY_EXISTS:
 * it was committed before; QMLA_ERR_BUSY: another call is committing it;
 * QMLA_ERR_LEASE_EXPIRED: ended otherwise or unknown.
 */
qmla_status_t qms_ticket_begin(struct qms_ticket_table *table, uint64_t id, qmc_time_t now,
			       struct qms_ticket_ref *ref);

/** Undoes qms_ticket_begin. */
void qms_ticket_reopen(struct qms_ticket_table *table, const struct qms_ticket_ref *ref);

/** Ends a ticket that was begun. */
void qms_ticket_finish(struct qms_ticket_table *table, const struct qms_ticket_ref *ref,
		       bool committed, struct qms_ticket_end *end);

/**
 * Ends one group that expired by @p now: stops authorising, calls @p fence, then
 * @p drop for each of its tickets that was not being committed. False: none is due.
 */
bool qms_ticket_expire(struct qms_ticket_table *table, qmc_time_t now,
		       qms_ticket_fence_func_t fence, qms_ticket_slot_func_t drop, void *user);

/**
 * If @p capability is that of a group in force and @p ref's ticket belongs to it,
 * is open and stands for @p ref's owner and slot, calls @p hold under the
 * table's lock. @p ref->number is what the slot says and is checked here.
 * QMLA_ERR_PERMISSION or QMLA_ERR_LEASE_EXPIRED otherwise.
 */
qmla_status_t qms_ticket_access(struct qms_ticket_table *table,
				const struct qms_capability *capability,
				const struct qms_ticket_ref *ref, qmc_time_t now,
				qms_ticket_slot_func_t hold, void *user);

/** Earliest expiry, QMC_TIME_NEVER when there is none. */
qmc_time_t qms_ticket_next_expiry(struct qms_ticket_table *table);

/** Tickets that have not ended. */
uint32_t qms_ticket_count(struct qms_ticket_table *table);

/** Calls @p func for every ticket that has not ended, under the lock: for checks. */
void qms_ticket_walk(struct qms_ticket_table *table, qms_ticket_slot_func_t func, void *user);

#endif /* QMS_TICKET_H */
