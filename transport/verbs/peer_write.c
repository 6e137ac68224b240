/* SPDX-License-Identifier: Apache-2.0 */
/* Writes of a peer: grants by memory window, or fetched by the server. */
#include <errno.h>
#include <string.h>

#include "transport/verbs/peer_internal.h"

static void reply(struct qmt_verbs_peer_rail *rail, uint64_t id, qmla_status_t status)
{
	const struct qmt_message message = {.kind = QMT_MESSAGE_REPLY, .id = id, .status = status};

	qmt_verbs_peer_send(rail, &message);
}

static struct qmt_grant *find_free(struct qmt_verbs_peer_rail *rail)
{
	for (size_t i = 0; i < QMT_WRITE_DEPTH; i++) {
		if (rail->grants[i].state == GRANT_FREE)
			return &rail->grants[i];
	}
	return NULL;
}

static uint32_t index_of(const struct qmt_verbs_peer_rail *rail, const struct qmt_grant *grant)
{
	return (uint32_t)(grant - rail->grants);
}

/* Frees the grant and tells the owner, then the peer. */
static void conclude(struct qmt_verbs_peer_rail *rail, struct qmt_grant *grant,
		     qmla_status_t status)
{
	uint64_t moved = status == QMLA_OK ? grant->flight.request.length : 0;

	if (qmt_flight_is_fenced(&grant->flight))
		status = QMLA_ERR_PERMISSION;
	grant->state = GRANT_FREE;
	rail->open--;
	qmt_gate_end(rail->peer->context->gate, &grant->flight, status, moved);
	reply(rail, grant->id, status);
}

/* Asks the owner; on refusal the peer is told. NULL then. */
static struct qmt_grant *admit(struct qmt_verbs_peer_rail *rail, const struct qmt_message *message)
{
	struct qmt_verbs_peer *peer = rail->peer;
	struct qmt_grant *grant = find_free(rail);
	qmla_status_t status = QMLA_ERR_NOT_FOUND;

	if (!grant) {
		qmt_verbs_peer_give_up(peer, QMLA_ERR_UNAVAILABLE, "more writes than agreed");
		return NULL;
	}
	grant->id = message->id;
	grant->status = QMLA_OK;
	grant->bound = 0;
	grant->wanted = false;
	grant->flight.wake_fd = peer->context->wake_fd;
	grant->flight.request = (struct qmt_access_request){
		.access = QMT_WRITE,
		.region = message->region,
		.offset = message->offset,
		.length = message->length,
	};
	memcpy(grant->flight.request.capability, message->capability, QMT_CAPABILITY_BYTES);
	/* The connection is for one region; another one's memory is not even in its reach. */
	if (message->region == peer->region->number)
		status = qmt_gate_begin(peer->context->gate, &grant->flight);
	if (status != QMLA_OK) {
		reply(rail, message->id, status);
		return NULL;
	}
	rail->open++;
	grant->deadline = qmc_clock_after(peer->context->idle_timeout_ns);
	return grant;
}

/* ---- by window ---- */

static qmla_status_t prepare_window(struct qmt_verbs_peer_rail *rail, struct qmt_grant *grant,
				    size_t w)
{
	struct qmt_verbs_peer *peer = rail->peer;

	if (!grant->windows[w]) {
		grant->windows[w] = peer->context->api->alloc_mw(
			peer->region->rails[rail->server_rail].pd, IBV_MW_TYPE_2);
		if (!grant->windows[w])
			return QMLA_ERR_RESOURCE_EXHAUSTED;
		grant->rkeys[w] = grant->windows[w]->rkey;
	}
	/* A key of its own for each write: an old one stays dead. */
	grant->rkeys[w] = ibv_inc_rkey(grant->rkeys[w]);
	return QMLA_OK;
}

/* One bind for each registered chunk that the range touches. */
static qmla_status_t prepare_binds(struct qmt_verbs_peer_rail *rail, struct qmt_grant *grant,
				   struct ibv_send_wr *wrs)
{
	const struct qmt_verbs_region *region = rail->peer->region;
	const struct qmt_registration *registration =
		&region->rails[rail->server_rail].registration;
	uint64_t offset = grant->flight.request.offset, left = grant->flight.request.length;

