/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/endpoint.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "transport/barrier.h"
#include "transport/queue.h"
#include "transport/shm/connect.h"
#include "transport/shm/mailbox.h"
#include "transport/shm/mapping.h"
#include "transport/shm/staging.h"

#define PIECE_BYTES   (UINT64_C(4) << 20)   /* copied between two looks at the clock */
#define CONFIRM_BYTES (UINT64_C(256) << 10) /* copied between two looks at the socket */

/* What the queue does not know about an op on the wire; same ring index. */
struct extra {
	uint64_t region, offset;
	uint64_t staging_cost; /* of a write */
};

struct shm_endpoint {
	int fd;
	bool alive;
	struct qmt_identity peer;
	uint64_t max_length;
	char path[QMT_ADDRESS_TEXT_MAX];
	struct qmt_queue queue;
	struct extra extras[QMT_WINDOW_OPS];
	struct qmt_mappings mappings;
	struct qmt_staging staging;
	bool announce; /* the server has not been given the staging memfd yet */
	struct qmt_outbox outbox;
	struct qmt_inbox inbox;
	uint64_t copied;      /* of the read that the next reply granted */
	uint64_t unconfirmed; /* oldest reads on the wire, copied but not known to be in time */
};

static struct shm_endpoint *endpoint_of(struct qmt_endpoint *endpoint)
{
	return (struct shm_endpoint *)endpoint;
}

qmla_status_t qmt_shm_endpoint_create(const struct qmt_server_address *address, qmc_time_t deadline,
				      struct qmt_endpoint **out)
{
	struct shm_endpoint *endpoint = calloc(1, sizeof(*endpoint));
	qmla_status_t status;

	if (!endpoint)
		return QMLA_ERR_NO_MEMORY;
	status = qmt_address_decode(address, QMT_KIND_SHM, &endpoint->peer, endpoint->path);
	if (status != QMLA_OK) {
		qmc_error("shm", "not the address of a shm server: %s", qmla_status_text(status));
		goto err_free;
	}
	status = qmt_shm_connect(&endpoint->peer, endpoint->path, deadline, &endpoint->fd,
				 &endpoint->max_length);
	if (status != QMLA_OK) {
		qmc_warn_limited("shm", "cannot connect to %s: %s", endpoint->path,
				 qmla_status_text(status));
		goto err_free;
	}
	qmt_queue_init(&endpoint->queue);
	qmt_staging_init(&endpoint->staging);
	qmt_inbox_init(&endpoint->inbox);
	endpoint->alive = true;
	*out = (struct qmt_endpoint *)endpoint;
	return QMLA_OK;

err_free:
	free(endpoint);
	return status;
}

static void disconnect(struct shm_endpoint *endpoint)
{
	qmt_inbox_fini(&endpoint->inbox);
	if (endpoint->fd >= 0)
		close(endpoint->fd);
	endpoint->fd = -1;
}

void qmt_shm_endpoint_destroy(struct qmt_endpoint *base)
{
	struct shm_endpoint *endpoint = endpoint_of(base);

	if (!endpoint)
		return;
	disconnect(endpoint);
	qmt_mappings_fini(&endpoint->mappings);
	qmt_staging_fini(&endpoint->staging);
	free(endpoint);
}

qmla_status_t qmt_shm_endpoint_register(struct qmt_endpoint *endpoint,
					const struct qmt_memory *memory)
{
	/* memcpy reaches any memory of this process. */
	(void)endpoint;
	(void)memory;
	return QMLA_OK;
}

qmla_status_t qmt_shm_endpoint_post(struct qmt_endpoint *base, struct qmt_op *op)
{
	struct shm_endpoint *endpoint = endpoint_of(base);
	struct qmt_remote_region region;
	qmla_status_t status;

	if (!endpoint->alive)
		return QMLA_ERR_UNAVAILABLE;
	status = qmt_op_check(op, &endpoint->peer, endpoint->max_length, &region);
	if (status == QMLA_OK)
		qmt_queue_push(&endpoint->queue, op);
	return status;
}

