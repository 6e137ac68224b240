/* SPDX-License-Identifier: Apache-2.0 */
/* How a server's side of a connection comes to be and goes. */
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "transport/verbs/peer_internal.h"

/* Binds, a grant, invalidations and a reply for each write; hello, ping, report and bye. */
#define SENDS    (QMT_WRITE_DEPTH * (2 * QMT_WINDOWS_MAX + 2) + 16)
#define MAILS    (QMT_WRITE_DEPTH * 2 + 16)
#define RECEIVES (QMT_WRITE_DEPTH * 2 + 8)

/* The server's rail for one of the offer's: of the same fabric, as far as addresses tell. */
static bool choose_rail(const struct qmt_verbs_peer *peer, const struct qmt_qp_address *wanted,
			const bool *taken, size_t preferred, size_t *chosen)
{
	const struct qmt_verbs_peer_context *context = peer->context;
	int best = -1;

	for (size_t i = 0; i < context->port_count; i++) {
		struct qmt_port_state state;
		struct qmt_qp_address self;
		int bits;

		if (taken[i] || qmt_port_query(&context->ports[i], &state) != QMLA_OK)
			continue;
		self = (struct qmt_qp_address){.gid = state.gid, .ethernet = state.ethernet};
		if (!qmt_qp_can_pair(wanted, &self))
			continue;
		/* Rails of a fabric are wired alike: on equal terms the same place in the list. */
		bits = 2 * (int)qmt_gid_common_bits(&wanted->gid, &self.gid) + (i == preferred);
		if (bits > best) {
			best = bits;
			*chosen = i;
		}
	}
	return best >= 0;
}

static qmla_status_t post_receives(struct qmt_verbs_peer_rail *rail)
{
	qmla_status_t status = QMLA_OK;

	for (uint32_t i = 0; i < RECEIVES && status == QMLA_OK; i++)
		status = qmt_mail_receive(&rail->mail, &rail->qp, i, qmt_wr(WR_RECEIVE, i));
	return status;
}

static qmla_status_t open_rail(struct qmt_verbs_peer *peer, size_t index,
			       const struct qmt_qp_address *other)
{
	struct qmt_verbs_peer_context *context = peer->context;
	struct qmt_verbs_peer_rail *rail = &peer->rails[index];
	const struct qmt_port *port = &context->ports[index];
	const struct qmt_qp_limits limits = {.sends = SENDS, .receives = RECEIVES};
	int access = IBV_ACCESS_REMOTE_READ;
	qmla_status_t status;

	/* Without windows nobody gets an rkey to write with, and the queue pair lets no one. */
	if (peer->region->write_mode == QMT_WRITE_WINDOW)
		access |= IBV_ACCESS_REMOTE_WRITE;
	rail->peer = peer;
	rail->server_rail = index;
	rail->watched.port = port;
	rail->watched.wake_fd = context->wake_fd;
	status = qmt_qp_create(port, peer->region->rails[index].pd, access, &limits,
			       context->channels[index], rail, &rail->qp);
	if (status != QMLA_OK)
		return status;
	rail->watched.state = rail->qp.state;
	qmt_monitor_add(context->monitor, &rail->watched);
	rail->used = true;
	status = qmt_mail_create(context->api, peer->region->rails[index].pd, MAILS, RECEIVES,
				 &rail->mail);
	if (status == QMLA_OK)
		status = post_receives(rail);
	if (status == QMLA_OK && context->api->req_notify_cq(rail->qp.cq, 0) != 0)
		status = QMLA_ERR_UNAVAILABLE;
	if (status == QMLA_OK)
		status = qmt_qp_connect(&rail->qp, other);
	return status;
}

static void close_rail(struct qmt_verbs_peer_rail *rail)
{
	struct qmt_verbs_peer_context *context = rail->peer->context;

	/* The windows go before the queue pair that they are bound to, or it would be held. */
	qmt_qp_fail(&rail->qp);
	qmt_qp_drain(&rail->qp);
	for (size_t i = 0; i < QMT_WRITE_DEPTH; i++) {
		for (size_t w = 0; w < QMT_WINDOWS_MAX; w++) {
			if (rail->grants[i].windows[w])
				context->api->dealloc_mw(rail->grants[i].windows[w]);
		}
	}
	qmt_qp_destroy(&rail->qp, context->channels[rail->server_rail]);
	qmt_monitor_remove(context->monitor, &rail->watched);
	qmt_mail_destroy(context->api, &rail->mail);
	rail->used = false;
}