	while (left > 0) {
		uint64_t bytes = qmt_chunk_left(registration->chunk_bytes, offset);
		size_t w = grant->bound;
		qmla_status_t status;

		if (w == QMT_WINDOWS_MAX)
			return QMLA_ERR_TOO_LARGE;
		status = prepare_window(rail, grant, w);
		if (status != QMLA_OK)
			return status;
		if (bytes > left)
			bytes = left;
		wrs[w] = (struct ibv_send_wr){
			.wr_id = qmt_wr(WR_MESSAGE, UINT32_MAX),
			.next = &wrs[w + 1],
			.opcode = IBV_WR_BIND_MW,
			.bind_mw = {.mw = grant->windows[w],
				    .rkey = grant->rkeys[w],
				    .bind_info =
					    {.mr = registration->chunks[offset /
									registration->chunk_bytes],
					     .addr = (uint64_t)(uintptr_t)region->memory.base +
						     offset,
					     .length = bytes,
					     .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}},
		};
		grant->bound++;
		offset += bytes;
		left -= bytes;
	}
	return QMLA_OK;
}

static void keep_rkeys(struct qmt_grant *grant)
{
	/* Providers take the key that a window has now from here: it is the program's to keep. */
	for (size_t w = 0; w < grant->bound; w++)
		grant->windows[w]->rkey = grant->rkeys[w];
}

static struct qmt_message grant_message(const struct qmt_grant *grant)
{
	struct qmt_message message = {.kind = QMT_MESSAGE_GRANT, .id = grant->id};

	memcpy(message.rkeys, grant->rkeys, sizeof(message.rkeys));
	return message;
}

static void post_binds(struct qmt_verbs_peer_rail *rail, struct qmt_grant *grant,
		       struct ibv_send_wr *wrs)
{
	struct ibv_send_wr *bad;

	if (rail->peer->context->api->post_send(rail->qp.qp, wrs, &bad) == 0)
		keep_rkeys(grant);
	else
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE,
				       "a window cannot be bound");
}

/* In the order of the queue: the window is open before its key is on its way. */
static void open_and_tell(struct qmt_verbs_peer_rail *rail, struct qmt_grant *grant,
			  struct ibv_send_wr *wrs)
{
	const struct qmt_message message = grant_message(grant);
	struct ibv_sge sge;

	grant->state = GRANT_OPEN;
	if (!qmt_mail_has_room(&rail->mail)) {
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE, "it takes no messages");
		return;
	}
	sge = qmt_mail_write(&rail->mail, &message);
	wrs[grant->bound] = (struct ibv_send_wr){
		.wr_id = qmt_wr(WR_MESSAGE, 0),
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.sg_list = &sge,
		.num_sge = 1,
	};
	rail->wires++;
	post_binds(rail, grant, wrs);
}

static void open_only(struct qmt_verbs_peer_rail *rail, struct qmt_grant *grant)
{
	struct ibv_send_wr wrs[QMT_WINDOWS_MAX + 1];
	qmla_status_t status;

	memset(wrs, 0, sizeof(wrs));
	grant->wanted = false;
	status = prepare_binds(rail, grant, wrs);
	if (status != QMLA_OK) {
		conclude(rail, grant, status);
		return;
	}
	wrs[grant->bound - 1].next = NULL;
	wrs[grant->bound - 1].wr_id = qmt_wr(WR_OPEN, index_of(rail, grant));
	wrs[grant->bound - 1].send_flags = IBV_SEND_SIGNALED;
	rail->locals++;
	post_binds(rail, grant, wrs);
}

void qmt_verbs_peer_on_opened(struct qmt_verbs_peer_rail *rail, uint32_t index)
{
	struct qmt_grant *grant = &rail->grants[index % QMT_WRITE_DEPTH];
	const struct qmt_message message = grant_message(grant);

	if (grant->state != GRANT_OPENING)
		return;
	grant->state = GRANT_OPEN;
	qmt_verbs_peer_send(rail, &message);
}

void qmt_verbs_peer_on_write(struct qmt_verbs_peer_rail *rail, const struct qmt_message *message)
{
	struct ibv_send_wr wrs[QMT_WINDOWS_MAX + 1];
	struct qmt_verbs_peer *peer = rail->peer;
	struct qmt_grant *grant;
	qmla_status_t status;

	if (peer->region->write_mode != QMT_WRITE_WINDOW) {
		qmt_verbs_peer_give_up(peer, QMLA_ERR_UNAVAILABLE,
				       "asked for a window; there are none");
		return;
	}
	grant = admit(rail, message);
	if (!grant)
		return;
	if (rail->qp.port->local_alone) {
		grant->state = GRANT_OPENING;
		grant->wanted = true;
		return;
	}
	memset(wrs, 0, sizeof(wrs));
	status = prepare_binds(rail, grant, wrs);
	if (status == QMLA_OK)
		open_and_tell(rail, grant, wrs);
	else
		conclude(rail, grant, status);
}

