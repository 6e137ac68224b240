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

qmla_status_t qms_serve_connect(struct qms_service *service, struct qmp_call *call,
				const ProtobufCMessage *message)
{
	const Qmla__V1__ConnectRequest *request = (const Qmla__V1__ConnectRequest *)message;
	Qmla__V1__ConnectResponse response = QMLA__V1__CONNECT_RESPONSE__INIT;
	struct qms_data_plane_path path;
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
			"same machine); tcp always does");
	response.incarnation = service->incarnation;
	response.transport = text(path.transport);
	response.address.data = path.address.bytes;
	response.address.len = path.address.length;
	response.region.data = path.handle.bytes;
	response.region.len = path.handle.length;
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

	(void)request;
	if (!pools)
		return qms_refuse(call, QMLA_ERR_NO_MEMORY, "the node is out of memory");
	qms_pool_messages_fill(service, pools);
	fill_store_stats(service, &response);
	for (size_t i = 0; qms_data_plane_name(service->data, i); i++) {
		struct qmt_server_stats lane;

		qms_data_plane_stats(service->data, i, &lane);
		response.bytes_read += lane.bytes_read;
		response.bytes_written += lane.bytes_written;
		response.denied_accesses += lane.denied;
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
