/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A client's packets: messages collected until it pays to send them, and the
 * replies of the last packet that came. One thread; never blocks.
 */
#ifndef QMT_SHM_MAILBOX_H
#define QMT_SHM_MAILBOX_H

#include "transport/shm/packet.h"

/** Requests and ends of reads that were not sent yet. */
struct qmt_outbox {
	uint8_t data[QMT_PACKET_BYTES];
	size_t bytes;
	uint64_t weight; /**< bytes of data that moved for them */
	size_t requests; /**< messages that ask for something */
};

/** How many more messages fit. */
size_t qmt_outbox_room(const struct qmt_outbox *outbox);

/** Adds a message for which @p moved bytes of data moved; there must be room. */
void qmt_outbox_add(struct qmt_outbox *outbox, const struct qmt_wire_request *request,
		    uint64_t moved);

/** True when the server should be told: the packet is full, or much has moved. */
bool qmt_outbox_is_due(const struct qmt_outbox *outbox);

/** Sends all in one packet. OK too when there is nothing. */
enum qmt_packet_result qmt_outbox_send(struct qmt_outbox *outbox, int fd);

/** Replies: those before `next` are dealt with. */
struct qmt_inbox {
	struct qmt_wire_reply replies[QMT_PACKET_MESSAGES];
	size_t next, count;
	int passed; /**< descriptor that came with the last of them; -1: none. The inbox's */
};

/** An empty inbox. */
void qmt_inbox_init(struct qmt_inbox *inbox);

/** Closes a descriptor that nobody took. */
void qmt_inbox_fini(struct qmt_inbox *inbox);

/**
 * The next reply, from the last packet or from one that is received now.
 * BROKEN: malformed.
 */
enum qmt_packet_result qmt_inbox_peek(struct qmt_inbox *inbox, int fd,
				      const struct qmt_wire_reply **reply);

#endif /* QMT_SHM_MAILBOX_H */