static struct qmt_grant *find_open(struct qmt_verbs_peer_rail *rail, uint64_t id)
{
	for (size_t i = 0; i < QMT_WRITE_DEPTH; i++) {
		if (rail->grants[i].state == GRANT_OPEN && rail->grants[i].id == id)
			return &rail->grants[i];
	}
	return NULL;
}

static void close_windows(struct qmt_verbs_peer_rail *rail, struct qmt_grant *grant)
{
	struct ibv_send_wr wrs[QMT_WINDOWS_MAX], *bad;

	memset(wrs, 0, sizeof(wrs));
	grant->wanted = false;
	for (size_t w = 0; w < grant->bound; w++) {
		bool last = w + 1 == grant->bound;

		wrs[w] = (struct ibv_send_wr){
			.wr_id = qmt_wr(WR_CLOSE, index_of(rail, grant)),
			.next = last ? NULL : &wrs[w + 1],
			.opcode = IBV_WR_LOCAL_INV,
			.send_flags = last ? IBV_SEND_SIGNALED : 0,
			.invalidate_rkey = grant->rkeys[w],
		};
	}
	rail->locals++;
	if (rail->peer->context->api->post_send(rail->qp.qp, wrs, &bad) != 0)
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE,
				       "a window cannot be invalidated");
}

/* The writes came before this message: what is left is to take the windows back. */
void qmt_verbs_peer_on_done(struct qmt_verbs_peer_rail *rail, const struct qmt_message *message)
{
	struct qmt_grant *grant = find_open(rail, message->id);

	if (!grant) {
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE,
				       "done with what was not granted");
		return;
	}
	grant->status = message->status;
	grant->state = GRANT_CLOSING;
	if (rail->qp.port->local_alone)
		grant->wanted = true;
	else
		close_windows(rail, grant);
}

void qmt_verbs_peer_do_local(struct qmt_verbs_peer_rail *rail)
{
	for (size_t i = 0; i < QMT_WRITE_DEPTH && !rail->peer->gone; i++) {
		struct qmt_grant *grant = &rail->grants[i];

		if (!grant->wanted)
			continue;
		if (grant->state == GRANT_OPENING)
			open_only(rail, grant);
		else if (grant->state == GRANT_CLOSING)
			close_windows(rail, grant);
	}
}

/* ---- fetched ---- */

void qmt_verbs_peer_on_pull(struct qmt_verbs_peer_rail *rail, const struct qmt_message *message)
{
	struct qmt_verbs_peer *peer = rail->peer;
	const struct qmt_registration *registration =
		&peer->region->rails[rail->server_rail].registration;
	struct qmt_grant *grant = admit(rail, message);
	struct ibv_send_wr wr = {0}, *bad;
	struct ibv_sge sge;

	if (!grant)
		return;
	/* Clients cut along both. */
	if (message->length > rail->qp.port->max_message ||
	    message->length > qmt_chunk_left(registration->chunk_bytes, message->offset)) {
		conclude(rail, grant, QMLA_ERR_TOO_LARGE);
		return;
	}
	sge.addr = (uint64_t)(uintptr_t)grant->flight.memory;
	sge.length = (uint32_t)message->length;
	sge.lkey = registration->chunks[message->offset / registration->chunk_bytes]->lkey;
	wr.wr_id = qmt_wr(WR_PULL, index_of(rail, grant));
	wr.opcode = IBV_WR_RDMA_READ;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.wr.rdma.remote_addr = message->address;
	wr.wr.rdma.rkey = message->rkeys[0];
	grant->state = GRANT_PULLING;
	rail->wires++;
	if (peer->context->api->post_send(rail->qp.qp, &wr, &bad) != 0)
		qmt_verbs_peer_give_up(peer, QMLA_ERR_UNAVAILABLE, "a fetch cannot be posted");
}

void qmt_verbs_peer_on_closed(struct qmt_verbs_peer_rail *rail, uint32_t index)
{
	struct qmt_grant *grant;

	if (index >= QMT_WRITE_DEPTH)
		return;
	grant = &rail->grants[index];
	if (grant->state == GRANT_CLOSING || grant->state == GRANT_PULLING)
		conclude(rail, grant, grant->status);
}
