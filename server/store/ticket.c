/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/ticket.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "server/store/timers.h"

#define NONE UINT32_MAX

enum ticket_state { VOID, OPEN, COMMITTING, COMMITTED, ENDED };

struct ticket {
	uint64_t id; /* low 32 bits: index, high: serial number; stays after the end */
	uint64_t generation;
	uint32_t slot;
	uint32_t group;
	uint32_t life;     /* of the group */
	uint32_t previous; /* in the group */
	uint32_t next;     /* in the group, a chain of expired ones or the free list */
	uint8_t state;
};

struct group {
	struct qms_capability capability; /* first 4 bytes: index, the rest random */
	uint32_t owner;
	uint32_t life; /* rises at every reuse: ended tickets of an earlier one do not match */
	uint32_t first;
	uint32_t next_free;
	bool building;
	bool alive;   /* authorises writes */
	bool unclean; /* a ticket ended without commit */
};

struct qms_ticket_table {
	pthread_mutex_t lock;
	uint32_t limit;
	struct ticket *tickets;
	uint32_t tickets_used;
	uint32_t free_oldest; /* reused oldest first, so that an id is remembered for long */
	uint32_t free_newest;
	struct group *groups;
	uint32_t groups_used;
	uint32_t groups_free;
	uint32_t count;
	uint32_t serial;
	struct qms_timers *timers; /* of groups */
};

