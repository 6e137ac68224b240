/* SPDX-License-Identifier: Apache-2.0 */
#include "server/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "common/log.h"
#include "server/service_internal.h"
#include "server/verify.h"

static void serve(void *object, struct qmp_call *call, const ProtobufCMessage *request)
{
	const struct qms_binding *binding = object;
	qmc_time_t begun = qmc_clock_now();
	qmla_status_t status = binding->method->serve(binding->service, call, request);

	qms_metrics_observe(&binding->service->metrics, binding->number, status,
			    qmc_clock_now() - begun);
}

#define METHOD(name_, kind_, request_, serve_)                                                     \
	{                                                                                          \
		{"/qmla.v1.Cache/" name_, kind_, &qmla__v1__##request_##_request__descriptor,      \
		 serve},                                                                           \
			name_, serve_                                                              \
	}

const struct qms_method qms_methods[] = {
	METHOD("Describe", QMP_UNARY, describe, qms_serve_describe),
	METHOD("Connect", QMP_UNARY, connect, qms_serve_connect),
	METHOD("Lookup", QMP_UNARY, lookup, qms_serve_lookup),
	METHOD("Renew", QMP_UNARY, renew, qms_serve_renew),
	METHOD("Release", QMP_UNARY, release, qms_serve_release),
	METHOD("Reserve", QMP_UNARY, reserve, qms_serve_reserve),
	METHOD("Commit", QMP_UNARY, commit, qms_serve_commit),
	METHOD("Abort", QMP_UNARY, abort, qms_serve_abort),
	METHOD("Remove", QMP_UNARY, remove, qms_serve_remove),
	METHOD("Report", QMP_UNARY, report, qms_serve_report),
	METHOD("Pin", QMP_UNARY, pin, qms_serve_pin),
	METHOD("Unpin", QMP_UNARY, unpin, qms_serve_unpin),
	METHOD("Stats", QMP_UNARY, stats, qms_serve_stats),
	METHOD("Watch", QMP_SERVER_STREAM, watch, qms_serve_watch),
};
const size_t qms_method_count = sizeof(qms_methods) / sizeof(qms_methods[0]);

static void fence(void *user, const struct qms_capability *capability)
{
	struct qms_service *service = user;

	qms_data_plane_fence(service->data, capability);
}

static void dropped(void *user, uint32_t region)
{
	struct qms_service *service = user;

	qms_data_plane_revoke(service->data, region);
}

static void rearm(void *user)
{
	struct qms_service *service = user;

	qms_reaper_wake(service->reaper);
}

static qmla_status_t service_init(struct qms_service *service,
				  const struct qms_service_config *config)
{
	qmla_status_t status;

	snprintf(service->node_id, sizeof(service->node_id), "%s",
		 config->node_id ? config->node_id : "");
	service->started = qmc_clock_now();
	service->max_batch_keys = config->max_batch_keys ? config->max_batch_keys : 4096;
	service->heartbeat_ns = config->heartbeat_ns > 0 ? config->heartbeat_ns : 5 * QMC_NS_PER_S;
	if (service->max_batch_keys > QMS_MAX_BATCH_KEYS)
		return QMLA_ERR_INVALID_ARGUMENT;
	do {
		status = qmc_random_bytes(&service->incarnation, sizeof(service->incarnation));
	} while (status == QMLA_OK && service->incarnation == 0);
	return status;
}

static qmla_status_t start_store(struct qms_service *service,
				 const struct qms_service_config *config)
{
	struct qms_store_config store = config->store;
	qmla_status_t status = qms_reaper_create(&service->reaper);

	if (status != QMLA_OK)
		return status;
	store.callbacks = (struct qms_store_callbacks){.user = service,
						       .verify = qms_verify_block,
						       .fence = fence,
						       .dropped = dropped,
						       .rearm = rearm};
	return qms_store_create(&store, &service->store);
}

static void end_streams(void *user)
{
	struct qms_service *service = user;

	qms_watch_streams_stop(service->streams);
}

