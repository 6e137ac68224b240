/* SPDX-License-Identifier: Apache-2.0 */
/* Describe, Connect and Stats. */
#include <stdlib.h>
#include <string.h>

#include "server/service_internal.h"
#include "server/verify.h"
#include "server/version.h"

static uint64_t uptime_ms(const struct qms_service *service)
{
	return (uint64_t)((qmc_clock_now() - service->started) / QMC_NS_PER_MS);
}

static uint64_t capacity(struct qms_service *service)
{
	struct qms_store_stats stats;

	qms_store_stats(service->store, &stats);
	return stats.capacity_bytes;
}

static char *text(const char *constant)
{
	return (char *)(uintptr_t)constant; /* protobuf-c does not write to what it packs */
}

qmla_status_t qms_serve_describe(struct qms_service *service, struct qmp_call *call,
				 const ProtobufCMessage *request)
{
	Qmla__V1__DescribeResponse response = QMLA__V1__DESCRIBE_RESPONSE__INIT;
	struct qms_pool_messages *pools = malloc(sizeof(*pools));
	char *transports[QMS_DATA_PLANE_MAX];

	(void)request;
	if (!pools)
		return qms_refuse(call, QMLA_ERR_NO_MEMORY, "the node is out of memory");
	qms_pool_messages_fill(service, pools);
	while (qms_data_plane_name(service->data, response.n_transports)) {
		transports[response.n_transports] =
			text(qms_data_plane_name(service->data, response.n_transports));
		response.n_transports++;
	}
	response.transports = transports;
	response.node_id = service->node_id;
	response.version = text(QMS_VERSION);
	response.incarnation = service->incarnation;
	response.protocol = QMS_PROTOCOL;
	response.capacity_bytes = capacity(service);
	response.max_batch_keys = service->max_batch_keys;
	response.max_lease_ms = qms_ms_from_ns(qms_store_max_lease(service->store));
	response.draining = qms_service_draining(service);
	response.pools = pools->pointers;
	response.n_pools = pools->count;
	response.uptime_ms = uptime_ms(service);
	qmp_call_reply(call, &response.base);
	free(pools);
	return QMLA_OK;
}

static qmla_status_t read_layout(struct qmp_call *call, const Qmla__V1__Layout *message,
				 struct qms_layout *layout)
{
	struct qmk_layout checked;
	const char *why = "";
	qmla_status_t status;

	if (!message)
		return qms_refuse(call, QMLA_ERR_INVALID_ARGUMENT, "layout is missing");
	*layout = (struct qms_layout){
		.format = message->format,
		.layers = message->layers,
		.content_dim = message->content_dim,
		.rope_dim = message->rope_dim,
		.page_tokens = message->page_tokens,
		.version = message->version,
		.fingerprint = message->fingerprint,
	};
	status = qms_verify_layout(layout, &checked, &why);
	if (status != QMLA_OK)
		return qms_refuse(call, status, "layout: %s is not what this node supports", why);
	layout->block_bytes = checked.block_bytes;
	return QMLA_OK;
}

static qmla_status_t open_identity(struct qms_service *service, struct qmp_call *call,
				   const Qmla__V1__ConnectRequest *request,
				   struct qms_pool_info *info)
{
	struct qms_identity identity;
	struct qms_layout layout;
	qmla_status_t status = qms_request_identity(call, &request->identity, &identity);

	if (status == QMLA_OK)
		status = read_layout(call, request->layout, &layout);
	if (status != QMLA_OK)
		return status;
	status = qms_store_open(service->store, &identity, &layout, info);
	switch (status) {
	case QMLA_OK:
		return QMLA_OK;
	case QMLA_ERR_LAYOUT_MISMATCH:
		return qms_refuse(call, status, "the identity is open here with another layout");
	case QMLA_ERR_TOO_LARGE:
		return qms_refuse(call, status,
				  "a block of %llu bytes does not fit one identity's share of the "
				  "node's memory: raise its --pool-size or lower --max-identities",
				  (unsigned long long)layout.block_bytes);
	case QMLA_ERR_RESOURCE_EXHAUSTED:
		return qms_refuse(call, status,
				  "all pools of the node are in use by other identities: raise its "
				  "--max-identities");
	default:
		return qms_refuse(call, status, "cannot open the pool: %s",
				  qmla_status_text(status));
	}
}

/* Lets the client's endpoint in when it has made an offer; the pool must still be the identity's.
 */
