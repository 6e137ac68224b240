/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/prefill_service.h"

#include <stdlib.h>
#include <string.h>

#include "client/worker/notes.h"
#include "client/worker/prefix.h"
#include "client/worker/prompt.h"
#include "client/worker/publisher.h"
#include "client/worker/worker.h"
#include "common/log.h"
#include "qmla/v1/worker.pb-c.h"

#define COMPONENT "prefill"
#define POLL_NS   (20 * QMC_NS_PER_MS)

/* One Prefill call on its way. */
struct job {
	struct qmw_worker *worker;
	struct qmp_call *call;
	struct qmw_request request;
	struct qmw_batch *batch;
	struct qmw_flight flight;
	uint32_t hit;
	uint64_t compute_us, publish_us;
	struct qmw_batch_result published;
	struct qmw_notes notes;
	struct qmw_detail detail;
};

static bool client_gone(void *user)
{
	return qmp_call_cancelled(user);
}

static qmla_status_t check(struct job *job, const Qmla__V1__PrefillRequest *input)
{
	const struct qmw_model_info *info = qmw_model_info(job->worker->model);

	if (!job->worker->client)
		return qmw_refuse(&job->detail, QMLA_ERR_UNSUPPORTED,
				  "this prefill worker has no cache nodes: start it with --nodes");
	if (input->n_tokens < QMLA_BLOCK_TOKENS)
		return qmw_refuse(&job->detail, QMLA_ERR_INVALID_ARGUMENT,
				  "%zu tokens do not fill one block of %d", input->n_tokens,
				  QMLA_BLOCK_TOKENS);
	if (input->n_tokens > info->max_position)
		return qmw_refuse(&job->detail, QMLA_ERR_TOO_LARGE,
				  "%zu tokens exceed the model's %u positions", input->n_tokens,
				  info->max_position);
	if (input->identity.len > 0 && (input->identity.len != sizeof(job->worker->identity) ||
					memcmp(input->identity.data, job->worker->identity.bytes,
					       sizeof(job->worker->identity)) != 0))
		return qmw_refuse(&job->detail, QMLA_ERR_IDENTITY_MISMATCH,
				  "this prefill worker runs another model, calibration or format "
				  "(%s): give both workers the same --model and --format",
				  qmk_format_name(qmw_model_layout(job->worker->model)->format));
	if (qmw_namespace_check(input->cache_namespace, &job->detail) != QMLA_OK)
		return QMLA_ERR_INVALID_ARGUMENT;
	return qmw_tokens_check(info, input->tokens, input->n_tokens, &job->detail);
}

static qmla_status_t init_request(struct job *job, const Qmla__V1__PrefillRequest *input)
{
	const struct qmw_worker_config *own = &job->worker->config;
	qmc_time_t deadline = qmc_clock_after(own->request_timeout_ns);
	qmc_time_t asked = qmp_call_deadline(job->call);
	struct qmw_request_config config = {
		.tokens = input->tokens,
		.token_count = (uint32_t)(input->n_tokens / QMLA_BLOCK_TOKENS * QMLA_BLOCK_TOKENS),
		.shared_blocks = true,
		.name_space = input->cache_namespace[0] ? input->cache_namespace : own->name_space,
		.identity = job->worker->identity,
		.deadline = asked < deadline ? asked : deadline,
	};
	qmla_status_t status = qmw_request_init(&job->request, &config);

	if (status != QMLA_OK)
		return qmw_refuse(&job->detail, status, "no memory for the request");
	job->request.user = job->batch;
	return QMLA_OK;
}

/* Blocks that are in this worker's pool may have left the nodes since. */
static void republish(struct job *job, uint32_t from)
{
	for (uint32_t i = from; i < job->request.blocks; i++)
		(void)qmw_publisher_add(job->worker->publisher, &job->request.keys[i],
					job->request.slots[i], job->batch);
}

static void note_fetch(struct job *job, const struct qmw_prefix_result *result)
{
	if (result->end != QMLA_OK && result->end != QMLA_ERR_NOT_FOUND && result->corrupt == 0)
		qmw_notes_add(&job->notes, "cache %s: %s", job->worker->config.nodes,
			      qmla_status_text(result->end));
	if (result->corrupt > 0)
		qmw_notes_add(&job->notes, "%u cached block(s) failed their checksum",
			      result->corrupt);
}

/* Another request may be computing the same blocks. */
static void share(struct job *job)
{
	struct qmw_prefix_result result = {0};
	uint32_t before = job->request.blocks;
	uint32_t found;

	qmw_prefix_share(job->worker, &job->request, job->request.block_limit,
			 job->request.deadline, client_gone, job->call, &job->flight, &found,
			 &result);
	note_fetch(job, &result);
	republish(job, before);
}

