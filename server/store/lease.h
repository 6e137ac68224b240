/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Leases: the right to read a set of slots until a time on this node's clock.
 * One lease may cover many slots of one partition (the owner's number). Tables
 * of fixed size; nothing is allocated after creation. Own lock, which may be
 * held while an index shard's is taken, never the other way round.
 *
 * Ids carry the entry's index and a serial number, capabilities the index and 96
 * random bits: finding one is one array access and a comparison. The capability
 * is what gives access to memory; an id only lets its holder renew or release.
 */
#ifndef QMS_LEASE_H
#define QMS_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "common/clock.h"
#include "server/store/types.h"

struct qms_lease_table;
struct qms_lease; /**< one being built; private to its builder until granted */

struct qms_lease_grant {
	uint64_t id; /**< never 0 */
	struct qms_capability capability;
};

/** Called for every slot of a lease that ended; no lock of the table is held. */
typedef void (*qms_lease_slot_func_t)(void *user, uint32_t owner, uint32_t slot);

/** Room for @p leases leases that cover @p entries slots together. */
qmla_status_t qms_lease_table_create(uint32_t leases, uint32_t entries,
				     struct qms_lease_table **table);
void qms_lease_table_destroy(struct qms_lease_table *table); /**< accepts NULL */

/** Starts a lease. QMLA_ERR_RESOURCE_EXHAUSTED: the table is full. */
qmla_status_t qms_lease_begin(struct qms_lease_table *table, uint32_t owner,
			      struct qms_lease **lease);

/** Makes sure that one more slot can be added. QMLA_ERR_RESOURCE_EXHAUSTED: it cannot. */
qmla_status_t qms_lease_make_room(struct qms_lease_table *table, struct qms_lease *lease);

/** Adds a slot after qms_lease_make_room; twice the same is allowed. Takes no lock: an index
 * shard's may be held. */
void qms_lease_add(struct qms_lease_table *table, struct qms_lease *lease, uint32_t slot);

/** Puts the lease in force until @p expiry. */
void qms_lease_grant(struct qms_lease_table *table, struct qms_lease *lease, qmc_time_t expiry,
		     struct qms_lease_grant *grant);

/** Drops a lease that was never granted; @p func gets its slots. */
void qms_lease_cancel(struct qms_lease_table *table, struct qms_lease *lease,
		      qms_lease_slot_func_t func, void *user);

/** Moves the expiry to @p expiry, never nearer. QMLA_ERR_LEASE_EXPIRED: ended or unknown. */
qmla_status_t qms_lease_renew(struct qms_lease_table *table, uint64_t id, qmc_time_t now,
			      qmc_time_t expiry);

/** Ends a lease; @p func gets its slots, @p owner its partition. QMLA_ERR_LEASE_EXPIRED: ended or
 * unknown. */
qmla_status_t qms_lease_release(struct qms_lease_table *table, uint64_t id,
				qms_lease_slot_func_t func, void *user, uint32_t *owner);

/** Ends one lease that expired by @p now; false when there is none. */
bool qms_lease_expire(struct qms_lease_table *table, qmc_time_t now, qms_lease_slot_func_t func,
		      void *user, uint32_t *owner);

/**
 * If @p capability is that of a lease in force that covers @p slot of @p owner,
 * calls @p hold under the table's lock (so the lease cannot end in between).
 * QMLA_ERR_PERMISSION: no such lease or slot; QMLA_ERR_LEASE_EXPIRED: it ended.
 */
qmla_status_t qms_lease_access(struct qms_lease_table *table,
			       const struct qms_capability *capability, uint32_t owner,
			       uint32_t slot, qmc_time_t now, qms_lease_slot_func_t hold,
			       void *user);

/** Earliest expiry, QMC_TIME_NEVER when nothing is leased. */
qmc_time_t qms_lease_next_expiry(struct qms_lease_table *table);

/** Leases in force. */
uint32_t qms_lease_count(struct qms_lease_table *table);

/** Calls @p func for every slot of every lease in force, under the lock: for checks. */
void qms_lease_walk(struct qms_lease_table *table, qms_lease_slot_func_t func, void *user);

#endif /* QMS_LEASE_H */