static void allow_streams(void *user)
{
	struct qms_service *service = user;

	qms_watch_hub_resume(qms_store_watch_hub(service->store));
}

static qmla_status_t start_rpc(struct qms_service *service, const struct qms_service_config *config)
{
	struct qmp_keeper_config rpc = {
		.server = {.listen = config->listen,
			   .threads = config->rpc_threads,
			   .tls = config->tls},
		.services = service->services,
		.count = qms_method_count,
		.user = service,
		.before_restart = end_streams,
		.after_restart = allow_streams,
	};

	/* One service a method: its object tells the common handler which one it serves. */
	for (size_t i = 0; i < qms_method_count; i++) {
		service->bindings[i] = (struct qms_binding){service, &qms_methods[i], i};
		service->services[i] =
			(struct qmp_service){&qms_methods[i].rpc, 1, &service->bindings[i]};
	}
	return qmp_keeper_create(&rpc, &service->rpc);
}

qmla_status_t qms_service_create(const struct qms_service_config *config,
				 struct qms_service **service)
{
	struct qms_service *made = calloc(1, sizeof(*made));
	qmla_status_t status;

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	status = service_init(made, config);
	if (status == QMLA_OK)
		status = start_store(made, config);
	if (status == QMLA_OK)
		status = qms_data_plane_create(&config->data, made->store, &made->data);
	if (status == QMLA_OK)
		status = qms_watch_streams_create(made->store, made->heartbeat_ns, &made->streams);
	if (status == QMLA_OK)
		status = qms_reaper_start(made->reaper, made->store);
	if (status == QMLA_OK)
		status = start_rpc(made, config);
	if (status != QMLA_OK) {
		qms_service_destroy(made, 0);
		return status;
	}
	*service = made;
	return QMLA_OK;
}

void qms_service_destroy(struct qms_service *service, int64_t grace_ns)
{
	if (!service)
		return;
	/* Streams first: they would keep the server waiting. The store goes last, after
	 * everything that calls into it. */
	qms_watch_streams_stop(service->streams);
	qmp_keeper_destroy(service->rpc, grace_ns);
	qms_watch_streams_destroy(service->streams);
	qms_reaper_destroy(service->reaper);
	qms_data_plane_destroy(service->data);
	qms_store_destroy(service->store);
	free(service);
}

void qms_service_set_ready(struct qms_service *service, bool ready)
{
	atomic_store_explicit(&service->ready, ready, memory_order_relaxed);
	qmp_keeper_set_serving(service->rpc, ready);
}

bool qms_service_ready(const struct qms_service *service)
{
	return atomic_load_explicit(&service->ready, memory_order_relaxed) &&
	       qmp_keeper_listens(service->rpc);
}

void qms_service_drain(struct qms_service *service, qmc_time_t deadline)
{
	atomic_store_explicit(&service->drain_deadline, deadline, memory_order_relaxed);
	atomic_store_explicit(&service->draining, true, memory_order_release);
	qms_service_set_ready(service, false);
}

bool qms_service_draining(const struct qms_service *service)
{
	/* Acquire pairs with the release above: the deadline is there too. */
	return atomic_load_explicit(&service->draining, memory_order_acquire);
}

bool qms_service_idle(struct qms_service *service)
{
	struct qms_store_stats stats;

	qms_store_stats(service->store, &stats);
	return stats.leases == 0 && stats.tickets == 0 && stats.inflight == 0;
}

uint16_t qms_service_port(const struct qms_service *service)
{
	return qmp_keeper_port(service->rpc);
}

uint16_t qms_service_data_port(const struct qms_service *service)
{
	return qms_data_plane_port(service->data);
}

uint64_t qms_service_incarnation(const struct qms_service *service)
{
	return service->incarnation;
}

const char *qms_service_node_id(const struct qms_service *service)
{
	return service->node_id;
}

qmc_time_t qms_service_started(const struct qms_service *service)
{
	return service->started;
}

struct qms_store *qms_service_store(struct qms_service *service)
{
	return service->store;
}

const struct qms_data_plane *qms_service_data(const struct qms_service *service)
{
	return service->data;
}
