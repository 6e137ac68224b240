/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/decode_service.h"

#include <stdlib.h>
#include <string.h>

#include "client/worker/collect.h"
#include "client/worker/notes.h"
#include "client/worker/prefix.h"
#include "client/worker/prompt.h"
#include "client/worker/publisher.h"
#include "client/worker/worker.h"
#include "common/log.h"
#include "qmla/v1/worker.pb-c.h"

#define COMPONENT       "decode"
#define POLL_NS         (20 * QMC_NS_PER_MS)
#define SEND_TIMEOUT_NS (10 * QMC_NS_PER_S)
#define EVENT_TOKENS    64u

/* One Generate call on its way. */
struct generation {
	struct qmw_worker *worker;
	struct qmp_call *call;
	const Qmla__V1__GenerateRequest *input;
	qmc_time_t arrived;
	struct qmw_request request;
	struct qmw_batch *batch; /* its blocks on their way to the nodes */
	struct qmw_collected collected;
	struct qmw_notes notes;
	struct qmw_detail detail;
};

static bool client_gone(void *user)
{
	return qmp_call_cancelled(user);
}

static qmc_time_t generation_deadline(const struct generation *g)
{
	qmc_time_t own = qmc_clock_after(g->worker->config.request_timeout_ns);
	qmc_time_t asked = qmp_call_deadline(g->call);

	return asked < own ? asked : own;
}

static qmla_status_t init_request(struct generation *g)
{
	const Qmla__V1__GenerateRequest *input = g->input;
	const char *own = g->worker->config.name_space;
	struct qmw_request_config config = {
		.max_tokens = input->max_tokens,
		.sampler = {.temperature = input->temperature,
			    .top_p = input->top_p,
			    .state = input->seed},
		.ignore_eos = input->ignore_eos,
		.shared_blocks = !input->no_cache,
		.name_space = input->cache_namespace[0] ? input->cache_namespace : own,
		.identity = g->worker->identity,
		.deadline = generation_deadline(g),
	};
	uint32_t *tokens;
	qmla_status_t status = qmw_prompt_check(input, &g->detail);

	if (status == QMLA_OK)
		status = qmw_prompt_tokens(qmw_model_info(g->worker->model), input, &tokens,
					   &config.token_count, &g->detail);
	if (status != QMLA_OK)
		return status;
	config.tokens = tokens;
	status = qmw_batch_create(&g->batch);
	if (status == QMLA_OK)
		status = qmw_request_init(&g->request, &config);
	free(tokens);
	if (status != QMLA_OK)
		return qmw_refuse(&g->detail, status, "no memory for the request");
	g->request.user = g->batch;
	return QMLA_OK;
}

/* Sends tokens [sent, until) as one event. */
static qmla_status_t send_tokens(struct generation *g, uint32_t sent, uint32_t until)
{
	bool bytes = qmw_model_info(g->worker->model)->vocab <= 256;
	uint8_t text[EVENT_TOKENS];
	Qmla__V1__GenerateEvent event;

	qmla__v1__generate_event__init(&event);
	event.n_tokens = until - sent;
	event.tokens = g->request.tokens + g->request.prompt + sent;
	for (uint32_t i = 0; bytes && i < event.n_tokens; i++)
		text[i] = (uint8_t)event.tokens[i];
	if (bytes)
		event.text = (ProtobufCBinaryData){.len = event.n_tokens, .data = text};
	return qmp_call_send(g->call, &event.base, qmc_clock_after(SEND_TIMEOUT_NS));
}

/* Streams until the request is DONE: after a failed send it is cancelled, and still waited for. */
static struct qmw_request_view stream(struct generation *g)
{
	struct qmw_request_view view;
	uint32_t sent = 0;
	bool gone = false;

	do {
		qmw_request_wait(&g->request, sent, qmc_clock_after(POLL_NS), &view);
		if (view.generated > 0) /* the prompt is computed: others may use its blocks */
			qmw_flights_leave(g->worker->flights, &g->collected.flight);
		while (!gone && sent < view.generated) {
			uint32_t until = view.generated - sent > EVENT_TOKENS ? sent + EVENT_TOKENS
									      : view.generated;

			gone = send_tokens(g, sent, until) != QMLA_OK;
			sent = until;
		}
		gone = gone || qmp_call_cancelled(g->call);
		if (gone)
			qmw_request_cancel(&g->request);
		if (gone)
			sent = view.generated;
	} while (view.state != QMW_REQUEST_DONE || sent < view.generated);
	return view;
}

static uint64_t elapsed_us(qmc_time_t from, qmc_time_t until)
{
	return from > 0 && until > from ? (uint64_t)((until - from) / QMC_NS_PER_US) : 0;
}

static void fill_usage(struct generation *g, const struct qmw_request_view *view,
		       Qmla__V1__Usage *usage)
{
	const struct qmw_collected *c = &g->collected;
	qmc_time_t first = view->first_token > 0 ? view->first_token : view->ended;

	qmla__v1__usage__init(usage);
	usage->prompt_tokens = g->request.prompt;
	usage->generated_tokens = view->generated;
	usage->blocks_local = c->local;
	usage->blocks_hit = c->local + c->fetched;
	usage->blocks_prefilled = c->prefilled;
	usage->blocks_computed =
		g->request.prompt / QMLA_BLOCK_TOKENS - usage->blocks_hit - usage->blocks_prefilled;
	usage->tail_tokens = g->request.prompt % QMLA_BLOCK_TOKENS;
	usage->first_token_us = elapsed_us(g->arrived, first);
	usage->total_us = elapsed_us(g->arrived, view->ended);
	usage->fetched_bytes = c->bytes;
	usage->fetch_us = c->fetch_us;
	usage->prefill_us = c->prefill_us;
	usage->compute_us = elapsed_us(view->started, first);
	usage->decode_us = elapsed_us(view->first_token, view->ended);
	usage->finish = (char *)(uintptr_t)qmw_finish_name(view->finish);
	usage->n_notes = g->notes.count;
	usage->notes = g->notes.lines;
}