qmla_status_t qms_ticket_table_create(uint32_t tickets, struct qms_ticket_table **table)
{
	struct qms_ticket_table *made = calloc(1, sizeof(*made));

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	pthread_mutex_init(&made->lock, NULL);
	made->limit = tickets;
	made->free_oldest = made->free_newest = made->groups_free = NONE;
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

static uint32_t group_take(struct qms_ticket_table *table)
{
	uint32_t number = table->groups_free;

	if (number != NONE)
		table->groups_free = table->groups[number].next_free;
	else if (table->groups_used < table->limit)
		number = table->groups_used++;
	return number;
}

static void group_give(struct qms_ticket_table *table, uint32_t number)
{
	struct group *group = &table->groups[number];

	qms_timers_clear(table->timers, number);
	group->alive = false; /* the capability stays: a late user is told that the ticket ended */
	group->next_free = table->groups_free;
	table->groups_free = number;
}

qmla_status_t qms_ticket_group_open(struct qms_ticket_table *table, uint32_t owner, uint32_t *group,
				    struct qms_capability *capability)
{
	struct qms_capability random;
	qmla_status_t status = qmc_random_bytes(&random, sizeof(random));
	uint32_t number;

	if (status != QMLA_OK)
		return status;
	pthread_mutex_lock(&table->lock);
	number = group_take(table);
	if (number != NONE) {
		memcpy(random.bytes, &number, sizeof(number));
		table->groups[number] = (struct group){.capability = random,
						       .owner = owner,
						       .life = table->groups[number].life + 1,
						       .first = NONE,
						       .building = true,
						       .alive = true};
	}
	pthread_mutex_unlock(&table->lock);
	if (number == NONE)
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	*group = number;
	*capability = random;
	return QMLA_OK;
}

static uint32_t ticket_take(struct qms_ticket_table *table)
{
	uint32_t number = table->free_oldest;

	if (table->tickets_used < table->limit)
		return table->tickets_used++;
	if (number == NONE)
		return NONE;
	table->free_oldest = table->tickets[number].next;
	if (table->free_oldest == NONE)
		table->free_newest = NONE;
	return number;
}

static void ticket_give(struct qms_ticket_table *table, uint32_t number, uint8_t state)
{
	table->tickets[number].state = state;
	table->tickets[number].next = NONE;
	if (table->free_newest != NONE)
		table->tickets[table->free_newest].next = number;
	else
		table->free_oldest = number;
	table->free_newest = number;
	table->count--;
}

static void group_link(struct qms_ticket_table *table, uint32_t number)
{
	struct ticket *ticket = &table->tickets[number];
	struct group *group = &table->groups[ticket->group];

	ticket->previous = NONE;
	ticket->next = group->first;
	if (group->first != NONE)
		table->tickets[group->first].previous = number;
	group->first = number;
}

static void group_unlink(struct qms_ticket_table *table, uint32_t number)
{
	struct ticket *ticket = &table->tickets[number];

	if (ticket->previous != NONE)
		table->tickets[ticket->previous].next = ticket->next;
	else
		table->groups[ticket->group].first = ticket->next;
	if (ticket->next != NONE)
		table->tickets[ticket->next].previous = ticket->previous;
}

qmla_status_t qms_ticket_add(struct qms_ticket_table *table, uint32_t group, uint32_t slot,
			     uint64_t generation, uint64_t *id, uint32_t *number)
{
	uint32_t taken;

	pthread_mutex_lock(&table->lock);
	taken = ticket_take(table);
	if (taken != NONE) {
		struct ticket *ticket = &table->tickets[taken];

		table->serial = (table->serial + 1) & INT32_MAX;
		*ticket = (struct ticket){.id = (uint64_t)(table->serial | 1u << 30) << 32 | taken,
					  .generation = generation,
					  .slot = slot,
					  .group = group,
					  .life = table->groups[group].life,
					  .state = OPEN};
		group_link(table, taken);
		table->count++;
		*id = ticket->id;
		*number = taken;
	}
	pthread_mutex_unlock(&table->lock);
	return taken == NONE ? QMLA_ERR_RESOURCE_EXHAUSTED : QMLA_OK;
}

void qms_ticket_retract(struct qms_ticket_table *table, uint64_t id)
{
	uint32_t number = (uint32_t)id;

	pthread_mutex_lock(&table->lock);
	group_unlink(table, number);
	ticket_give(table, number, VOID);
	pthread_mutex_unlock(&table->lock);
}

void qms_ticket_group_close(struct qms_ticket_table *table, uint32_t group, qmc_time_t expiry)
{
	pthread_mutex_lock(&table->lock);
	table->groups[group].building = false;
	if (table->groups[group].first == NONE)
		group_give(table, group);
	else
		qms_timers_set(table->timers, group, expiry);
	pthread_mutex_unlock(&table->lock);
}

/* A group past its time is over even if the reaper has not come to it yet. */
static bool in_force(const struct qms_ticket_table *table, uint32_t group, qmc_time_t now)
{
	return table->groups[group].alive && qms_timers_get(table->timers, group) > now;
}

static qmla_status_t begin_locked(struct qms_ticket_table *table, uint64_t id, qmc_time_t now,
				  struct qms_ticket_ref *ref)
{
	uint32_t number = (uint32_t)id;
	struct ticket *ticket;

	if (number >= table->tickets_used || table->tickets[number].id != id)
		return QMLA_ERR_LEASE_EXPIRED;
	ticket = &table->tickets[number];
	if (ticket->state == COMMITTED)
		return QMLA_ERR_ALREADY_EXISTS;
	if (ticket->state == COMMITTING)
		return QMLA_ERR_BUSY;
	if (ticket->state != OPEN || !in_force(table, ticket->group, now))
		return QMLA_ERR_LEASE_EXPIRED;
	ticket->state = COMMITTING;
	*ref = (struct qms_ticket_ref){table->groups[ticket->group].owner, ticket->slot, number,
				       ticket->generation};
	return QMLA_OK;
}

qmla_status_t qms_ticket_begin(struct qms_ticket_table *table, uint64_t id, qmc_time_t now,
			       struct qms_ticket_ref *ref)
{
	qmla_status_t status;

	pthread_mutex_lock(&table->lock);
	status = begin_locked(table, id, now, ref);
	pthread_mutex_unlock(&table->lock);
	return status;
}

void qms_ticket_reopen(struct qms_ticket_table *table, const struct qms_ticket_ref *ref)
{
	struct ticket *ticket = &table->tickets[ref->number];
	struct group *group;

	pthread_mutex_lock(&table->lock);
	group = &table->groups[ticket->group];
	ticket->state = OPEN;
	/* The group expired meanwhile and left this one out: let the reaper come again. */
	if (!group->alive)
		qms_timers_set(table->timers, ticket->group, 0);
	pthread_mutex_unlock(&table->lock);
}

void qms_ticket_finish(struct qms_ticket_table *table, const struct qms_ticket_ref *ref,
		       bool committed, struct qms_ticket_end *end)
{
	uint32_t number = ref->number;
	struct group *group;

	pthread_mutex_lock(&table->lock);
	group = &table->groups[table->tickets[number].group];
	group_unlink(table, number);
	if (!committed)
		group->unclean = true;
	*end = (struct qms_ticket_end){group->first == NONE && !group->building, !group->unclean,
				       group->capability};
	if (end->last)
		group_give(table, table->tickets[number].group);
	ticket_give(table, number, committed ? COMMITTED : ENDED);
	pthread_mutex_unlock(&table->lock);
}

/* Pulls the open tickets of @group into a chain of their own. Locked. */
static uint32_t collect_open(struct qms_ticket_table *table, uint32_t group)
{
	uint32_t chain = NONE;
	uint32_t next;

	for (uint32_t at = table->groups[group].first; at != NONE; at = next) {
		next = table->tickets[at].next;
		if (table->tickets[at].state != OPEN)
			continue;
		group_unlink(table, at);
		table->tickets[at].state = ENDED;
		table->tickets[at].next = chain;
		chain = at;
	}
	return chain;
}

static void drop_chain(struct qms_ticket_table *table, uint32_t owner, uint32_t chain,
		       qms_ticket_slot_func_t drop, void *user)
{
	while (chain != NONE) {
		struct ticket *ticket = &table->tickets[chain];
		struct qms_ticket_ref ref = {owner, ticket->slot, chain, ticket->generation};
		uint32_t next = ticket->next;

		drop(user, &ref);
		pthread_mutex_lock(&table->lock);
		ticket_give(table, chain, ENDED);
		pthread_mutex_unlock(&table->lock);
		chain = next;
	}
}

bool qms_ticket_expire(struct qms_ticket_table *table, qmc_time_t now,
		       qms_ticket_fence_func_t fence, qms_ticket_slot_func_t drop, void *user)
{
	struct qms_capability capability;
	uint32_t chain = NONE;
	uint32_t owner = 0;
	uint32_t number;
	bool due;

	pthread_mutex_lock(&table->lock);
	due = qms_timers_due(table->timers, now, &number);
	if (due) {
		struct group *group = &table->groups[number];

		group->alive = false;
		group->unclean = true;
		owner = group->owner;
		capability = group->capability;
		qms_timers_clear(table->timers, number);
		chain = collect_open(table, number);
		/* Those being committed end by themselves; the last one frees the group. */
		if (group->first == NONE)
			group_give(table, number);
	}
	pthread_mutex_unlock(&table->lock);
	if (!due)
		return false;
	fence(user, &capability);
	drop_chain(table, owner, chain, drop, user);
	return true;
}

static qmla_status_t access_locked(struct qms_ticket_table *table,
				   const struct qms_capability *capability,
				   const struct qms_ticket_ref *ref, qmc_time_t now)
{
	const struct group *group;
	const struct ticket *ticket;
	uint32_t number;

	memcpy(&number, capability->bytes, sizeof(number));
	if (number >= table->groups_used)
		return QMLA_ERR_PERMISSION;
	group = &table->groups[number];
	if (group->owner != ref->owner ||
	    !qmc_equal_constant_time(&group->capability, capability, sizeof(*capability)))
		return QMLA_ERR_PERMISSION;
	if (!in_force(table, number, now))
		return QMLA_ERR_LEASE_EXPIRED;
	if (ref->number >= table->tickets_used)
		return QMLA_ERR_PERMISSION;
	ticket = &table->tickets[ref->number];
	if (ticket->group != number || ticket->life != group->life || ticket->slot != ref->slot)
		return QMLA_ERR_PERMISSION;
	return ticket->state == OPEN ? QMLA_OK : QMLA_ERR_LEASE_EXPIRED;
}

qmla_status_t qms_ticket_access(struct qms_ticket_table *table,
				const struct qms_capability *capability,
				const struct qms_ticket_ref *ref, qmc_time_t now,
				qms_ticket_slot_func_t hold, void *user)
{
	qmla_status_t status;

	pthread_mutex_lock(&table->lock);
	status = access_locked(table, capability, ref, now);
	if (status == QMLA_OK)
		hold(user, ref);
	pthread_mutex_unlock(&table->lock);
	return status;
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
		const struct ticket *ticket = &table->tickets[i];

		if (ticket->state == OPEN || ticket->state == COMMITTING) {
			struct qms_ticket_ref ref = {table->groups[ticket->group].owner,
						     ticket->slot, i, ticket->generation};

			func(user, &ref);
		}
	}
	pthread_mutex_unlock(&table->lock);
}
