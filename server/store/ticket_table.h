/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The tables behind ticket.h: fixed arrays of tickets and groups, their free lists
 * and the links between them. Private to ticket.c and ticket_table.c; the
 * table's lock is held in every call.
 */
#ifndef QMS_TICKET_TABLE_H
#define QMS_TICKET_TABLE_H

#include <pthread.h>

#include "server/store/ticket.h"
#include "server/store/timers.h"

#define QMS_TICKET_NONE UINT32_MAX

enum qms_ticket_state {
	QMS_TICKET_VOID,
	QMS_TICKET_OPEN,
	QMS_TICKET_COMMITTING,
	QMS_TICKET_COMMITTED,
	QMS_TICKET_ENDED
};

struct qms_ticket {
	uint64_t id; /* low 32 bits: index, high: serial number; stays after the end */
	uint64_t generation;
	uint32_t slot;
	uint32_t group;
	uint32_t life;     /* of the group */
	uint32_t previous; /* in the group */
	uint32_t next;     /* in the group, a chain of expired ones or the free list */
	uint8_t state;
};

struct qms_ticket_group {
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
	struct qms_ticket *tickets;
	uint32_t tickets_used;
	uint32_t free_oldest; /* reused oldest first, so that an id is remembered for long */
	uint32_t free_newest;
	struct qms_ticket_group *groups;
	uint32_t groups_used;
	uint32_t groups_free;
	uint32_t count;
	uint32_t serial;
	struct qms_timers *timers; /* of groups */
};

/** A free group, QMS_TICKET_NONE when there is none. */
uint32_t qms_ticket_group_take(struct qms_ticket_table *table);

/** Ends a group: its capability gives no right any more. */
void qms_ticket_group_give(struct qms_ticket_table *table, uint32_t number);

/** A free ticket, the one that ended longest ago; QMS_TICKET_NONE when there is none. */
uint32_t qms_ticket_take(struct qms_ticket_table *table);

/** Gives a ticket back; what became of it (@p state) is remembered until it is taken again. */
void qms_ticket_give(struct qms_ticket_table *table, uint32_t number, uint8_t state);

/** Into and out of the list of its group. */
void qms_ticket_link(struct qms_ticket_table *table, uint32_t number);
void qms_ticket_unlink(struct qms_ticket_table *table, uint32_t number);

#endif /* QMS_TICKET_TABLE_H */
