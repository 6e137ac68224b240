/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Pins: an owner's wish that a resident slot stays, always with an end. A slot
 * may have several, one an owner; the slot carries the head of its list. Fixed
 * size, own lock, taken after an index shard's.
 */
#ifndef QMS_PIN_H
#define QMS_PIN_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "common/clock.h"
#include "server/store/types.h"

#define QMS_PIN_NONE 0u /**< an empty list */

struct qms_pin_table;

/** A pin whose time has come, as seen without the shard's lock. */
struct qms_pin_due {
	uint64_t serial;
	uint64_t hash;  /**< of the slot's key: names the shard */
	uint32_t owner; /**< partition */
	uint32_t slot;
	uint32_t number;
};

qmla_status_t qms_pin_table_create(uint32_t pins, struct qms_pin_table **table);
void qms_pin_table_destroy(struct qms_pin_table *table); /**< accepts NULL */

/**
 * Pins @p slot of partition @p partition for @p owner until @p expiry. If @p owner
 * has it pinned already the end moves to @p expiry and @p added is false. Slot's
 * shard locked. QMLA_ERR_RESOURCE_EXHAUSTED: the table is full.
 */
qmla_status_t qms_pin_add(struct qms_pin_table *table, uint32_t partition, uint32_t slot,
			  uint64_t hash, uint32_t *head, const char *owner, qmc_time_t expiry,
			  bool *added);

/** Takes @p owner's pin away; false when there is none. Slot's shard locked. */
bool qms_pin_remove(struct qms_pin_table *table, uint32_t *head, const char *owner);

/** Takes all pins of a slot away; returns how many. Slot's shard locked. */
uint32_t qms_pin_clear(struct qms_pin_table *table, uint32_t *head);

/** Earliest pin that ended by @p now; false when there is none. It stays. */
bool qms_pin_due(struct qms_pin_table *table, qmc_time_t now, struct qms_pin_due *due);

/** Takes away what qms_pin_due found unless it changed meanwhile (false). Slot's shard locked. */
bool qms_pin_expire(struct qms_pin_table *table, qmc_time_t now, uint32_t *head,
		    const struct qms_pin_due *due);

qmc_time_t qms_pin_next_expiry(struct qms_pin_table *table);
uint32_t qms_pin_count(struct qms_pin_table *table);

/** Length of a slot's list: for checks. */
uint32_t qms_pin_list_length(struct qms_pin_table *table, uint32_t head);

#endif /* QMS_PIN_H */
