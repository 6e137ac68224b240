/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <unistd.h>

#include "transport/barrier.h"
#include "transport/liveness.h"
#include "transport/shm/internal.h"

#define PIECE_BYTES   (UINT64_C(4) << 20)   /* copied between two looks at the clock */
#define CONFIRM_BYTES (UINT64_C(256) << 10) /* copied between two looks at the socket */

/*
 * Whether the grant still held when the copy ended. The server shuts the socket
 * down before it takes a grant back, so an open socket now means that what was
 * read before was read in time.
 */
static bool still_granted(const struct qmt_shm_endpoint *endpoint)
{
	/* The copy's loads come before the look at the socket. */
	qmt_barrier();
	return qmt_socket_is_open(endpoint->fd);
}

/* The oldest read is over: tells the server and the caller. */
static void finish_read(struct qmt_shm_endpoint *endpoint, qmla_status_t status, uint64_t moved)
{
	struct qmt_wire_request done = {.kind = QMT_WIRE_DONE, .status = status};

	done.id = qmt_queue_front(&endpoint->queue)->id;
	qmt_outbox_add(&endpoint->outbox, &done, moved);
	qmt_queue_retire(&endpoint->queue, status);
}

/* Ends the reads that were copied, if they were in time. */
static void confirm(struct qmt_shm_endpoint *endpoint)
{
	if (endpoint->unconfirmed == 0)
		return;
	if (!still_granted(endpoint)) {
		qmt_shm_die(endpoint, "closed by the server during a read");
		return;
	}
	for (; endpoint->unconfirmed > 0; endpoint->unconfirmed--)
		finish_read(endpoint, QMLA_OK, qmt_queue_front(&endpoint->queue)->length);
}

/* Maps the region that came with the reply to @wire. */
static bool take_region(struct qmt_shm_endpoint *endpoint, const struct qmt_wire_op *wire,
			uint64_t bytes)
{
	qmla_status_t status =
		qmt_mappings_add(&endpoint->mappings, qmt_shm_extra_of(endpoint, wire)->region,
				 endpoint->inbox.passed, bytes);

	close(endpoint->inbox.passed);
	endpoint->inbox.passed = -1;
	if (status != QMLA_OK)
		qmt_shm_die(endpoint, "the region it passed cannot be mapped");
	return status == QMLA_OK;
}

/* Copies a piece of a granted read; returns its size. */
static uint64_t copy_piece(struct qmt_shm_endpoint *endpoint, const struct qmt_wire_op *wire)
{
	const struct qmt_shm_extra *extra = qmt_shm_extra_of(endpoint, wire);
	uint64_t piece = wire->length - endpoint->copied;
	const uint8_t *from =
		qmt_mappings_find(&endpoint->mappings, extra->region, extra->offset, wire->length);

	if (!from) {
		qmt_shm_die(endpoint, "the server granted bytes outside the region it passed");
		return 0;
	}
	if (piece > PIECE_BYTES)
		piece = PIECE_BYTES;
	memcpy((uint8_t *)wire->op->local + endpoint->copied, from + endpoint->copied, piece);
	endpoint->copied += piece;
	if (endpoint->copied == wire->length) {
		endpoint->copied = 0;
		endpoint->inbox.next++;
		endpoint->unconfirmed++;
	}
	return piece;
}

/* Ends the oldest op by its reply, which grants no copying. */
static void on_ended(struct qmt_shm_endpoint *endpoint, const struct qmt_wire_reply *reply)
{
	struct qmt_wire_op *wire;

	confirm(endpoint); /* those before it */
	if (!endpoint->alive)
		return;
	wire = qmt_queue_front(&endpoint->queue);
	endpoint->inbox.next++;
	endpoint->copied = 0;
	if (reply->status == QMLA_OK && wire->access == QMT_READ) {
		finish_read(endpoint, QMLA_ERR_CANCELLED, 0);
		return;
	}
	if (wire->access == QMT_WRITE)
		qmt_staging_release(&endpoint->staging,
				    qmt_shm_extra_of(endpoint, wire)->staging_cost);
	qmt_queue_retire(&endpoint->queue, reply->status);
}

/* Deals with the next reply, or with a piece of it; returns how much was copied. */
static uint64_t on_reply(struct qmt_shm_endpoint *endpoint, const struct qmt_wire_reply *reply)
{
	struct qmt_wire_op *wire = qmt_queue_at(&endpoint->queue, endpoint->unconfirmed);

	if (!wire || reply->id != wire->id || (unsigned)reply->kind != (unsigned)wire->access ||
	    (reply->status == QMLA_OK && reply->length != wire->length)) {
		qmt_shm_die(endpoint, "reply to something that was not asked");
		return 0;
	}
	if (endpoint->inbox.passed >= 0 && reply->region_bytes &&
	    !take_region(endpoint, wire, reply->region_bytes))
		return 0;
	if (reply->status == QMLA_OK && wire->access == QMT_READ && wire->op)
		return copy_piece(endpoint, wire);
	on_ended(endpoint, reply);
	return 0;
}

/* The next reply; NULL when there is none. */
static const struct qmt_wire_reply *next_reply(struct qmt_shm_endpoint *endpoint)
{
	const struct qmt_wire_reply *reply = NULL;

	switch (qmt_inbox_peek(&endpoint->inbox, endpoint->fd, &reply)) {
	case QMT_PACKET_OK:
	case QMT_PACKET_WAIT:
		break;
	case QMT_PACKET_CLOSED:
		qmt_shm_die_of_close(endpoint);
		break;
	case QMT_PACKET_BROKEN:
		qmt_shm_die(endpoint, "malformed reply");
		break;
	}
	return reply;
}

bool qmt_shm_complete(struct qmt_shm_endpoint *endpoint)
{
	uint64_t copied = 0;
	bool moved = false;

	while (endpoint->alive && qmt_shm_room(endpoint) > 0 && copied < CONFIRM_BYTES) {
		const struct qmt_wire_reply *reply = next_reply(endpoint);

		if (!reply)
			break;
		copied += on_reply(endpoint, reply);
		moved = true;
	}
	if (endpoint->alive)
		confirm(endpoint);
	return moved;
}
