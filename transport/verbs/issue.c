/* SPDX-License-Identifier: Apache-2.0 */
/* Work requests of an endpoint: what goes out, and in what pieces. */
#include <string.h>

#include "transport/verbs/endpoint_internal.h"

/* ---- local memory ---- */

static const struct qmt_area *find_area(const struct qmt_verbs_endpoint *endpoint,
					const uint8_t *local)
{
	for (size_t i = 0; i < endpoint->area_count; i++) {
		const struct qmt_area *area = endpoint->areas[i];

		if (!area->staged && local >= area->base && local < area->base + area->bytes)
			return area;
	}
	return NULL;
}

/* How many of @bytes at @local one work request can take, and its scatter entry. 0: not now. */
static uint32_t locate(struct qmt_verbs_endpoint *endpoint, const struct qmt_verbs_rail *rail,
		       uint8_t *local, uint64_t bytes, struct ibv_sge *sge, int *bounce)
{
	const struct qmt_area *area = find_area(endpoint, local);
	const struct qmt_registration *registration;
	uint64_t offset, left;

	*bounce = QMT_NO_BOUNCE;
	if (bytes > rail->qp.port->max_message)
		bytes = rail->qp.port->max_message;
	if (!area) {
		*bounce = qmt_bounce_take(endpoint);
		if (*bounce == QMT_NO_BOUNCE)
			return 0;
		if (bytes > QMT_BOUNCE_BYTES)
			bytes = QMT_BOUNCE_BYTES;
		*sge = (struct ibv_sge){(uint64_t)(uintptr_t)qmt_bounce_memory(endpoint, *bounce),
					(uint32_t)bytes, endpoint->bounce.mrs[rail->port]->lkey};
		return (uint32_t)bytes;
	}
	registration = &area->rails[rail->port];
	offset = (uint64_t)(local - area->base);
	left = qmt_chunk_left(registration->chunk_bytes, offset);
	if (bytes > left)
		bytes = left;
	if (bytes > area->bytes - offset)
		bytes = area->bytes - offset;
	*sge = (struct ibv_sge){(uint64_t)(uintptr_t)local, (uint32_t)bytes,
				registration->chunks[offset / registration->chunk_bytes]->lkey};
	return (uint32_t)bytes;
}

/* ---- operations ---- */

/* One piece of an operation: the remote end cut at the server's chunks. */
static bool issue_piece(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail,
			uint64_t index, uint32_t rkey)
{
	const struct qmt_op *op = qmt_verbs_wire(endpoint, index)->op;
	struct qmt_verbs_extra *extra = qmt_verbs_extra(endpoint, index);
	uint64_t offset = op->remote_offset + extra->issued;
	uint64_t want = op->length - extra->issued;
	uint64_t left = qmt_chunk_left(endpoint->answer.chunk_bytes, offset);
	struct qmt_segment segment = {
		.kind = op->access == QMT_READ ? SEGMENT_READ : SEGMENT_WRITE,
		.op = index,
		.local = (uint8_t *)op->local + extra->issued,
	};
	struct ibv_send_wr *wr;
	struct ibv_sge sge;

	segment.bytes = locate(endpoint, rail, segment.local, want < left ? want : left, &sge,
			       &segment.bounce);
	if (segment.bytes == 0)
		return false;
	if (segment.bounce != QMT_NO_BOUNCE && segment.kind == SEGMENT_WRITE &&
	    !qmt_bounce_copy(endpoint, qmt_bounce_memory(endpoint, segment.bounce), segment.local,
			     segment.bytes)) {
		qmt_verbs_die(endpoint, "a copy from the GPU failed");
		return false;
	}
	wr = qmt_verbs_add(endpoint, rail, &segment, sge);
	wr->opcode = segment.kind == SEGMENT_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
	wr->wr.rdma.remote_addr = endpoint->answer.base + offset;
	wr->wr.rdma.rkey = rkey;
	extra->issued += segment.bytes;
	extra->segments++;
	return true;
}

static bool takes_reads(const struct qmt_verbs_rail *rail)
{
	return rail->up && rail->reads < rail->read_limit && qmt_verbs_has_room(rail);
}

/* True when a port nearer to the memory than @rail's is up, so that this one had better wait. */
static bool has_nearer(const struct qmt_verbs_endpoint *endpoint, const struct qmt_verbs_rail *rail,
		       const struct qmt_area *area)
{
	if (!area || area->near[rail->port])
		return false;
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		if (endpoint->rails[i].up && area->near[endpoint->rails[i].port])
			return true;
	}
	return false;
}

/* Of the ports nearest to the memory the one with least to do. */
static struct qmt_verbs_rail *pick_for_read(struct qmt_verbs_endpoint *endpoint,
					    const uint8_t *local)
{
	const struct qmt_area *area = find_area(endpoint, local);
	struct qmt_verbs_rail *best = NULL;

	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		struct qmt_verbs_rail *rail = &endpoint->rails[i];

		if (takes_reads(rail) && !has_nearer(endpoint, rail, area) &&
		    (!best || rail->bytes < best->bytes))
			best = rail;
	}
	return best;
}