static qmla_status_t answer_offer(struct qms_service *service, struct qmp_call *call,
				  const Qmla__V1__ConnectRequest *request, const char *transport,
				  uint32_t region, struct qmt_offer *answer)
{
	struct qms_pool_info again;
	struct qmt_offer offer;
	qmla_status_t status;

	answer->length = 0;
	if (request->offer.len == 0)
		return QMLA_OK;
	if (request->offer.len > sizeof(offer.bytes))
		return qms_refuse(call, QMLA_ERR_TOO_LARGE, "offer: more than %zu bytes",
				  sizeof(offer.bytes));
	memcpy(offer.bytes, request->offer.data, request->offer.len);
	offer.length = (uint32_t)request->offer.len;
	status = qms_data_plane_answer(service->data, transport, region, &offer, answer);
	if (status != QMLA_OK)
		return qms_refuse(call, status, "%s cannot take the client's offer: %s", transport,
				  qmla_status_text(status));
	/* An answer that is not sent is of no use to anybody: its half-open connection ends. */
	status = open_identity(service, call, request, &again);
	if (status == QMLA_OK && again.region != region)
		status = qms_refuse(call, QMLA_ERR_UNAVAILABLE,
				    "the pool has just changed hands: connect again");
	return status;
}

qmla_status_t qms_serve_connect(struct qms_service *service, struct qmp_call *call,
				const ProtobufCMessage *message)
{
	const Qmla__V1__ConnectRequest *request = (const Qmla__V1__ConnectRequest *)message;
	Qmla__V1__ConnectResponse response = QMLA__V1__CONNECT_RESPONSE__INIT;
	struct qms_data_plane_path path;
	struct qmt_offer answer;
	struct qms_pool_info info;
	qmla_status_t status = open_identity(service, call, request, &info);

	if (status != QMLA_OK)
		return status;
	status = qms_data_plane_choose(service->data, request->transports, request->n_transports,
				       request->host_id, info.region, &path);
	if (status != QMLA_OK)
		return qms_refuse(
			call, status,
			"none of the client's transports reaches this node (shm needs the "
			"same machine, verbs an RDMA device on both); tcp always does");
	status = answer_offer(service, call, request, path.transport, info.region, &answer);
	if (status != QMLA_OK)
		return status;
	response.incarnation = service->incarnation;
	response.transport = text(path.transport);
	response.address.data = path.address.bytes;
	response.address.len = path.address.length;
	response.region.data = path.handle.bytes;
	response.region.len = path.handle.length;
	response.answer.data = answer.bytes;
	response.answer.len = answer.length;
	response.slot_bytes = info.slot_bytes;
	response.slots = info.slots;
	response.max_batch_keys = service->max_batch_keys;
	response.max_lease_ms = qms_ms_from_ns(qms_store_max_lease(service->store));
	qmp_call_reply(call, &response.base);
	return QMLA_OK;
}

static void fill_store_stats(struct qms_service *service, Qmla__V1__StatsResponse *response)
{
	struct qms_store_stats s;

	qms_store_stats(service->store, &s);
	response->capacity_bytes = s.capacity_bytes;
	response->used_bytes = s.used_bytes;
	response->blocks = s.blocks;
	response->leases = s.leases;
	response->tickets = s.tickets;
	response->pins = s.pins;
	response->lookups = s.lookups;
	response->hits = s.hits;
	response->reserves = s.reserves;
	response->commits = s.commits;
	response->evictions = s.evictions;
	response->expired_tickets = s.expired_tickets;
	response->rejected_full = s.rejected_full;
	response->corrupt_reports = s.corrupt_reports;
}

qmla_status_t qms_serve_stats(struct qms_service *service, struct qmp_call *call,
			      const ProtobufCMessage *request)
{
	Qmla__V1__StatsResponse response = QMLA__V1__STATS_RESPONSE__INIT;
	struct qms_pool_messages *pools = malloc(sizeof(*pools));
	char lines[QMS_DATA_PLANE_MAX][QMT_DESCRIPTION_MAX];
	char *data_paths[QMS_DATA_PLANE_MAX];

	(void)request;
	if (!pools)
		return qms_refuse(call, QMLA_ERR_NO_MEMORY, "the node is out of memory");
	qms_pool_messages_fill(service, pools);
	response.data_paths = data_paths;
	fill_store_stats(service, &response);
	for (size_t i = 0; qms_data_plane_name(service->data, i); i++) {
		struct qmt_server_stats lane;

		qms_data_plane_stats(service->data, i, &lane);
		response.bytes_read += lane.bytes_read;
		response.bytes_written += lane.bytes_written;
		response.denied_accesses += lane.denied;
		if (qms_data_plane_describe(service->data, i, lines[response.n_data_paths])) {
			data_paths[response.n_data_paths] = lines[response.n_data_paths];
			response.n_data_paths++;
		}
	}
	response.incarnation = service->incarnation;
	response.uptime_ms = uptime_ms(service);
	response.pools = pools->pointers;
	response.n_pools = pools->count;
	response.node_id = service->node_id;
	response.draining = qms_service_draining(service);
	qmp_call_reply(call, &response.base);
	free(pools);
	return QMLA_OK;
}