/* ---- failure ---- */

/* Ends the endpoint and every op of it. */
static void die(struct shm_endpoint *endpoint, const char *why)
{
	if (!endpoint->alive)
		return;
	qmc_warn_limited("shm", "connection to %s dropped: %s", endpoint->path, why);
	endpoint->alive = false;
	endpoint->unconfirmed = 0;
	disconnect(endpoint);
	qmt_queue_fail(&endpoint->queue, qmc_clock_now(), QMLA_ERR_UNAVAILABLE);
}

static void die_of_close(struct shm_endpoint *endpoint)
{
	die(endpoint, errno ? strerror(errno) : "closed by the server");
}

/* ---- sending ---- */

static struct extra *extra_of(struct shm_endpoint *endpoint, const struct qmt_wire_op *wire)
{
	return &endpoint->extras[wire - endpoint->queue.wire];
}

/* True when the socket takes no more for now; ends the endpoint when it is gone. */
static bool is_blocked(struct shm_endpoint *endpoint, enum qmt_packet_result result)
{
	if (result == QMT_PACKET_WAIT)
		return true;
	if (result != QMT_PACKET_OK)
		die_of_close(endpoint);
	return false;
}

/* Sends what is collected; true when the socket takes no more for now. */
static bool flush(struct shm_endpoint *endpoint)
{
	return endpoint->alive &&
	       is_blocked(endpoint, qmt_outbox_send(&endpoint->outbox, endpoint->fd));
}

/* Messages that can still be collected, less those that copied reads will need. */
static size_t room(const struct shm_endpoint *endpoint)
{
	return qmt_outbox_room(&endpoint->outbox) - endpoint->unconfirmed;
}

/* Gives the server the staging memfd; false when that has to wait. */
static bool announce_staging(struct shm_endpoint *endpoint)
{
	struct qmt_wire_request request = {.kind = QMT_WIRE_STAGE,
					   .length = endpoint->staging.bytes};
	uint8_t out[QMT_WIRE_REQUEST_BYTES];

	if (!endpoint->announce)
		return true;
	/* Requests before it are older: they go first. */
	if (flush(endpoint) || !endpoint->alive)
		return false;
	qmt_wire_request_encode(&request, out);
	endpoint->announce = is_blocked(
		endpoint, qmt_packet_send(endpoint->fd, out, sizeof(out), endpoint->staging.fd));
	return !endpoint->announce && endpoint->alive;
}

/* Room for the bytes of the write @op; false when earlier writes have to end first. */
static bool stage(struct shm_endpoint *endpoint, const struct qmt_op *op, uint64_t *offset,
		  uint64_t *cost)
{
	struct qmt_staging *staging = &endpoint->staging;
	bool fresh = false;

	if (op->length > staging->bytes && staging->head != staging->tail)
		return false;
	if (qmt_staging_reserve(staging, op->length, &fresh) != QMLA_OK) {
		die(endpoint, "no memory for staging");
		return false;
	}
	endpoint->announce |= fresh;
	if (!announce_staging(endpoint))
		return false;
	return qmt_staging_take(staging, op->length, offset, cost);
}

/* Puts the next queued op on the wire; false when there is none or no room. */
static bool start_next(struct shm_endpoint *endpoint)
{
	const struct qmt_op *op = endpoint->queue.queued.head;
	struct qmt_remote_region region = {0};
	struct qmt_wire_request request = {0};
	struct qmt_wire_op *wire;
	uint64_t cost = 0;

	if (!op || room(endpoint) == 0 || !qmt_queue_has_room(&endpoint->queue))
		return false;
	if (op->access == QMT_WRITE && !stage(endpoint, op, &request.staging, &cost))
		return false;
	wire = qmt_queue_start(&endpoint->queue);
	(void)qmt_handle_decode(op->remote, &region); /* checked by post */
	*extra_of(endpoint, wire) = (struct extra){
		.region = region.region, .offset = op->remote_offset, .staging_cost = cost};
	request.kind = op->access == QMT_READ ? QMT_WIRE_READ : QMT_WIRE_WRITE;
	request.id = wire->id;
	request.region = region.region;
	request.offset = op->remote_offset;
	request.length = op->length;
	memcpy(request.capability, op->capability, QMT_CAPABILITY_BYTES);
	if (op->access == QMT_WRITE)
		memcpy(endpoint->staging.base + request.staging, op->local, op->length);
	qmt_outbox_add(&endpoint->outbox, &request, op->access == QMT_WRITE ? op->length : 0);
	return true;
}

