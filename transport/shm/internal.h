/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A shm endpoint's insides, for the files that make it up: endpoint.c (life and
 * waiting), submit.c (requests out), complete.c (replies in). One thread.
 */
#ifndef QMT_SHM_INTERNAL_H
#define QMT_SHM_INTERNAL_H

#include "transport/queue.h"
#include "transport/shm/mailbox.h"
#include "transport/shm/mapping.h"
#include "transport/shm/staging.h"

/* What the queue does not know about an op on the wire; same ring index. */
struct qmt_shm_extra {
	uint64_t region, offset;
	uint64_t staging_cost; /* of a write */
};

struct qmt_shm_endpoint {
	int fd;
	bool alive;
	struct qmt_identity peer;
	uint64_t max_length;
	char path[QMT_ADDRESS_TEXT_MAX];
	struct qmt_queue queue;
	struct qmt_shm_extra extras[QMT_WINDOW_OPS];
	struct qmt_mappings mappings;
	struct qmt_staging staging;
	bool announce; /* the server has not been given the staging memfd yet */
	struct qmt_outbox outbox;
	struct qmt_inbox inbox;
	uint64_t copied;      /* of the read that the next reply granted */
	uint64_t unconfirmed; /* oldest reads on the wire, copied but not known to be in time */
};

/** What shm keeps of an operation on the wire, beside the queue's own. */
static inline struct qmt_shm_extra *qmt_shm_extra_of(struct qmt_shm_endpoint *endpoint,
						     const struct qmt_wire_op *wire)
{
	return &endpoint->extras[wire - endpoint->queue.wire];
}

/** Messages that can still be collected, less those that copied reads will need. */
static inline size_t qmt_shm_room(const struct qmt_shm_endpoint *endpoint)
{
	return qmt_outbox_room(&endpoint->outbox) - endpoint->unconfirmed;
}

/** Ends the endpoint and every op of it; logs @p why. A second time: nothing. */
void qmt_shm_die(struct qmt_shm_endpoint *endpoint, const char *why);

/** As qmt_shm_die, for a connection that is gone; errno says why, 0: an orderly close. */
void qmt_shm_die_of_close(struct qmt_shm_endpoint *endpoint);

/**
 * Starts what the window allows. With @p may_collect, messages wait for company
 * while there is other work; a packet and a wake-up for each would cost more than
 * a small copy. True when the socket takes no more for now, so that POLLOUT is
 * worth waiting for.
 */
bool qmt_shm_submit(struct qmt_shm_endpoint *endpoint, bool may_collect);

/** Works off replies for a while, copying what they grant; false when there was none. */
bool qmt_shm_complete(struct qmt_shm_endpoint *endpoint);

#endif /* QMT_SHM_INTERNAL_H */
