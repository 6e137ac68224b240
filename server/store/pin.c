/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/pin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/store/timers.h"

struct pin {
	uint64_t serial; /* 0: free */
	uint64_t hash;
	uint32_t partition;
	uint32_t slot;
	uint32_t next; /* of the slot's list or the free list; number + 1 */
	char owner[QMS_OWNER_MAX];
};

struct qms_pin_table {
	pthread_mutex_t lock;
	struct pin *pins;
	uint32_t limit;
	uint32_t used;
	uint32_t free;
	uint32_t count;
	uint64_t serial;
	struct qms_timers *timers;
};

qmla_status_t qms_pin_table_create(uint32_t pins, struct qms_pin_table **table)
{
	struct qms_pin_table *made = calloc(1, sizeof(*made));

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	pthread_mutex_init(&made->lock, NULL);
	made->limit = pins;
	made->pins = calloc(pins, sizeof(*made->pins));
	if (!made->pins || qms_timers_create(pins, &made->timers) != QMLA_OK) {
		qms_pin_table_destroy(made);
		return QMLA_ERR_NO_MEMORY;
	}
	*table = made;
	return QMLA_OK;
}

void qms_pin_table_destroy(struct qms_pin_table *table)
{
	if (!table)
		return;
	pthread_mutex_destroy(&table->lock);
	qms_timers_destroy(table->timers);
	free(table->pins);
	free(table);
}

/* Link that leads to @owner's pin, or to the end of the list. */
static uint32_t *find(struct qms_pin_table *table, uint32_t *head, const char *owner)
{
	uint32_t *link = head;

	while (*link != QMS_PIN_NONE && strcmp(table->pins[*link - 1].owner, owner) != 0)
		link = &table->pins[*link - 1].next;
	return link;
}

static uint32_t take(struct qms_pin_table *table)
{
	uint32_t number = table->free;

	if (number != QMS_PIN_NONE)
		table->free = table->pins[number - 1].next;
	else if (table->used < table->limit)
		number = ++table->used;
	return number;
}

static void drop(struct qms_pin_table *table, uint32_t *link)
{
	uint32_t number = *link;
	struct pin *pin = &table->pins[number - 1];

	*link = pin->next;
	qms_timers_clear(table->timers, number - 1);
	pin->serial = 0;
	pin->next = table->free;
	table->free = number;
	table->count--;
}

qmla_status_t qms_pin_add(struct qms_pin_table *table, uint32_t partition, uint32_t slot,
			  uint64_t hash, uint32_t *head, const char *owner, qmc_time_t expiry,
			  bool *added)
{
	uint32_t number;
	bool fresh;

	pthread_mutex_lock(&table->lock);
	number = *find(table, head, owner);
	fresh = number == QMS_PIN_NONE;
	if (fresh)
		number = take(table);
	if (fresh && number != QMS_PIN_NONE) {
		struct pin *pin = &table->pins[number - 1];

		*pin = (struct pin){.serial = ++table->serial,
				    .hash = hash,
				    .partition = partition,
				    .slot = slot,
				    .next = *head};
		snprintf(pin->owner, sizeof(pin->owner), "%s", owner);
		*head = number;
		table->count++;
	}
	if (number != QMS_PIN_NONE)
		qms_timers_set(table->timers, number - 1, expiry);
	pthread_mutex_unlock(&table->lock);
	if (number == QMS_PIN_NONE)
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	*added = fresh;
	return QMLA_OK;
}

bool qms_pin_remove(struct qms_pin_table *table, uint32_t *head, const char *owner)
{
	uint32_t *link;
	bool found;

	pthread_mutex_lock(&table->lock);
	link = find(table, head, owner);
	found = *link != QMS_PIN_NONE;
	if (found)
		drop(table, link);
	pthread_mutex_unlock(&table->lock);
	return found;
}

uint32_t qms_pin_clear(struct qms_pin_table *table, uint32_t *head)
{
	uint32_t cleared = 0;

	pthread_mutex_lock(&table->lock);
	for (; *head != QMS_PIN_NONE; cleared++)
		drop(table, head);
	pthread_mutex_unlock(&table->lock);
	return cleared;
}

bool qms_pin_due(struct qms_pin_table *table, qmc_time_t now, struct qms_pin_due *due)
{
	uint32_t number;
	bool found;

	pthread_mutex_lock(&table->lock);
	found = qms_timers_due(table->timers, now, &number);
	if (found) {
		const struct pin *pin = &table->pins[number];

		*due = (struct qms_pin_due){pin->serial, pin->hash, pin->partition, pin->slot,
					    number};
	}
	pthread_mutex_unlock(&table->lock);
	return found;
}

bool qms_pin_expire(struct qms_pin_table *table, qmc_time_t now, uint32_t *head,
		    const struct qms_pin_due *due)
{
	const struct pin *pin = &table->pins[due->number];
	bool ended;

	pthread_mutex_lock(&table->lock);
	/* Renewed, taken away or used for another slot since it was found due? */
	ended = pin->serial == due->serial && qms_timers_get(table->timers, due->number) <= now;
	if (ended)
		drop(table, find(table, head, pin->owner));
	pthread_mutex_unlock(&table->lock);
	return ended;
}

qmc_time_t qms_pin_next_expiry(struct qms_pin_table *table)
{
	qmc_time_t next;

	pthread_mutex_lock(&table->lock);
	next = qms_timers_next(table->timers);
	pthread_mutex_unlock(&table->lock);
	return next;
}

uint32_t qms_pin_count(struct qms_pin_table *table)
{
	uint32_t count;

	pthread_mutex_lock(&table->lock);
	count = table->count;
	pthread_mutex_unlock(&table->lock);
	return count;
}

uint32_t qms_pin_list_length(struct qms_pin_table *table, uint32_t head)
{
	uint32_t length = 0;

	pthread_mutex_lock(&table->lock);
	for (; head != QMS_PIN_NONE; head = table->pins[head - 1].next)
		length++;
	pthread_mutex_unlock(&table->lock);
	return length;
}
