/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "transport/shm/internal.h"

/* True when the socket takes no more for now; ends the endpoint when it is gone. */
static bool is_blocked(struct qmt_shm_endpoint *endpoint, enum qmt_packet_result result)
{
	if (result == QMT_PACKET_WAIT)
		return true;
	if (result != QMT_PACKET_OK)
		qmt_shm_die_of_close(endpoint);
	return false;
}

/* Sends what is collected; true when the socket takes no more for now. */
static bool flush(struct qmt_shm_endpoint *endpoint)
{
	return endpoint->alive &&
	       is_blocked(endpoint, qmt_outbox_send(&endpoint->outbox, endpoint->fd));
}

/* Gives the server the staging memfd; false when that has to wait. */
static bool announce_staging(struct qmt_shm_endpoint *endpoint)
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
static bool stage(struct qmt_shm_endpoint *endpoint, const struct qmt_op *op, uint64_t *offset,
		  uint64_t *cost)
{
	struct qmt_staging *staging = &endpoint->staging;
	bool fresh = false;

	if (op->length > staging->bytes && staging->head != staging->tail)
		return false;
	if (qmt_staging_reserve(staging, op->length, &fresh) != QMLA_OK) {
		qmt_shm_die(endpoint, "no memory for staging");
		return false;
	}
	endpoint->announce |= fresh;
	if (!announce_staging(endpoint))
		return false;
	return qmt_staging_take(staging, op->length, offset, cost);
}

/* Puts the next queued op on the wire; false when there is none or no room. */
static bool start_next(struct qmt_shm_endpoint *endpoint)
{
	const struct qmt_op *op = endpoint->queue.queued.head;
	struct qmt_remote_region region = {0};
	struct qmt_wire_request request = {0};
	struct qmt_wire_op *wire;
	uint64_t cost = 0;

	if (!op || qmt_shm_room(endpoint) == 0 || !qmt_queue_has_room(&endpoint->queue))
		return false;
	if (op->access == QMT_WRITE && !stage(endpoint, op, &request.staging, &cost))
		return false;
	wire = qmt_queue_start(&endpoint->queue);
	(void)qmt_handle_decode(op->remote, &region); /* checked by post */
	*qmt_shm_extra_of(endpoint, wire) = (struct qmt_shm_extra){
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
 * With half of the window's ops waiting to be sent, the server must hear of them
 * now: it answers while the other half is being copied.
 */
static bool is_half_empty(const struct qmt_shm_endpoint *endpoint)
{
	uint64_t wire = endpoint->queue.tail - endpoint->queue.head;

	return endpoint->outbox.requests > 0 && 2 * endpoint->outbox.requests >= wire;
}

bool qmt_shm_submit(struct qmt_shm_endpoint *endpoint, bool may_collect)
{
	while (endpoint->alive && start_next(endpoint)) {
		if (qmt_outbox_is_due(&endpoint->outbox) && flush(endpoint))
			return true;
	}
	if (qmt_outbox_is_due(&endpoint->outbox) || is_half_empty(endpoint) || !may_collect)
		return flush(endpoint) || endpoint->announce;
	return false;
}