static void describe_rail(const struct qmt_verbs_peer *peer, size_t index, uint16_t offered,
			  struct qmt_verbs_answer *answer)
{
	const struct qmt_registration *registration = &peer->region->rails[index].registration;
	struct qmt_answer_rail *rail = &answer->rail[answer->rails++];

	rail->offered = offered;
	rail->address = peer->rails[index].qp.self;
	for (size_t c = 0; c < registration->count; c++)
		rail->rkeys[c] = registration->chunks[c]->rkey;
}

static qmla_status_t open_rails(struct qmt_verbs_peer *peer, const struct qmt_verbs_offer *offer,
				struct qmt_verbs_answer *answer)
{
	bool taken[QMT_RAILS_MAX] = {false};
	qmla_status_t status = QMLA_ERR_UNSUPPORTED;

	for (uint16_t i = 0; i < offer->rails; i++) {
		size_t index = 0;
		qmla_status_t opened;

		if (!choose_rail(peer, &offer->addresses[i], taken, i, &index))
			continue;
		taken[index] = true;
		opened = open_rail(peer, index, &offer->addresses[i]);
		if (opened == QMLA_OK) {
			describe_rail(peer, index, i, answer);
			continue;
		}
		/* One rail that does not come up leaves the others. */
		status = opened;
		if (peer->rails[index].used)
			close_rail(&peer->rails[index]);
	}
	return answer->rails > 0 ? QMLA_OK : status;
}

qmla_status_t qmt_verbs_peer_create(struct qmt_verbs_peer_context *context,
				    struct qmt_verbs_region *region,
				    const struct qmt_verbs_offer *offer,
				    struct qmt_verbs_peer **out)
{
	const struct qmt_registration *registration = &region->rails[0].registration;
	struct qmt_verbs_answer answer = {
		.incarnation = context->identity.incarnation,
		.region = region->number,
		.bytes = region->memory.bytes,
		.base = (uint64_t)(uintptr_t)region->memory.base,
		.chunk_bytes = registration->chunk_bytes,
		.chunks = registration->count,
		.write_mode = region->write_mode,
		.write_depth = QMT_WRITE_DEPTH,
	};
	struct qmt_verbs_peer *peer = calloc(1, sizeof(*peer));
	qmla_status_t status;

	if (!peer)
		return QMLA_ERR_NO_MEMORY;
	peer->context = context;
	peer->region = region;
	peer->heard = qmc_clock_now();
	peer->why = QMLA_ERR_UNAVAILABLE;
	memcpy(peer->connection, offer->connection, QMT_CONNECTION_BYTES);
	memcpy(answer.connection, offer->connection, QMT_CONNECTION_BYTES);
	status = open_rails(peer, offer, &answer);
	if (status == QMLA_OK)
		status = qmt_verbs_answer_encode(&answer, &peer->answer);
	if (status != QMLA_OK) {
		qmt_verbs_peer_end(peer);
		return status;
	}
	*out = peer;
	return QMLA_OK;
}

void qmt_verbs_peer_cut(struct qmt_verbs_peer *peer)
{
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		if (peer->rails[i].used)
			qmt_qp_fail(&peer->rails[i].qp);
	}
	/* Release: the thread that ends the peer sees its queue pairs as they are now. */
	atomic_store_explicit(&peer->cut, true, memory_order_release);
}

static void end_grants(struct qmt_verbs_peer_rail *rail, qmla_status_t why)
{
	struct qmt_gate *gate = rail->peer->context->gate;

	for (size_t i = 0; i < QMT_WRITE_DEPTH; i++) {
		struct qmt_grant *grant = &rail->grants[i];

		if (grant->state == GRANT_FREE)
			continue;
		grant->state = GRANT_FREE;
		qmt_gate_end(gate, &grant->flight,
			     qmt_flight_is_fenced(&grant->flight) ? QMLA_ERR_PERMISSION : why, 0);
	}
}

void qmt_verbs_peer_end(struct qmt_verbs_peer *peer)
{
	bool used[QMT_RAILS_MAX];

	/* First no byte moves any more, on any rail; then the owner hears of it. */
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		used[i] = peer->rails[i].used;
		if (used[i])
			close_rail(&peer->rails[i]);
	}
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		if (used[i])
			end_grants(&peer->rails[i], peer->why);
	}
	free(peer);
}