/*
 * Starts what the window allows. With @may_collect, messages wait for company
 * while there is other work; a packet and a wake-up for each would cost more than
 * a small copy. True when the socket takes no more for now, so that POLLOUT is
 * worth waiting for.
 */
static bool push(struct shm_endpoint *endpoint, bool may_collect)
{
	while (endpoint->alive && start_next(endpoint)) {
		if (qmt_outbox_is_due(&endpoint->outbox) && flush(endpoint))
			return true;
	}
	if (qmt_outbox_is_due(&endpoint->outbox) || !may_collect)
		return flush(endpoint) || endpoint->announce;
	return false;
}

/* ---- receiving ---- */

/*
 * Whether the grant still held when the copy ended. The server shuts the socket
 * down before it takes a grant back, so an open socket now means that what was
 * read before was read in time.
 */
static bool still_granted(const struct shm_endpoint *endpoint)
{
	struct pollfd pfd = {.fd = endpoint->fd, .events = POLLRDHUP};

	/* The copy's loads come before the look at the socket. */
	qmt_barrier();
	return poll(&pfd, 1, 0) == 0;
}

/* The oldest read is over: tells the server and the caller. */
static void finish_read(struct shm_endpoint *endpoint, qmla_status_t status, uint64_t moved)
{
	struct qmt_wire_request done = {.kind = QMT_WIRE_DONE, .status = status};

	done.id = qmt_queue_front(&endpoint->queue)->id;
	qmt_outbox_add(&endpoint->outbox, &done, moved);
	qmt_queue_retire(&endpoint->queue, status);
}

/* Ends the reads that were copied, if they were in time. */
static void confirm(struct shm_endpoint *endpoint)
{
	if (endpoint->unconfirmed == 0)
		return;
	if (!still_granted(endpoint)) {
		die(endpoint, "closed by the server during a read");
		return;
	}
	for (; endpoint->unconfirmed > 0; endpoint->unconfirmed--)
		finish_read(endpoint, QMLA_OK, qmt_queue_front(&endpoint->queue)->length);
}

/* Maps the region that came with the reply to @wire. */
static bool take_region(struct shm_endpoint *endpoint, const struct qmt_wire_op *wire,
			uint64_t bytes)
{
	qmla_status_t status =
		qmt_mappings_add(&endpoint->mappings, extra_of(endpoint, wire)->region,
				 endpoint->inbox.passed, bytes);

	close(endpoint->inbox.passed);
	endpoint->inbox.passed = -1;
	if (status != QMLA_OK)
		die(endpoint, "the region it passed cannot be mapped");
	return status == QMLA_OK;
}