static void finish(struct generation *g, const struct qmw_request_view *view)
{
	Qmla__V1__GenerateEvent event;
	Qmla__V1__Usage usage;

	if (view->finish == QMW_FINISH_CANCELLED) {
		qmw_count(g->worker->counters.cancelled, 1);
		qmp_call_fail(g->call, QMLA_ERR_CANCELLED, "the request was cancelled");
		return;
	}
	if (view->finish == QMW_FINISH_FAILED) {
		qmw_count(g->worker->counters.failed, 1);
		qmp_call_fail(g->call, view->status, "generation ended: %s",
			      qmla_status_text(view->status));
		return;
	}
	fill_usage(g, view, &usage);
	qmla__v1__generate_event__init(&event);
	event.usage = &usage;
	(void)qmp_call_send(g->call, &event.base, qmc_clock_after(SEND_TIMEOUT_NS));
	qmp_call_finish(g->call);
	qmc_debug(COMPONENT,
		  "%u + %u tokens, %u blocks hit, %u prefilled, %u computed, first %llu us",
		  usage.prompt_tokens, usage.generated_tokens, usage.blocks_hit,
		  usage.blocks_prefilled, usage.blocks_computed,
		  (unsigned long long)usage.first_token_us);
}

static qmla_status_t admit(struct generation *g, uint32_t limit)
{
	struct qmw_request *request = &g->request;
	qmc_time_t deadline = qmc_clock_after(g->worker->config.queue_timeout_ns);
	qmla_status_t status;

	if (request->deadline < deadline)
		deadline = request->deadline;
	status = qmw_prefix_admit(g->worker, request, limit, deadline, client_gone, g->call);
	if (status == QMLA_ERR_TOO_LARGE)
		return qmw_refuse(&g->detail, status,
				  "%u tokens need %u blocks, this worker's pool has %u: ask for "
				  "less, or raise --pool-size",
				  request->prompt + request->max_tokens, request->block_limit,
				  qmw_pool_slots(g->worker->pool));
	if (status == QMLA_ERR_RESOURCE_EXHAUSTED)
		return qmw_refuse(&g->detail, status,
				  "the worker's pool stayed full for %lld ms: try again later",
				  (long long)((qmc_clock_now() - g->arrived) / QMC_NS_PER_MS));
	return status;
}

/* From the prompt to the scheduler's queue. */
static qmla_status_t prepare(struct generation *g)
{
	/* At least one token is left to compute: its logits give the first new one. */
	uint32_t limit = (g->request.prompt - 1) / QMLA_BLOCK_TOKENS;
	qmla_status_t status = admit(g, limit);

	if (status != QMLA_OK)
		return status;
	qmw_collect(g->worker, &g->request, limit, client_gone, g->call, &g->collected, &g->notes);
	status = qmw_prefix_adopt(g->worker, &g->request);
	if (status != QMLA_OK)
		return qmw_refuse(&g->detail, status, "no memory for the request");
	status = qmw_scheduler_submit(g->worker->scheduler, &g->request);
	if (status != QMLA_OK)
		return qmw_refuse(&g->detail, status, "the worker takes no more requests: %s",
				  qmla_status_text(status));
	return QMLA_OK;
}

static void refuse_call(struct generation *g, qmla_status_t status)
{
	if (status == QMLA_ERR_CANCELLED)
		qmw_count(g->worker->counters.cancelled, 1);
	else
		qmw_count(g->worker->counters.failed, 1);
	qmp_call_fail(g->call, status, "%s",
		      g->detail.text[0] ? g->detail.text : qmla_status_text(status));
}

static void serve(struct generation *g)
{
	struct qmw_request_view view;
	qmla_status_t status = init_request(g);

	if (status != QMLA_OK) {
		refuse_call(g, status);
		goto out;
	}
	status = prepare(g);
	if (status == QMLA_OK) {
		view = stream(g);
		finish(g, &view);
	} else {
		refuse_call(g, status);
	}
	qmw_flights_leave(g->worker->flights, &g->collected.flight);
	qmw_request_fini(&g->request, g->worker->pool);
	qmw_notes_clear(&g->notes);
out:
	qmw_batch_put(g->batch); /* what is queued goes out all the same */
}

void qmw_decode_generate(void *service, struct qmp_call *call, const ProtobufCMessage *request)
{
	struct qmw_worker *worker = service;
	qmla_status_t status = qmw_worker_enter(worker);
	struct generation *g;

	if (status != QMLA_OK) {
		qmp_call_fail(call, status, "%s",
			      status == QMLA_ERR_DRAINING
				      ? "the worker is about to end: ask another one"
				      : "too many requests at a time: try again later");
		return;
	}
	g = calloc(1, sizeof(*g));
	if (g) {
		g->worker = worker;
		g->call = call;
		g->input = (const Qmla__V1__GenerateRequest *)request;
		g->arrived = qmc_clock_now();
		serve(g);
		free(g);
	} else {
		qmp_call_fail(call, QMLA_ERR_NO_MEMORY, "no memory for the request");
	}
	qmw_worker_leave(worker);
}