/* False when no more can be issued for now. */
static bool issue_read(struct qmt_verbs_endpoint *endpoint, uint64_t index)
{
	const struct qmt_op *op = qmt_verbs_wire(endpoint, index)->op;
	struct qmt_verbs_extra *extra = qmt_verbs_extra(endpoint, index);

	extra->stage = STAGE_READING;
	while (extra->issued < op->length) {
		uint64_t chunk = (op->remote_offset + extra->issued) / endpoint->answer.chunk_bytes;
		struct qmt_verbs_rail *rail =
			pick_for_read(endpoint, (uint8_t *)op->local + extra->issued);

		if (!rail || !issue_piece(endpoint, rail, index, rail->rkeys[chunk]))
			return false;
		rail->reads++;
	}
	return true;
}

static uint32_t write_limit(const struct qmt_verbs_endpoint *endpoint)
{
	return endpoint->answer.write_depth < QMT_WRITES_MAX ? endpoint->answer.write_depth
							     : QMT_WRITES_MAX;
}

static struct qmt_verbs_rail *pick_for_write(struct qmt_verbs_endpoint *endpoint,
					     const uint8_t *local)
{
	const struct qmt_area *area = find_area(endpoint, local);
	struct qmt_verbs_rail *best = NULL;

	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		struct qmt_verbs_rail *rail = &endpoint->rails[i];

		if (rail->up && rail->writes < write_limit(endpoint) &&
		    !has_nearer(endpoint, rail, area) && (!best || rail->writes < best->writes))
			best = rail;
	}
	return best;
}

static struct qmt_message request_of(const struct qmt_verbs_endpoint *endpoint,
				     enum qmt_message_kind kind, uint64_t id,
				     const struct qmt_op *op, uint64_t done, uint64_t bytes)
{
	struct qmt_message message = {
		.kind = kind,
		.id = id,
		.region = endpoint->answer.region,
		.offset = op->remote_offset + done,
		.length = bytes,
	};

	memcpy(message.capability, op->capability, QMT_CAPABILITY_BYTES);
	return message;
}

static void ask(struct qmt_verbs_endpoint *endpoint, uint64_t index)
{
	const struct qmt_op *op = qmt_verbs_wire(endpoint, index)->op;
	struct qmt_verbs_extra *extra = qmt_verbs_extra(endpoint, index);
	struct qmt_verbs_rail *rail = pick_for_write(endpoint, op->local);
	struct qmt_message message =
		request_of(endpoint, QMT_MESSAGE_WRITE, index, op, 0, op->length);

	if (!rail || !qmt_verbs_tell(endpoint, rail, &message))
		return;
	rail->writes++;
	extra->rail = rail->port;
	extra->stage = STAGE_ASKED;
}

/* Writes through the window; behind the last piece, and so after it, the word that it is done. */
static void issue_write(struct qmt_verbs_endpoint *endpoint, uint64_t index)
{
	struct qmt_wire_op *wire = qmt_verbs_wire(endpoint, index);
	struct qmt_verbs_extra *extra = qmt_verbs_extra(endpoint, index);
	struct qmt_verbs_rail *rail = &endpoint->rails[extra->rail];
	uint64_t chunk_bytes = endpoint->answer.chunk_bytes;
	uint64_t first = wire->op->remote_offset / chunk_bytes;
	struct qmt_message done = {.kind = QMT_MESSAGE_DONE, .id = index};

	while (endpoint->alive && !wire->cancelled && extra->issued < wire->length &&
	       qmt_verbs_has_room(rail)) {
		uint64_t chunk = (wire->op->remote_offset + extra->issued) / chunk_bytes - first;

		if (chunk >= QMT_WINDOWS_MAX ||
		    !issue_piece(endpoint, rail, index, extra->rkeys[chunk]))
			return;
	}
	if (!endpoint->alive || (!wire->cancelled && extra->issued < wire->length))
		return;
	done.status = wire->cancelled ? QMLA_ERR_CANCELLED : QMLA_OK;
	if (qmt_verbs_tell(endpoint, rail, &done))
		extra->stage = STAGE_FINISHING;
}

