/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/scheduler.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "client/worker/step.h"
#include "common/log.h"

#define COMPONENT "scheduler"

struct qmw_scheduler {
	struct qmw_scheduler_config config;
	struct qmw_step *step;
	pthread_t thread;

	pthread_mutex_t mutex;
	pthread_cond_t wake;
	struct qmw_request *queue; /* waiting, in order of arrival */
	bool stopping;
	struct qmw_scheduler_stats stats;

	/* The model thread's alone. */
	struct qmw_request **running;
	uint32_t running_count;
};

static void admit_waiting(struct qmw_scheduler *s)
{
	while (s->queue && s->running_count < s->config.max_batch) {
		struct qmw_request *request = s->queue;

		DL_DELETE(s->queue, request);
		s->stats.waiting--;
		s->running[s->running_count++] = request;
		qmw_request_set_state(request, QMW_REQUEST_PREFILLING);
	}
	s->stats.active = s->running_count;
}

static void finish_queue(struct qmw_scheduler *s)
{
	while (s->queue) {
		struct qmw_request *request = s->queue;

		DL_DELETE(s->queue, request);
		s->stats.waiting--;
		qmw_request_finish(request, QMW_FINISH_CANCELLED, QMLA_ERR_CANCELLED);
	}
}

static bool request_overdue(const struct qmw_request *request, enum qmw_finish *finish,
			    qmla_status_t *status)
{
	if (atomic_load_explicit(&request->cancelled, memory_order_relaxed)) {
		*finish = QMW_FINISH_CANCELLED;
		*status = QMLA_ERR_CANCELLED;
		return true;
	}
	if (qmc_clock_left(request->deadline) == 0) {
		*finish = QMW_FINISH_FAILED;
		*status = QMLA_ERR_DEADLINE;
		return true;
	}
	return false;
}

/* Those in the queue may be cancelled too, before they ever ran. */
static void reap_queue(struct qmw_scheduler *s)
{
	struct qmw_request *request, *next;
	enum qmw_finish finish;
	qmla_status_t status;

	DL_FOREACH_SAFE(s->queue, request, next)
	{
		if (request_overdue(request, &finish, &status)) {
			DL_DELETE(s->queue, request);
			s->stats.waiting--;
			qmw_request_finish(request, finish, status);
		}
	}
}

/* The figures are right before the caller hears of the end. */
static void finish_running(struct qmw_scheduler *s, uint32_t index, enum qmw_finish finish,
			   qmla_status_t status)
{
	struct qmw_request *request = s->running[index];

	memmove(&s->running[index], &s->running[index + 1],
		(s->running_count - index - 1) * sizeof(struct qmw_request *));
	s->running_count--;
	pthread_mutex_lock(&s->mutex);
	s->stats.active = s->running_count;
	pthread_mutex_unlock(&s->mutex);
	qmw_request_finish(request, finish, status);
}

static void reap_running(struct qmw_scheduler *s)
{
	enum qmw_finish finish;
	qmla_status_t status;

	for (uint32_t i = 0; i < s->running_count;) {
		if (request_overdue(s->running[i], &finish, &status))
			finish_running(s, i, finish, status);
		else
			i++;
	}
}

/* Takes requests in; false when the thread shall end. */
static bool collect(struct qmw_scheduler *s)
{
	bool go_on;

	pthread_mutex_lock(&s->mutex);
	while (!s->queue && s->running_count == 0 && !s->stopping)
		pthread_cond_wait(&s->wake, &s->mutex);
	go_on = !s->stopping;
	if (go_on) {
		reap_queue(s);
		admit_waiting(s);
	} else {
		finish_queue(s);
	}
	pthread_mutex_unlock(&s->mutex);
	return go_on;
}

static void count_step(struct qmw_scheduler *s, const struct qmw_step_result *result)
{
	pthread_mutex_lock(&s->mutex);
	s->stats.steps++;
	s->stats.tokens_generated += result->generated;
	s->stats.tokens_prefilled += result->prefilled;
	s->stats.blocks_computed += result->blocks;
	if (result->requests > s->stats.largest_batch)
		s->stats.largest_batch = result->requests;
	pthread_mutex_unlock(&s->mutex);
}

