/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/ticket_table.h"

#include <stdlib.h>

qmla_status_t qms_ticket_table_create(uint32_t tickets, struct qms_ticket_table **table)
{
	struct qms_ticket_table *made = calloc(1, sizeof(*made));

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	pthread_mutex_init(&made->lock, NULL);
	made->limit = tickets;
	made->free_oldest = made->free_newest = made->groups_free = QMS_TICKET_NONE;
	made->tickets = calloc(tickets, sizeof(*made->tickets));
	made->groups = calloc(tickets, sizeof(*made->groups));
	if (!made->tickets || !made->groups ||
	    qms_timers_create(tickets, &made->timers) != QMLA_OK) {
		qms_ticket_table_destroy(made);
		return QMLA_ERR_NO_MEMORY;
	}
	*table = made;
	return QMLA_OK;
}

void qms_ticket_table_destroy(struct qms_ticket_table *table)
{
	if (!table)
		return;
	pthread_mutex_destroy(&table->lock);
	qms_timers_destroy(table->timers);
	free(table->tickets);
	free(table->groups);
	free(table);
}

uint32_t qms_ticket_group_take(struct qms_ticket_table *table)
{
	uint32_t number = table->groups_free;

	if (number != QMS_TICKET_NONE)
		table->groups_free = table->groups[number].next_free;
	else if (table->groups_used < table->limit)
		number = table->groups_used++;
	return number;
}

void qms_ticket_group_give(struct qms_ticket_table *table, uint32_t number)
{
	struct qms_ticket_group *group = &table->groups[number];

	qms_timers_clear(table->timers, number);
	group->alive = false; /* the capability stays: a late user is told that the ticket ended */
	group->next_free = table->groups_free;
	table->groups_free = number;
}

uint32_t qms_ticket_take(struct qms_ticket_table *table)
{
	uint32_t number = table->free_oldest;

	if (table->tickets_used < table->limit)
		return table->tickets_used++;
	if (number == QMS_TICKET_NONE)
		return QMS_TICKET_NONE;
	table->free_oldest = table->tickets[number].next;
	if (table->free_oldest == QMS_TICKET_NONE)
		table->free_newest = QMS_TICKET_NONE;
	return number;
}

void qms_ticket_give(struct qms_ticket_table *table, uint32_t number, uint8_t state)
{
	table->tickets[number].state = state;
	table->tickets[number].next = QMS_TICKET_NONE;
	if (table->free_newest != QMS_TICKET_NONE)
		table->tickets[table->free_newest].next = number;
	else
		table->free_oldest = number;
	table->free_newest = number;
	table->count--;
}

void qms_ticket_link(struct qms_ticket_table *table, uint32_t number)
{
	struct qms_ticket *ticket = &table->tickets[number];
	struct qms_ticket_group *group = &table->groups[ticket->group];

	ticket->previous = QMS_TICKET_NONE;
	ticket->next = group->first;
	if (group->first != QMS_TICKET_NONE)
		table->tickets[group->first].previous = number;
	group->first = number;
}

void qms_ticket_unlink(struct qms_ticket_table *table, uint32_t number)
{
	struct qms_ticket *ticket = &table->tickets[number];

	if (ticket->previous != QMS_TICKET_NONE)
		table->tickets[ticket->previous].next = ticket->next;
	else
		table->groups[ticket->group].first = ticket->next;
	if (ticket->next != QMS_TICKET_NONE)
		table->tickets[ticket->next].previous = ticket->previous;
}

qmc_time_t qms_ticket_next_expiry(struct qms_ticket_table *table)
{
	qmc_time_t next;

	pthread_mutex_lock(&table->lock);
	next = qms_timers_next(table->timers);
	pthread_mutex_unlock(&table->lock);
	return next;
}

uint32_t qms_ticket_count(struct qms_ticket_table *table)
{
	uint32_t count;

	pthread_mutex_lock(&table->lock);
	count = table->count;
	pthread_mutex_unlock(&table->lock);
	return count;
}

void qms_ticket_walk(struct qms_ticket_table *table, qms_ticket_slot_func_t func, void *user)
{
	pthread_mutex_lock(&table->lock);
	for (uint32_t i = 0; i < table->tickets_used; i++) {
		const struct qms_ticket *ticket = &table->tickets[i];

		if (ticket->state == QMS_TICKET_OPEN || ticket->state == QMS_TICKET_COMMITTING) {
			struct qms_ticket_ref ref = {table->groups[ticket->group].owner,
						     ticket->slot, i, ticket->generation};

			func(user, &ref);
		}
	}
	pthread_mutex_unlock(&table->lock);
}
