/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/stats_service.h"

#include <inttypes.h>
#include <stdlib.h>

#include "qmla/v1/worker.pb-c.h"

#define NODE_LIMIT      256u
#define NODE_TIMEOUT_MS 1000u

/* One reading of everything. */
struct snapshot {
	struct qmw_pool_stats pool;
	struct qmw_scheduler_stats scheduler;
	struct qmw_publisher_stats publisher;
	uint64_t requests, refused, failed, cancelled;
	uint64_t hit_local, fetched, bytes_fetched;
	uint64_t cache_errors, prefill_calls, prefill_errors;
};

static uint64_t read_counter(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static void snapshot_take(struct qmw_worker *worker, struct snapshot *s)
{
	const struct qmw_worker_counters *c = &worker->counters;

	*s = (struct snapshot){
		.requests = read_counter(&c->requests),
		.refused = read_counter(&c->refused),
		.failed = read_counter(&c->failed),
		.cancelled = read_counter(&c->cancelled),
		.hit_local = read_counter(&c->blocks_hit_local),
		.fetched = read_counter(&c->blocks_fetched),
		.bytes_fetched = read_counter(&c->bytes_fetched),
		.cache_errors = read_counter(&c->cache_errors),
		.prefill_calls = read_counter(&c->prefill_calls),
		.prefill_errors = read_counter(&c->prefill_errors),
	};
	qmw_pool_read_stats(worker->pool, &s->pool);
	qmw_scheduler_read_stats(worker->scheduler, &s->scheduler);
	if (worker->publisher)
		qmw_publisher_read_stats(worker->publisher, &s->publisher);
}

const char *qmw_role_name(enum qmw_role role)
{
	return role == QMW_ROLE_PREFILL ? "prefill" : "decode";
}

/* "address state" of each node; the lines and the array are malloc'ed. */
static size_t node_lines(struct qmw_worker *worker, char ***lines)
{
	qmla_node_status_t *nodes;
	size_t count = NODE_LIMIT;
	size_t n = 0;

	if (!worker->client)
		return 0;
	nodes = calloc(NODE_LIMIT, sizeof(*nodes));
	*lines = calloc(NODE_LIMIT, sizeof(char *));
	if (nodes && *lines &&
	    qmla_client_status(worker->client, NODE_TIMEOUT_MS, nodes, &count) == QMLA_OK) {
		for (size_t i = 0; i < count; i++) {
			if (asprintf(&(*lines)[n], "%s %s", nodes[i].address,
				     qmla_status_name(nodes[i].status)) >= 0)
				n++;
		}
	}
	free(nodes);
	return n;
}

static void fill(struct qmw_worker *worker, const struct snapshot *s,
		 Qmla__V1__WorkerStatsResponse *r)
{
	r->role = (char *)(uintptr_t)qmw_role_name(worker->config.role);
	r->version = (char *)(uintptr_t)qmla_version();
	r->model = (char *)(uintptr_t)worker->config.model;
	r->identity.data = worker->identity.bytes;
	r->identity.len = sizeof(worker->identity.bytes);
	r->format = (char *)(uintptr_t)qmk_format_name(qmw_model_layout(worker->model)->format);
	r->requests = s->requests;
	r->active = s->scheduler.active;
	r->waiting = s->scheduler.waiting + s->pool.waiting;
	r->tokens_generated = s->scheduler.tokens_generated;
	r->tokens_prefilled = s->scheduler.tokens_prefilled;
	r->blocks_hit = s->hit_local + s->fetched;
	r->blocks_computed = s->scheduler.blocks_computed;
	r->blocks_published = s->publisher.published;
	r->bytes_fetched = s->bytes_fetched;
	r->bytes_published = s->publisher.bytes;
	r->cache_errors = s->cache_errors + s->publisher.failed + s->publisher.dropped;
	r->pool_slots = s->pool.slots;
	r->pool_used = s->pool.held + s->pool.granted;
}

void qmw_stats_worker_stats(void *service, struct qmp_call *call, const ProtobufCMessage *request)
{
	struct qmw_worker *worker = service;
	Qmla__V1__WorkerStatsResponse response;
	struct snapshot snapshot;
	char **lines = NULL;

	(void)request;
	snapshot_take(worker, &snapshot);
	qmla__v1__worker_stats_response__init(&response);
	fill(worker, &snapshot, &response);
	response.n_nodes = node_lines(worker, &lines);
	response.nodes = lines;
	qmp_call_reply(call, &response.base);
	for (size_t i = 0; i < response.n_nodes; i++)
		free(lines[i]);
	free(lines);
}

static void metric(FILE *out, const char *name, const char *type, const char *help, uint64_t value)
{
	fprintf(out,
		"# HELP qmla_worker_%s %s\n# TYPE qmla_worker_%s %s\nqmla_worker_%s %" PRIu64 "\n",
		name, help, name, type, name, value);
}

static void write_requests(FILE *out, const struct snapshot *s)
{
	metric(out, "requests_total", "counter", "Requests let in.", s->requests);
	metric(out, "requests_refused_total", "counter", "Requests refused: too many at a time.",
	       s->refused);
	metric(out, "requests_failed_total", "counter", "Requests that ended with an error.",
	       s->failed);
	metric(out, "requests_cancelled_total", "counter", "Requests their client gave up.",
	       s->cancelled);
	metric(out, "requests_active", "gauge", "Requests in the running batch.",
	       s->scheduler.active);
	metric(out, "requests_waiting", "gauge", "Requests that wait for the pool or the batch.",
	       s->scheduler.waiting + s->pool.waiting);
	metric(out, "steps_total", "counter", "Forward calls.", s->scheduler.steps);
	metric(out, "tokens_generated_total", "counter", "Tokens generated.",
	       s->scheduler.tokens_generated);
	metric(out, "tokens_prefilled_total", "counter", "Prompt tokens computed here.",
	       s->scheduler.tokens_prefilled);
}

static void write_cache(FILE *out, const struct snapshot *s)
{
	metric(out, "blocks_local_total", "counter", "Blocks found in the worker's own pool.",
	       s->hit_local);
	metric(out, "blocks_fetched_total", "counter", "Blocks fetched from nodes.", s->fetched);
	metric(out, "blocks_computed_total", "counter", "Blocks computed here.",
	       s->scheduler.blocks_computed);
	metric(out, "blocks_published_total", "counter", "Blocks that a node took.",
	       s->publisher.published);
	metric(out, "blocks_existing_total", "counter", "Blocks that a node had already.",
	       s->publisher.existing);
	metric(out, "blocks_unpublished_total", "counter", "Blocks that no node took.",
	       s->publisher.failed + s->publisher.dropped);
	metric(out, "publish_queue_blocks", "gauge", "Blocks that wait to be published.",
	       s->publisher.queued);
	metric(out, "fetched_bytes_total", "counter", "Bytes fetched from nodes.",
	       s->bytes_fetched);
	metric(out, "published_bytes_total", "counter", "Bytes published to nodes.",
	       s->publisher.bytes);
	metric(out, "cache_errors_total", "counter", "Fetches that a node failed.",
	       s->cache_errors);
	metric(out, "prefill_calls_total", "counter", "Calls of the prefill worker.",
	       s->prefill_calls);
	metric(out, "prefill_errors_total", "counter", "Calls of it that failed.",
	       s->prefill_errors);
}

static void write_pool(FILE *out, const struct snapshot *s)
{
	metric(out, "pool_slots", "gauge", "Slots of the pool.", s->pool.slots);
	metric(out, "pool_slots_held", "gauge", "Slots that requests and the publisher hold.",
	       s->pool.held);
	metric(out, "pool_slots_granted", "gauge", "Slots promised to running requests.",
	       s->pool.granted);
	metric(out, "pool_slots_cached", "gauge", "Slots kept for later requests.", s->pool.cached);
	metric(out, "pool_evictions_total", "counter", "Kept blocks that made room.",
	       s->pool.evictions);
}

void qmw_stats_write_metrics(struct qmw_worker *worker, FILE *out)
{
	struct snapshot snapshot;

	snapshot_take(worker, &snapshot);
	fprintf(out,
		"# HELP qmla_worker_info What runs.\n# TYPE qmla_worker_info gauge\n"
		"qmla_worker_info{version=\"%s\",role=\"%s\",format=\"%s\"} 1\n",
		qmla_version(), qmw_role_name(worker->config.role),
		qmk_format_name(qmw_model_layout(worker->model)->format));
	write_requests(out, &snapshot);
	write_cache(out, &snapshot);
	write_pool(out, &snapshot);
}