/* Copies a piece of a granted read; returns its size. */
static uint64_t copy_piece(struct shm_endpoint *endpoint, const struct qmt_wire_op *wire)
{
	const struct extra *extra = extra_of(endpoint, wire);
	uint64_t piece = wire->length - endpoint->copied;
	const uint8_t *from =
		qmt_mappings_find(&endpoint->mappings, extra->region, extra->offset, wire->length);

	if (!from) {
		die(endpoint, "the server granted bytes outside the region it passed");
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
static void on_ended(struct shm_endpoint *endpoint, const struct qmt_wire_reply *reply)
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
		qmt_staging_release(&endpoint->staging, extra_of(endpoint, wire)->staging_cost);
	qmt_queue_retire(&endpoint->queue, reply->status);
}

/* Deals with the next reply, or with a piece of it; returns how much was copied. */
static uint64_t on_reply(struct shm_endpoint *endpoint, const struct qmt_wire_reply *reply)
{
	struct qmt_wire_op *wire = qmt_queue_at(&endpoint->queue, endpoint->unconfirmed);

	if (!wire || reply->id != wire->id || (unsigned)reply->kind != (unsigned)wire->access ||
	    (reply->status == QMLA_OK && reply->length != wire->length)) {
		die(endpoint, "reply to something that was not asked");
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
static const struct qmt_wire_reply *next_reply(struct shm_endpoint *endpoint)
{
	const struct qmt_wire_reply *reply = NULL;

	switch (qmt_inbox_peek(&endpoint->inbox, endpoint->fd, &reply)) {
	case QMT_PACKET_OK:
	case QMT_PACKET_WAIT:
		break;
	case QMT_PACKET_CLOSED:
		die_of_close(endpoint);
		break;
	case QMT_PACKET_BROKEN:
		die(endpoint, "malformed reply");
		break;
	}
	return reply;
}

/* Works off replies for a while; false when there was none. */
static bool pull(struct shm_endpoint *endpoint)
{
	uint64_t copied = 0;
	bool moved = false;

	while (endpoint->alive && room(endpoint) > 0 && copied < CONFIRM_BYTES) {
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

/* ---- waiting ---- */

static void expire(struct shm_endpoint *endpoint, qmc_time_t now)
{
	if (qmt_queue_expire(&endpoint->queue, now))
		die(endpoint, "an operation passed its deadline");
}

static void sleep_until_ready(struct shm_endpoint *endpoint, bool sending, qmc_time_t deadline)
{
	struct pollfd pfd = {.fd = endpoint->fd,
			     .events = (short)(POLLIN | (sending ? POLLOUT : 0))};

	if (endpoint->queue.next_deadline < deadline)
		deadline = endpoint->queue.next_deadline;
	(void)poll(&pfd, 1, qmc_clock_left_ms(deadline));
}

qmla_status_t qmt_shm_endpoint_wait(struct qmt_endpoint *base, qmc_time_t deadline,
				    struct qmt_op **completed)
{
	struct shm_endpoint *endpoint = endpoint_of(base);
	qmc_time_t now = qmc_clock_now();

	for (;;) {
		struct qmt_op *op = qmt_queue_pop(&endpoint->queue);
		bool blocked, moved;

		if (op || qmt_queue_is_empty(&endpoint->queue)) {
			*completed = op;
			return QMLA_OK;
		}
		/* What is late before it was sent costs the connection nothing. */
		(void)qmt_queue_expire(&endpoint->queue, now);
		blocked = push(endpoint, true);
		moved = pull(endpoint);
		now = qmc_clock_now();
		expire(endpoint, now);
		if (endpoint->queue.completed.head) {
			/* The last one: its end must not wait for a caller who may stay away. */
			if (!qmt_queue_front(&endpoint->queue))
				(void)push(endpoint, false);
			continue;
		}
		if (!endpoint->alive)
			continue;
		if (!moved)
			blocked |= push(endpoint, false);
		if (now >= deadline)
			return QMLA_ERR_DEADLINE;
		if (!moved && endpoint->alive)
			sleep_until_ready(endpoint, blocked, deadline);
	}
}

void qmt_shm_endpoint_cancel(struct qmt_endpoint *endpoint, struct qmt_op *op)
{
	qmt_queue_cancel(&endpoint_of(endpoint)->queue, op);
}

bool qmt_shm_endpoint_alive(const struct qmt_endpoint *base)
{
	const struct shm_endpoint *endpoint = (const struct shm_endpoint *)base;
	struct pollfd pfd = {.fd = endpoint->fd, .events = POLLRDHUP};

	/* An idle endpoint notices here that its server went; wait ends its ops. */
	return endpoint->alive && poll(&pfd, 1, 0) == 0;
}
