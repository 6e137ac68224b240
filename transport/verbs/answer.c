/* SPDX-License-Identifier: Apache-2.0 */
/* What a verbs server tells: its figures, and answers to offers. */
#include <stdio.h>
#include <string.h>

#include "common/digest.h"
#include "common/log.h"
#include "transport/verbs/server_internal.h"

/* ---- what it says of itself ---- */

void qmt_verbs_server_stats(const struct qmt_server *base, struct qmt_server_stats *stats)
{
	struct qmt_verbs_server *server = qmt_verbs_server_of_const(base);

	qmt_gate_stats(server->context.gate, stats);
	/* Relaxed: figures. */
	stats->reads += atomic_load_explicit(&server->context.reads, memory_order_relaxed);
	stats->bytes_read +=
		atomic_load_explicit(&server->context.bytes_read, memory_order_relaxed);
	pthread_mutex_lock(&server->lock);
	stats->peers = server->peer_count;
	pthread_mutex_unlock(&server->lock);
}

void qmt_verbs_server_describe(const struct qmt_server *base, char text[QMT_DESCRIPTION_MAX])
{
	struct qmt_verbs_server *server = qmt_verbs_server_of_const(base);
	const struct qmt_verbs_region *region;
	size_t used;

	pthread_mutex_lock(&server->lock);
	used = (size_t)snprintf(text, QMT_DESCRIPTION_MAX, "verbs:%s",
				server->rails.count ? "" : " no device at the moment");
	for (size_t i = 0; i < server->rails.count && used < 384; i++) {
		const struct qmt_port *port = &server->rails.ports[i];
		struct qmt_port_state state = port->state;
		bool up = qmt_port_query(port, &state) == QMLA_OK;
		char address[QMT_DEVICE_NAME_MAX];

		qmt_port_text(&state, address);
		used += (size_t)snprintf(text + used, QMT_DESCRIPTION_MAX - used,
					 "%s %s port %u gid %u (%s)%s", i ? "," : "", port->name,
					 port->number, state.gid_index, address, up ? "" : " DOWN");
	}
	region = SLIST_FIRST(&server->regions);
	if (region && server->rails.count > 0)
		snprintf(text + used, QMT_DESCRIPTION_MAX - used, "; %s; writes %s",
			 qmt_memory_kind_text(region->rails[0].registration.kind),
			 region->write_mode == QMT_WRITE_WINDOW ? "by window" : "fetched");
	pthread_mutex_unlock(&server->lock);
}

/* ---- answers ---- */

static qmla_status_t judge_offer(const struct qmt_verbs_server *server,
				 const struct qmt_verbs_offer *offer)
{
	if (offer->server.incarnation != server->identity.incarnation)
		return QMLA_ERR_PEER_RESTARTED;
	return qmc_equal_constant_time(offer->server.cookie, server->identity.cookie,
				       QMT_COOKIE_BYTES)
		       ? QMLA_OK
		       : QMLA_ERR_PERMISSION;
}

static struct qmt_verbs_region *find_region_locked(struct qmt_verbs_server *server, uint64_t number)
{
	struct qmt_verbs_region *region;

	for (region = SLIST_FIRST(&server->regions); region; region = SLIST_NEXT(region, link)) {
		if (region->number == number)
			return region;
	}
	return NULL;
}

static struct qmt_verbs_peer *find_peer_locked(struct qmt_verbs_server *server,
					       const uint8_t *connection)
{
	struct qmt_verbs_peer *peer;

	for (peer = LIST_FIRST(&server->peers); peer; peer = LIST_NEXT(peer, link)) {
		if (memcmp(peer->connection, connection, QMT_CONNECTION_BYTES) == 0)
			return peer;
	}
	return NULL;
}

static qmla_status_t answer_locked(struct qmt_verbs_server *server, uint64_t number,
				   const struct qmt_verbs_offer *offer, struct qmt_offer *answer)
{
	struct qmt_verbs_region *region = find_region_locked(server, number);
	struct qmt_verbs_peer *peer = find_peer_locked(server, offer->connection);
	qmla_status_t status;

	if (!region)
		return QMLA_ERR_NOT_FOUND;
	if (peer && peer->region != region)
		return QMLA_ERR_PERMISSION;
	if (!peer) {
		if (server->rails.count == 0)
			return QMLA_ERR_UNAVAILABLE;
		if (server->peer_count >= server->max_peers) {
			qmc_warn_limited("verbs", "%u connections: no more are taken (--max-peers)",
					 server->peer_count);
			return QMLA_ERR_RESOURCE_EXHAUSTED;
		}
		status = qmt_verbs_peer_create(&server->context, region, offer, &peer);
		if (status != QMLA_OK)
			return status;
		LIST_INSERT_HEAD(&server->peers, peer, link);
		server->peer_count++;
	}
	*answer = peer->answer;
	return QMLA_OK;
}

qmla_status_t qmt_verbs_server_answer(struct qmt_server *base, uint64_t region,
				      const struct qmt_offer *blob, struct qmt_offer *answer)
{
	struct qmt_verbs_server *server = qmt_verbs_server_of(base);
	struct qmt_verbs_offer offer;
	qmla_status_t status = qmt_verbs_offer_decode(blob, &offer);

	if (status == QMLA_OK)
		status = judge_offer(server, &offer);
	if (status != QMLA_OK)
		return status;
	pthread_mutex_lock(&server->lock);
	status = answer_locked(server, region, &offer, answer);
	pthread_mutex_unlock(&server->lock);
	if (status == QMLA_OK)
		qmt_verbs_server_wake(server); /* its times count from now */
	return status;
}
