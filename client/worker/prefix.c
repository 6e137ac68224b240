/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "common/log.h"

#define COMPONENT "fetch"

/* A fetch slower than this is slower than computing, on any machine we know. */
#define SLOWEST_BYTES_PER_MS (256ull * 1024)

qmla_status_t qmw_prefix_admit(struct qmw_worker *worker, struct qmw_request *request,
			       uint32_t limit, qmc_time_t deadline, bool (*cancelled)(void *user),
			       void *user)
{
	struct qmw_pool_need need = {
		.keys = request->keys,
		.key_count = request->shared_blocks ? limit : 0,
		.blocks = request->block_limit,
		.deadline = deadline,
		.cancelled = cancelled,
		.user = user,
	};
	qmla_status_t status = qmw_pool_admit(worker->pool, &need, request->slots, &request->blocks,
					      &request->grant);

	if (status == QMLA_OK)
		qmw_count(worker->counters.blocks_hit_local, request->blocks);
	return status;
}

/* Takes slots for blocks from … limit-1; @p blocks gets their addresses. */
static void take(struct qmw_worker *worker, struct qmw_request *request, uint32_t from,
		 uint32_t limit, void **blocks)
{
	for (uint32_t i = from; i < limit; i++) {
		request->slots[i] = qmw_pool_take(worker->pool, &request->grant);
		blocks[i - from] = qmw_pool_block(worker->pool, request->slots[i]);
	}
}

/* Keeps the first @p got of them, gives the others back. */
static void keep(struct qmw_worker *worker, struct qmw_request *request, uint32_t from,
		 uint32_t limit, uint32_t got)
{
	for (uint32_t i = from; i < from + got; i++)
		request->slots[i] =
			qmw_pool_bind(worker->pool, &request->keys[i], request->slots[i]);
	for (uint32_t i = from + got; i < limit; i++)
		qmw_pool_untake(worker->pool, &request->grant, request->slots[i]);
	request->blocks = from + got;
}

static uint32_t timeout_ms(const struct qmw_worker *worker, const struct qmw_request *request,
			   uint32_t blocks)
{
	uint64_t bytes = blocks * qmw_model_layout(worker->model)->block_bytes;
	uint64_t ms = (uint64_t)(worker->config.fetch_timeout_ns / QMC_NS_PER_MS) +
		      bytes / SLOWEST_BYTES_PER_MS;
	int64_t left = qmc_clock_left(request->deadline) / QMC_NS_PER_MS;

	if ((uint64_t)left < ms)
		ms = (uint64_t)left;
	return ms > 0 ? (uint32_t)ms : 1;
}

static void count(struct qmw_worker *worker, const struct qmw_prefix_result *result)
{
	qmw_count(worker->counters.blocks_fetched, result->fetched);
	qmw_count(worker->counters.bytes_fetched, result->bytes);
	if (result->corrupt > 0 || (result->end != QMLA_OK && result->end != QMLA_ERR_NOT_FOUND))
		qmw_count(worker->counters.cache_errors, 1);
}

static void fetch_blocks(struct qmw_worker *worker, struct qmw_request *request, uint32_t limit,
			 void **blocks, qmla_status_t *statuses, struct qmw_prefix_result *result)
{
	uint32_t from = request->blocks;
	qmla_fetch_stats_t stats = {0};
	size_t got = 0;
	qmla_status_t status;

	take(worker, request, from, limit, blocks);
	status = qmla_client_fetch(worker->client, request->keys + from, limit - from, blocks,
				   timeout_ms(worker, request, limit - from), &got, statuses,
				   &stats);
	if (status != QMLA_OK)
		qmc_warn_limited(COMPONENT, "fetching %u blocks: %s", limit - from,
				 qmla_status_text(status));
	keep(worker, request, from, limit, (uint32_t)got);
	result->fetched = (uint32_t)got;
	result->bytes = stats.bytes;
	result->corrupt = stats.corrupt;
	result->end = status;
	if (status == QMLA_OK && from + got < limit)
		result->end = statuses[got] != QMLA_OK ? statuses[got] : QMLA_ERR_NOT_FOUND;
}

void qmw_prefix_fetch(struct qmw_worker *worker, struct qmw_request *request, uint32_t limit,
		      struct qmw_prefix_result *result)
{
	qmc_time_t start = qmc_clock_now();
	uint32_t count_of = limit > request->blocks ? limit - request->blocks : 0;
	void **blocks;
	qmla_status_t *statuses;

	memset(result, 0, sizeof(*result));
	if (count_of == 0)
		return;
	result->end = QMLA_ERR_NOT_FOUND;
	if (!worker->client || !request->shared_blocks)
		return;
	blocks = calloc(count_of, sizeof(*blocks));
	statuses = calloc(count_of, sizeof(*statuses));
	if (blocks && statuses)
		fetch_blocks(worker, request, limit, blocks, statuses, result);
	else
		result->end = QMLA_ERR_NO_MEMORY;
	free(blocks);
	free(statuses);
	result->us = (uint64_t)((qmc_clock_now() - start) / QMC_NS_PER_US);
	count(worker, result);
}

static void add_result(struct qmw_prefix_result *sum, const struct qmw_prefix_result *more)
{
	sum->fetched += more->fetched;
	sum->bytes += more->bytes;
	sum->us += more->us;
	sum->corrupt += more->corrupt;
	sum->end = more->end;
}

/* What another request left in the pool, then what it left on the nodes. */
static uint32_t look_again(struct qmw_worker *worker, struct qmw_request *request, uint32_t limit,
			   struct qmw_prefix_result *result)
{
	uint32_t got = qmw_pool_extend(worker->pool, request->keys + request->blocks,
				       limit - request->blocks, request->slots + request->blocks,
				       &request->grant);
	struct qmw_prefix_result more;

	request->blocks += got;
	qmw_count(worker->counters.blocks_hit_local, got);
	if (request->blocks < limit) {
		qmw_prefix_fetch(worker, request, limit, &more);
		add_result(result, &more);
	}
	return got;
}

void qmw_prefix_share(struct qmw_worker *worker, struct qmw_request *request, uint32_t limit,
		      qmc_time_t deadline, bool (*cancelled)(void *user), void *user,
		      struct qmw_flight *flight, uint32_t *found, struct qmw_prefix_result *result)
{
	*found = 0;
	if (!request->shared_blocks)
		return;
	while (request->blocks < limit && qmc_clock_left(deadline) > 0 && !cancelled(user)) {
		uint32_t before = request->blocks;

		if (qmw_flights_lead(worker->flights, request->keys + request->blocks,
				     limit - request->blocks, deadline, cancelled, user, flight))
			return;
		*found += look_again(worker, request, limit, result);
		if (request->blocks == before)
			return; /* it came to nothing there: no second wait */
	}
}

qmla_status_t qmw_prefix_adopt(struct qmw_worker *worker, struct qmw_request *request)
{
	uint32_t capacity;
	uint32_t *table;
	qmla_status_t status = qmw_sequence_create(
		worker->model, request->prompt + request->max_tokens, &request->sequence);

	if (status != QMLA_OK)
		return status;
	table = qmw_sequence_slots(request->sequence, &capacity);
	if (capacity < request->block_limit)
		return QMLA_ERR_INTERNAL;
	memcpy(table, request->slots, request->blocks * sizeof(*table));
	qmw_sequence_remember(request->sequence, request->tokens,
			      request->blocks * QMLA_BLOCK_TOKENS);
	return request->blocks > 0 ? qmw_sequence_adopt(request->sequence, request->blocks)
				   : QMLA_OK;
}