/* One forward call over everything that runs; those that ended leave. */
static void run_step(struct qmw_scheduler *s)
{
	struct qmw_step_result result = {0};

	qmw_step_run(s->step, s->running, s->running_count, &result);
	count_step(s, &result);
	for (uint32_t i = s->running_count; i-- > 0;) {
		const struct qmw_step_outcome *outcome = &result.outcomes[i];

		if (outcome->finish != QMW_FINISH_NONE)
			finish_running(s, i, outcome->finish, outcome->status);
	}
}

static void *model_thread(void *argument)
{
	struct qmw_scheduler *s = argument;

	pthread_setname_np(pthread_self(), "qmla-model");
	while (collect(s)) {
		reap_running(s);
		if (s->running_count > 0)
			run_step(s);
	}
	while (s->running_count > 0)
		finish_running(s, s->running_count - 1, QMW_FINISH_CANCELLED, QMLA_ERR_CANCELLED);
	return NULL;
}

static qmla_status_t step_make(struct qmw_scheduler *s)
{
	struct qmw_step_config config = {
		.model = s->config.model,
		.pool = s->config.pool,
		.max_batch = s->config.max_batch,
		.chunk = s->config.chunk,
		.block_done = s->config.block_done,
		.user = s->config.user,
	};

	return qmw_step_create(&config, &s->step);
}

qmla_status_t qmw_scheduler_create(const struct qmw_scheduler_config *config,
				   struct qmw_scheduler **scheduler)
{
	struct qmw_scheduler *s;
	qmla_status_t status;

	if (config->max_batch == 0 || config->chunk == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	s = calloc(1, sizeof(*s));
	if (!s)
		return QMLA_ERR_NO_MEMORY;
	s->config = *config;
	s->running = calloc(config->max_batch, sizeof(struct qmw_request *));
	status = s->running ? step_make(s) : QMLA_ERR_NO_MEMORY;
	if (status != QMLA_OK)
		goto err_free;
	pthread_mutex_init(&s->mutex, NULL);
	pthread_cond_init(&s->wake, NULL);
	if (pthread_create(&s->thread, NULL, model_thread, s) != 0) {
		qmc_error(COMPONENT, "cannot start the model thread");
		status = QMLA_ERR_RESOURCE_EXHAUSTED;
		goto err_sync;
	}
	*scheduler = s;
	return QMLA_OK;

err_sync:
	pthread_cond_destroy(&s->wake);
	pthread_mutex_destroy(&s->mutex);
	qmw_step_destroy(s->step);
err_free:
	free(s->running);
	free(s);
	return status;
}

void qmw_scheduler_destroy(struct qmw_scheduler *scheduler)
{
	if (!scheduler)
		return;
	pthread_mutex_lock(&scheduler->mutex);
	scheduler->stopping = true;
	pthread_cond_signal(&scheduler->wake);
	pthread_mutex_unlock(&scheduler->mutex);
	pthread_join(scheduler->thread, NULL);
	pthread_cond_destroy(&scheduler->wake);
	pthread_mutex_destroy(&scheduler->mutex);
	qmw_step_destroy(scheduler->step);
	free(scheduler->running);
	free(scheduler);
}

qmla_status_t qmw_scheduler_submit(struct qmw_scheduler *scheduler, struct qmw_request *request)
{
	qmla_status_t status = QMLA_OK;

	/* Without a token to feed there would be no logits, and no end. */
	if (qmw_sequence_length(request->sequence) >= request->length)
		return QMLA_ERR_INVALID_ARGUMENT;
	pthread_mutex_lock(&scheduler->mutex);
	if (scheduler->stopping) {
		status = QMLA_ERR_DRAINING;
	} else if (scheduler->stats.waiting >= scheduler->config.max_waiting) {
		status = QMLA_ERR_RESOURCE_EXHAUSTED;
	} else {
		qmw_request_set_state(request, QMW_REQUEST_WAITING);
		DL_APPEND(scheduler->queue, request);
		scheduler->stats.waiting++;
		scheduler->stats.requests++;
		pthread_cond_signal(&scheduler->wake);
	}
	pthread_mutex_unlock(&scheduler->mutex);
	return status;
}

void qmw_scheduler_read_stats(struct qmw_scheduler *scheduler, struct qmw_scheduler_stats *stats)
{
	pthread_mutex_lock(&scheduler->mutex);
	*stats = scheduler->stats;
	pthread_mutex_unlock(&scheduler->mutex);
}
