/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/ticket.h"

#include <string.h>

#include "common/digest.h"
#include "server/store/ticket_table.h"

qmla_status_t qms_ticket_group_open(struct qms_ticket_table *table, uint32_t owner, uint32_t *group,
				    struct qms_capability *capability)
{
	struct qms_capability random;
	qmla_status_t status = qmc_random_bytes(&random, sizeof(random));
	uint32_t number;

	if (status != QMLA_OK)
		return status;
	pthread_mutex_lock(&table->lock);
	number = qms_ticket_group_take(table);
	if (number != QMS_TICKET_NONE) {
		memcpy(random.bytes, &number, sizeof(number));
		table->groups[number] =
			(struct qms_ticket_group){.capability = random,
						  .owner = owner,
						  .life = table->groups[number].life + 1,
						  .first = QMS_TICKET_NONE,
						  .building = true,
						  .alive = true};
	}
	pthread_mutex_unlock(&table->lock);
	if (number == QMS_TICKET_NONE)
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	*group = number;
	*capability = random;
	return QMLA_OK;
}

qmla_status_t qms_ticket_add(struct qms_ticket_table *table, uint32_t group, uint32_t slot,
			     uint64_t generation, uint64_t *id, uint32_t *number)
{
	uint32_t taken;

	pthread_mutex_lock(&table->lock);
	taken = qms_ticket_take(table);
	if (taken != QMS_TICKET_NONE) {
		struct qms_ticket *ticket = &table->tickets[taken];

		table->serial = (table->serial + 1) & INT32_MAX;
		*ticket = (struct qms_ticket){.id = (uint64_t)(table->serial | 1u << 30) << 32 |
						    taken,
					      .generation = generation,
					      .slot = slot,
					      .group = group,
					      .life = table->groups[group].life,
					      .state = QMS_TICKET_OPEN};
		qms_ticket_link(table, taken);
		table->count++;
		*id = ticket->id;
		*number = taken;
	}
	pthread_mutex_unlock(&table->lock);
	return taken == QMS_TICKET_NONE ? QMLA_ERR_RESOURCE_EXHAUSTED : QMLA_OK;
}

void qms_ticket_retract(struct qms_ticket_table *table, uint64_t id)
{
	uint32_t number = (uint32_t)id;

	pthread_mutex_lock(&table->lock);
	qms_ticket_unlink(table, number);
	qms_ticket_give(table, number, QMS_TICKET_VOID);
	pthread_mutex_unlock(&table->lock);
}

void qms_ticket_group_close(struct qms_ticket_table *table, uint32_t group, qmc_time_t expiry)
{
	pthread_mutex_lock(&table->lock);
	table->groups[group].building = false;
	if (table->groups[group].first == QMS_TICKET_NONE)
		qms_ticket_group_give(table, group);
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
	struct qms_ticket *ticket;

	if (number >= table->tickets_used || table->tickets[number].id != id)
		return QMLA_ERR_LEASE_EXPIRED;
	ticket = &table->tickets[number];
	if (ticket->state == QMS_TICKET_COMMITTED)
		return QMLA_ERR_ALREADY_EXISTS;
	if (ticket->state == QMS_TICKET_COMMITTING)
		return QMLA_ERR_BUSY;
	if (ticket->state != QMS_TICKET_OPEN || !in_force(table, ticket->group, now))
		return QMLA_ERR_LEASE_EXPIRED;
	ticket->state = QMS_TICKET_COMMITTING;
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
	struct qms_ticket *ticket = &table->tickets[ref->number];
	struct qms_ticket_group *group;

	pthread_mutex_lock(&table->lock);
	group = &table->groups[ticket->group];
	ticket->state = QMS_TICKET_OPEN;
	/* The group expired meanwhile and left this one out: let the reaper come again. */
	if (!group->alive)
		qms_timers_set(table->timers, ticket->group, 0);
	pthread_mutex_unlock(&table->lock);
}

void qms_ticket_finish(struct qms_ticket_table *table, const struct qms_ticket_ref *ref,
		       bool committed, struct qms_ticket_end *end)
{
	uint32_t number = ref->number;
	struct qms_ticket_group *group;

	pthread_mutex_lock(&table->lock);
	group = &table->groups[table->tickets[number].group];
	qms_ticket_unlink(table, number);
	if (!committed)
		group->unclean = true;
	*end = (struct qms_ticket_end){group->first == QMS_TICKET_NONE && !group->building,
				       !group->unclean, group->capability};
	if (end->last)
		qms_ticket_group_give(table, table->tickets[number].group);
	qms_ticket_give(table, number, committed ? QMS_TICKET_COMMITTED : QMS_TICKET_ENDED);
	pthread_mutex_unlock(&table->lock);
}

/* Pulls the open tickets of @group into a chain of their own. Locked. */
static uint32_t collect_open(struct qms_ticket_table *table, uint32_t group)
{
	uint32_t chain = QMS_TICKET_NONE;
	uint32_t next;

	for (uint32_t at = table->groups[group].first; at != QMS_TICKET_NONE; at = next) {
		next = table->tickets[at].next;
		if (table->tickets[at].state != QMS_TICKET_OPEN)
			continue;
		qms_ticket_unlink(table, at);
		table->tickets[at].state = QMS_TICKET_ENDED;
		table->tickets[at].next = chain;
		chain = at;
	}
	return chain;
}

static void drop_chain(struct qms_ticket_table *table, uint32_t owner, uint32_t chain,
		       qms_ticket_slot_func_t drop, void *user)
{
	while (chain != QMS_TICKET_NONE) {
		struct qms_ticket *ticket = &table->tickets[chain];
		struct qms_ticket_ref ref = {owner, ticket->slot, chain, ticket->generation};
		uint32_t next = ticket->next;

		drop(user, &ref);
		pthread_mutex_lock(&table->lock);
		qms_ticket_give(table, chain, QMS_TICKET_ENDED);
		pthread_mutex_unlock(&table->lock);
		chain = next;
	}
}

bool qms_ticket_expire(struct qms_ticket_table *table, qmc_time_t now,
		       qms_ticket_fence_func_t fence, qms_ticket_slot_func_t drop, void *user)
{
	struct qms_capability capability;
	uint32_t chain = QMS_TICKET_NONE;
	uint32_t owner = 0;
	uint32_t number;
	bool due;

	pthread_mutex_lock(&table->lock);
	due = qms_timers_due(table->timers, now, &number);
	if (due) {
		struct qms_ticket_group *group = &table->groups[number];

		group->alive = false;
		group->unclean = true;
		owner = group->owner;
		capability = group->capability;
		qms_timers_clear(table->timers, number);
		chain = collect_open(table, number);
		/* Those being committed end by themselves; the last one frees the group. */
		if (group->first == QMS_TICKET_NONE)
			qms_ticket_group_give(table, number);
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
	const struct qms_ticket_group *group;
	const struct qms_ticket *ticket;
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
	return ticket->state == QMS_TICKET_OPEN ? QMLA_OK : QMLA_ERR_LEASE_EXPIRED;
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
