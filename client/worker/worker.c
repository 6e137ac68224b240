/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/worker.h"

#include <stdlib.h>
#include <string.h>

#include "client/model/config.h"
#include "client/model/constants.h"
#include "common/log.h"

#define COMPONENT         "worker"
#define MAX_PUBLISH_CALL  32u
#define PROBE_INTERVAL_NS (2 * QMC_NS_PER_S)

/* The scheduler's block_done: the block can be shared from now on, here and on the nodes. */
static uint32_t on_block(void *user, struct qmw_request *request, uint32_t block, uint32_t slot)
{
	struct qmw_worker *worker = user;
	qmla_key_t key;

	if (!request->shared_blocks || qmw_request_key(request, block, &key) != QMLA_OK)
		return slot;
	slot = qmw_pool_bind(worker->pool, &key, slot);
	if (worker->publisher)
		(void)qmw_publisher_add(worker->publisher, &key, slot, request->user);
	return slot;
}

static qmla_status_t open_model(struct qmw_worker *worker)
{
	struct qmw_model_options options = {.format = worker->config.format,
					    .ignore_calibration = worker->config.ignore_calibration,
					    .threads = worker->config.threads};
	qmc_time_t start = qmc_clock_now();
	qmla_status_t status = qmw_model_open(worker->config.model, &options, &worker->model);
	const struct qmw_model_info *info;

	if (status != QMLA_OK)
		return status;
	info = qmw_model_info(worker->model);
	qmw_model_identity(worker->model, worker->identity.bytes);
	qmc_info(COMPONENT, "%s: %s, %u layers, cache %s, calibration %s, loaded in %lld ms",
		 worker->config.model, info->architecture, info->layers,
		 qmk_format_name(qmw_model_layout(worker->model)->format), info->calibration,
		 (long long)((qmc_clock_now() - start) / QMC_NS_PER_MS));
	return QMLA_OK;
}

static qmla_status_t open_pool(struct qmw_worker *worker)
{
	struct qmw_pool_config config = {
		.block_bytes = qmw_model_layout(worker->model)->block_bytes,
		.bytes = worker->config.pool_bytes,
		.keep_unused = worker->config.local_reuse,
	};

	return qmw_pool_create(&config, &worker->pool);
}

static qmla_client_config_t client_config(const struct qmw_worker_config *config)
{
	qmla_client_config_t client = {
		.struct_size = sizeof(client),
		.nodes = config->nodes,
		.transport = config->transport,
		.replicas = config->replicas,
	};

	if (config->tls) {
		client.tls_ca_file = config->tls->ca_file;
		client.tls_certificate_file = config->tls->certificate_file;
		client.tls_key_file = config->tls->key_file;
	}
	return client;
}

static qmla_status_t open_client(struct qmw_worker *worker)
{
	const struct qmk_layout *layout = qmw_model_layout(worker->model);
	qmla_client_config_t config = client_config(&worker->config);
	qmla_status_t status;

	if (!worker->config.nodes)
		return QMLA_OK;
	config.identity = worker->identity;
	config.layout = (qmla_layout_t){.format = (qmla_format_t)layout->format,
					.layers = layout->layers,
					.content_dim = layout->content_dim,
					.rope_dim = layout->rope_dim};
	status = qmla_client_create(&config, &worker->client);
	if (status != QMLA_OK)
		return status;
	return qmla_client_register_memory(worker->client, qmw_pool_kernel(worker->pool).base,
					   qmw_pool_bytes(worker->pool));
}

static qmla_status_t open_publisher(struct qmw_worker *worker)
{
	struct qmw_publisher_config config = {
		.client = worker->client,
		.pool = worker->pool,
		.layout = qmw_model_layout(worker->model),
		.identity = worker->identity,
		.max_queued = qmw_pool_slots(worker->pool),
		.max_call = MAX_PUBLISH_CALL,
	};
	uint64_t bytes = MAX_PUBLISH_CALL * config.layout->block_bytes;

	if (!worker->client)
		return QMLA_OK;
	config.timeout_ms = (uint32_t)(worker->config.fetch_timeout_ns / QMC_NS_PER_MS) +
			    (uint32_t)(bytes >> 16); /* at 64 MiB/s */
	return qmw_publisher_create(&config, &worker->publisher);
}

static qmla_status_t open_prefill(struct qmw_worker *worker)
{
	if (!worker->config.prefill)
		return QMLA_OK;
	return qmw_prefill_client_create(worker->config.prefill, worker->config.tls,
					 &worker->identity, PROBE_INTERVAL_NS, &worker->prefill);
}