/* Offers pieces to be fetched by the server, out of buffers that it may read. */
static void issue_pull(struct qmt_verbs_endpoint *endpoint, uint64_t index)
{
	struct qmt_wire_op *wire = qmt_verbs_wire(endpoint, index);
	struct qmt_verbs_extra *extra = qmt_verbs_extra(endpoint, index);

	extra->stage = STAGE_PULLING;
	while (endpoint->alive && !wire->cancelled && extra->status == QMLA_OK &&
	       extra->issued < wire->length) {
		uint64_t offset = wire->op->remote_offset + extra->issued;
		uint64_t bytes = wire->length - extra->issued;
		uint64_t left = qmt_chunk_left(endpoint->answer.chunk_bytes, offset);
		struct qmt_verbs_rail *rail = pick_for_write(endpoint, wire->op->local);
		struct qmt_message message;
		int bounce;

		if (!rail || !qmt_verbs_has_room(rail) || !qmt_mail_has_room(&rail->mail))
			return;
		bounce = qmt_bounce_take(endpoint);
		if (bounce == QMT_NO_BOUNCE)
			return;
		bytes = bytes < left ? bytes : left;
		bytes = bytes < QMT_BOUNCE_BYTES ? bytes : QMT_BOUNCE_BYTES;
		bytes = bytes < rail->qp.port->max_message ? bytes : rail->qp.port->max_message;
		if (!qmt_bounce_copy(endpoint, qmt_bounce_memory(endpoint, bounce),
				     (uint8_t *)wire->op->local + extra->issued, bytes)) {
			qmt_verbs_die(endpoint, "a copy from the GPU failed");
			return;
		}
		message = request_of(endpoint, QMT_MESSAGE_PULL,
				     index << 8 | (uint64_t)(unsigned)bounce, wire->op,
				     extra->issued, bytes);
		message.address = (uint64_t)(uintptr_t)qmt_bounce_memory(endpoint, bounce);
		message.rkeys[0] = endpoint->bounce.mrs[rail->port]->rkey;
		if (!qmt_verbs_tell(endpoint, rail, &message)) {
			qmt_bounce_give(endpoint, bounce);
			return;
		}
		rail->writes++;
		extra->issued += bytes;
		extra->segments++;
	}
}

static bool overlap(const struct qmt_op *a, const struct qmt_op *b)
{
	return a->remote_offset < b->remote_offset + b->length &&
	       b->remote_offset < a->remote_offset + a->length;
}

/* In the order of posting a read sees what was written before it, whatever the rails do. */
static bool must_wait(struct qmt_verbs_endpoint *endpoint, uint64_t index)
{
	const struct qmt_op *op = qmt_verbs_wire(endpoint, index)->op;

	for (uint64_t i = endpoint->queue.head; i != index; i++) {
		const struct qmt_op *earlier = qmt_verbs_wire(endpoint, i)->op;

		if (earlier && qmt_verbs_extra(endpoint, i)->stage != STAGE_DONE &&
		    (op->access == QMT_WRITE || earlier->access == QMT_WRITE) &&
		    overlap(op, earlier))
			return true;
	}
	return false;
}

static void start_queued(struct qmt_verbs_endpoint *endpoint)
{
	struct qmt_wire_op *wire;

	while ((wire = qmt_queue_start(&endpoint->queue)) != NULL) {
		/* The device works on its memory, or may at any time: cancelling has to wait. */
		wire->busy = true;
		endpoint->extras[wire - endpoint->queue.wire] =
			(struct qmt_verbs_extra){.stage = STAGE_NEW};
		endpoint->writing += wire->access == QMT_WRITE;
	}
}

static void begin(struct qmt_verbs_endpoint *endpoint, uint64_t index, bool *reads)
{
	struct qmt_wire_op *wire = qmt_verbs_wire(endpoint, index);

	if (wire->cancelled) {
		qmt_verbs_finish(endpoint, index, QMLA_ERR_CANCELLED);
		return;
	}
	if (endpoint->writing > 0 && must_wait(endpoint, index))
		return;
	if (wire->access == QMT_READ)
		*reads = *reads && issue_read(endpoint, index);
	else if (endpoint->answer.write_mode == QMT_WRITE_WINDOW)
		ask(endpoint, index);
	else
		issue_pull(endpoint, index);
}

void qmt_verbs_issue(struct qmt_verbs_endpoint *endpoint)
{
	bool reads = true; /* as long as they find room */

	endpoint->waiting = 0;
	endpoint->waiting_bytes = 0;
	start_queued(endpoint);
	for (uint64_t i = endpoint->queue.head; endpoint->alive && i != endpoint->queue.tail; i++) {
		struct qmt_wire_op *wire = qmt_verbs_wire(endpoint, i);
		struct qmt_verbs_extra *extra = qmt_verbs_extra(endpoint, i);

		if (extra->stage == STAGE_NEW)
			begin(endpoint, i, &reads);
		else if (wire->cancelled && extra->segments == 0 &&
			 (extra->stage == STAGE_READING || extra->stage == STAGE_PULLING))
			qmt_verbs_finish(endpoint, i, QMLA_ERR_CANCELLED);
		else if (extra->stage == STAGE_READING && reads && !wire->cancelled)
			reads = issue_read(endpoint, i);
		else if (extra->stage == STAGE_WRITING)
			issue_write(endpoint, i);
		else if (extra->stage == STAGE_PULLING)
			issue_pull(endpoint, i);
	}
	if (endpoint->alive)
		qmt_verbs_flush(endpoint);
}