static qmla_status_t find_prefix(struct job *job)
{
	struct qmw_request *request = &job->request;
	qmc_time_t deadline = qmc_clock_after(job->worker->config.queue_timeout_ns);
	struct qmw_prefix_result result;
	qmla_status_t status;

	if (request->deadline < deadline)
		deadline = request->deadline;
	status = qmw_prefix_admit(job->worker, request, request->block_limit, deadline, client_gone,
				  job->call);
	if (status == QMLA_ERR_TOO_LARGE)
		return qmw_refuse(&job->detail, status,
				  "%u blocks do not fit the pool of %u: raise --pool-size",
				  request->block_limit, qmw_pool_slots(job->worker->pool));
	if (status != QMLA_OK)
		return qmw_refuse(&job->detail, status, "no room in the worker's pool: %s",
				  qmla_status_text(status));
	republish(job, 0);
	qmw_prefix_fetch(job->worker, request, request->block_limit, &result);
	note_fetch(job, &result);
	share(job);
	job->hit = request->blocks;
	return QMLA_OK;
}

static qmla_status_t compute_rest(struct job *job)
{
	struct qmw_request_view view;
	qmc_time_t start = qmc_clock_now();
	qmla_status_t status = qmw_prefix_adopt(job->worker, &job->request);

	if (status == QMLA_OK)
		status = qmw_scheduler_submit(job->worker->scheduler, &job->request);
	if (status != QMLA_OK)
		return qmw_refuse(&job->detail, status, "the worker takes no more requests: %s",
				  qmla_status_text(status));
	do {
		qmw_request_wait(&job->request, 0, qmc_clock_after(POLL_NS), &view);
		if (qmp_call_cancelled(job->call))
			qmw_request_cancel(&job->request);
	} while (view.state != QMW_REQUEST_DONE);
	job->compute_us = (uint64_t)((qmc_clock_now() - start) / QMC_NS_PER_US);
	if (view.finish != QMW_FINISH_LENGTH)
		return qmw_refuse(&job->detail, view.status, "prefill ended: %s",
				  qmla_status_text(view.status));
	return QMLA_OK;
}

/* What fails here is a note: the caller computes the missing blocks itself. */
static void await_publish(struct job *job)
{
	qmc_time_t start = qmc_clock_now();

	qmw_batch_wait(job->batch, job->request.deadline, &job->published);
	job->publish_us = (uint64_t)((qmc_clock_now() - start) / QMC_NS_PER_US);
	if (job->published.pending > 0)
		qmw_notes_add(&job->notes, "%u block(s) were not out at the deadline",
			      job->published.pending);
	if (job->published.failed > 0)
		qmw_notes_add(&job->notes, "%u block(s) could not be published: %s",
			      job->published.failed,
			      qmla_status_text(job->published.first_failure));
}

static void reply(struct job *job)
{
	Qmla__V1__PrefillResponse response;

	qmla__v1__prefill_response__init(&response);
	response.blocks_hit = job->hit;
	response.blocks_computed = job->request.block_limit - job->hit;
	response.blocks_published = job->published.published;
	response.compute_us = job->compute_us;
	response.publish_us = job->publish_us;
	response.n_notes = job->notes.count;
	response.notes = job->notes.lines;
	qmp_call_reply(job->call, &response.base);
	qmc_debug(COMPONENT, "%u blocks: %u hit, %u computed in %llu us, %llu us more to publish",
		  job->request.block_limit, response.blocks_hit, response.blocks_computed,
		  (unsigned long long)job->compute_us, (unsigned long long)job->publish_us);
}

static qmla_status_t run(struct job *job)
{
	qmla_status_t status = find_prefix(job);

	if (status == QMLA_OK && job->request.blocks < job->request.block_limit)
		status = compute_rest(job);
	qmw_flights_leave(job->worker->flights, &job->flight);
	if (status != QMLA_OK)
		return status;
	await_publish(job);
	reply(job);
	return QMLA_OK;
}

static void refuse_call(struct job *job, qmla_status_t status)
{
	if (status == QMLA_ERR_CANCELLED)
		qmw_count(job->worker->counters.cancelled, 1);
	else
		qmw_count(job->worker->counters.failed, 1);
	qmp_call_fail(job->call, status, "%s",
		      job->detail.text[0] ? job->detail.text : qmla_status_text(status));
}

static void serve(struct job *job, const Qmla__V1__PrefillRequest *input)
{
	qmla_status_t status = check(job, input);

	if (status == QMLA_OK)
		status = qmw_batch_create(&job->batch);
	if (status == QMLA_OK)
		status = init_request(job, input);
	if (status != QMLA_OK) {
		refuse_call(job, status);
		goto out;
	}
	status = run(job);
	if (status != QMLA_OK)
		refuse_call(job, status);
	qmw_request_fini(&job->request, job->worker->pool);
out:
	qmw_batch_put(job->batch);
	qmw_notes_clear(&job->notes);
}

void qmw_prefill_prefill(void *service, struct qmp_call *call, const ProtobufCMessage *request)
{
	struct qmw_worker *worker = service;
	struct job job = {.worker = worker, .call = call};
	qmla_status_t status = qmw_worker_enter(worker);

	if (status != QMLA_OK) {
		qmp_call_fail(call, status, "%s",
			      status == QMLA_ERR_DRAINING
				      ? "the worker is about to end: ask another one"
				      : "too many requests at a time: try again later");
		return;
	}
	serve(&job, (const Qmla__V1__PrefillRequest *)request);
	qmw_worker_leave(worker);
}