static qmla_status_t open_flights(struct qmw_worker *worker)
{
	return qmw_flights_create(&worker->flights);
}

static qmla_status_t open_scheduler(struct qmw_worker *worker)
{
	struct qmw_scheduler_config config = {
		.model = worker->model,
		.pool = worker->pool,
		.max_batch = worker->config.max_batch,
		.chunk = worker->config.chunk,
		.max_waiting = qmw_worker_limit(&worker->config),
		.block_done = on_block,
		.user = worker,
	};

	return qmw_scheduler_create(&config, &worker->scheduler);
}

/* A client that connects to nobody: its own checks are the ones that count. */
static qmla_status_t check_nodes(const struct qmw_worker_config *config)
{
	qmla_client_config_t client = client_config(config);
	qmla_client_t *made;
	qmla_status_t status;

	if (!config->nodes)
		return QMLA_OK;
	client.layout = (qmla_layout_t){QMLA_FORMAT_C4R4, 1, 512, 64};
	status = qmla_client_create(&client, &made);
	if (status == QMLA_OK)
		qmla_client_destroy(made);
	return status;
}

static qmla_status_t check_pool(const struct qmw_worker_config *config)
{
	struct qmw_config model;
	struct qmk_layout layout;
	enum qmk_format format = config->format;
	qmla_status_t status = qmw_config_read(config->model, &model);

	if (status == QMLA_OK && !format && !config->ignore_calibration)
		status = qmw_constants_read_format(config->model, &format);
	if (status != QMLA_OK)
		return status;
	/* A geometry that has no pages is named when the model is opened. */
	if (qmk_layout_init(format, model.layers, model.content_dim, model.rope_dim, &layout) !=
	    QMLA_OK)
		return QMLA_OK;
	return qmw_pool_check(&(struct qmw_pool_config){.block_bytes = layout.block_bytes,
							.bytes = config->pool_bytes});
}

qmla_status_t qmw_worker_check(const struct qmw_worker_config *config)
{
	qmla_status_t status = check_nodes(config);

	return status == QMLA_OK ? check_pool(config) : status;
}

qmla_status_t qmw_worker_create(const struct qmw_worker_config *config, struct qmw_worker **worker)
{
	static qmla_status_t (*const parts[])(struct qmw_worker *) = {
		open_model,   open_pool,    open_client,    open_publisher,
		open_prefill, open_flights, open_scheduler,
	};
	struct qmw_worker *w = calloc(1, sizeof(*w));
	qmla_status_t status = w ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (!w)
		return status;
	w->config = *config;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && status == QMLA_OK; i++)
		status = parts[i](w);
	if (status != QMLA_OK) {
		qmw_worker_destroy(w, qmc_clock_now());
		return status;
	}
	*worker = w;
	return QMLA_OK;
}

void qmw_worker_destroy(struct qmw_worker *worker, qmc_time_t deadline)
{
	if (!worker)
		return;
	qmw_scheduler_destroy(worker->scheduler);
	qmw_prefill_client_destroy(worker->prefill);
	qmw_publisher_destroy(worker->publisher, deadline);
	qmla_client_destroy(worker->client);
	qmw_flights_destroy(worker->flights);
	qmw_pool_destroy(worker->pool);
	qmw_model_close(worker->model);
	free(worker);
}

uint32_t qmw_worker_limit(const struct qmw_worker_config *config)
{
	return config->max_batch + config->max_waiting;
}

qmla_status_t qmw_worker_enter(struct qmw_worker *worker)
{
	/* Acquire pairs with the release in drain: who sees the flag sees the order to stop. */
	if (atomic_load_explicit(&worker->draining, memory_order_acquire))
		return QMLA_ERR_DRAINING;
	/* Relaxed: a counter that guards no other data. */
	if (atomic_fetch_add_explicit(&worker->inside, 1, memory_order_relaxed) >=
	    qmw_worker_limit(&worker->config)) {
		qmw_worker_leave(worker);
		qmw_count(worker->counters.refused, 1);
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	}
	qmw_count(worker->counters.requests, 1);
	return QMLA_OK;
}

void qmw_worker_leave(struct qmw_worker *worker)
{
	atomic_fetch_sub_explicit(&worker->inside, 1, memory_order_relaxed);
}

void qmw_worker_drain(struct qmw_worker *worker)
{
	atomic_store_explicit(&worker->draining, true, memory_order_release);
}
