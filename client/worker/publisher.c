/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/publisher.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "client/worker/batch.h"
#include "common/log.h"
#include "kernels/block.h"

#define COMPONENT  "publish"
#define LOOK_AHEAD 4u /* calls */

struct job {
	qmla_key_t key;
	uint32_t slot;
	struct qmw_batch *batch;
};

/* What one call carries; the thread's own. */
struct call {
	uint32_t count;
	struct job *jobs;
	struct job *others; /* [window] */
	qmla_key_t *keys;
	const void **blocks;
	qmla_status_t *statuses;
};

struct qmw_publisher {
	struct qmw_publisher_config config;
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t wake;
	struct job *ring; /* [max_queued] */
	uint32_t head, queued;
	uint32_t window; /* jobs looked at for one call */
	bool stopping;
	qmc_time_t stop_deadline;
	struct qmw_publisher_stats stats;
	struct call call;
};

static void seal(const struct qmw_publisher *p, const struct job *job)
{
	struct qmk_block_info info = {.generation = 0};

	memcpy(info.key, job->key.bytes, sizeof(info.key));
	memcpy(info.identity, p->config.identity.bytes, sizeof(info.identity));
	/* Only this thread touches headers, so a block may be sealed again at will. */
	qmk_block_seal(p->config.layout, &info, qmw_pool_block(p->config.pool, job->slot));
}

/*
 * Moves up to max_call jobs of the oldest job's batch out of the ring: the keys of a call
 * are one chain. Requests that run side by side take turns in the ring, so jobs of others
 * are stepped over, within a window; all stay in order.
 */
static void call_fill(struct qmw_publisher *p)
{
	struct call *call = &p->call;
	uint32_t window = p->queued < p->window ? p->queued : p->window;
	uint32_t kept = 0;

	call->count = 0;
	for (uint32_t i = 0; i < window; i++) {
		struct job job = p->ring[(p->head + i) % p->config.max_queued];

		if (call->count < p->config.max_call &&
		    (i == 0 || job.batch == call->jobs[0].batch))
			call->jobs[call->count++] = job;
		else
			call->others[kept++] = job;
	}
	p->head = (p->head + call->count) % p->config.max_queued;
	p->queued -= call->count;
	for (uint32_t i = 0; i < kept; i++)
		p->ring[(p->head + i) % p->config.max_queued] = call->others[i];
}

static void call_settle(struct qmw_publisher *p)
{
	struct call *call = &p->call;
	uint64_t published = 0, existing = 0;

	for (uint32_t i = 0; i < call->count; i++) {
		published += call->statuses[i] == QMLA_OK;
		existing += call->statuses[i] == QMLA_ERR_ALREADY_EXISTS;
	}
	pthread_mutex_lock(&p->mutex);
	p->stats.published += published;
	p->stats.existing += existing;
	p->stats.failed += call->count - published - existing;
	p->stats.bytes += published * p->config.layout->block_bytes;
	pthread_mutex_unlock(&p->mutex);
	for (uint32_t i = 0; i < call->count; i++) {
		qmw_pool_drop(p->config.pool, call->jobs[i].slot);
		qmw_batch_leave(call->jobs[i].batch, call->statuses[i]);
	}
}

static void call_run(struct qmw_publisher *p, uint32_t timeout_ms)
{
	struct call *call = &p->call;
	qmla_status_t status;

	for (uint32_t i = 0; i < call->count; i++) {
		seal(p, &call->jobs[i]);
		call->keys[i] = call->jobs[i].key;
		call->blocks[i] = qmw_pool_block(p->config.pool, call->jobs[i].slot);
		call->statuses[i] = QMLA_ERR_UNAVAILABLE;
	}
	status = qmla_client_publish(p->config.client, call->keys, call->count, call->blocks,
				     timeout_ms, call->statuses);
	if (status != QMLA_OK && status != QMLA_ERR_ALREADY_EXISTS)
		qmc_warn_limited(COMPONENT, "not every block was published: %s",
				 qmla_status_text(status));
	call_settle(p);
}

/* Lets the jobs go without a call. */
static void call_drop(struct qmw_publisher *p, qmla_status_t why)
{
	for (uint32_t i = 0; i < p->call.count; i++)
		p->call.statuses[i] = why;
	call_settle(p);
}

/* Waits for jobs and takes them; false when all is done and the thread shall end. */
static bool next_call(struct qmw_publisher *p, uint32_t *timeout_ms)
{
	pthread_mutex_lock(&p->mutex);
	while (p->queued == 0 && !p->stopping)
		pthread_cond_wait(&p->wake, &p->mutex);
	call_fill(p);
	*timeout_ms = p->config.timeout_ms;
	if (p->stopping) {
		int64_t left = qmc_clock_left(p->stop_deadline) / QMC_NS_PER_MS;

		if (left < *timeout_ms)
			*timeout_ms = (uint32_t)left;
	}
	pthread_mutex_unlock(&p->mutex);
	return p->call.count > 0;
}

static void *publish_thread(void *argument)
{
	struct qmw_publisher *p = argument;
	uint32_t timeout_ms;

	pthread_setname_np(pthread_self(), "qmla-publish");
	while (next_call(p, &timeout_ms)) {
		qmla_status_t failed = qmw_batch_failed(p->call.jobs[0].batch);

		if (failed != QMLA_OK)
			call_drop(p, failed);
		else if (timeout_ms > 0)
			call_run(p, timeout_ms);
		else /* past the deadline of a stop */
			call_drop(p, QMLA_ERR_CANCELLED);
	}
	return NULL;
}

static void publisher_free(struct qmw_publisher *p)
{
	free(p->ring);
	free(p->call.jobs);
	free(p->call.others);
	free(p->call.keys);
	free(p->call.blocks);
	free(p->call.statuses);
	free(p);
}

static qmla_status_t publisher_allocate(struct qmw_publisher *p)
{
	uint32_t n = p->config.max_call;

	p->ring = calloc(p->config.max_queued, sizeof(*p->ring));
	p->call.jobs = calloc(n, sizeof(*p->call.jobs));
	p->window = LOOK_AHEAD * n;
	p->call.others = calloc(p->window, sizeof(*p->call.others));
	p->call.keys = calloc(n, sizeof(*p->call.keys));
	p->call.blocks = calloc(n, sizeof(*p->call.blocks));
	p->call.statuses = calloc(n, sizeof(*p->call.statuses));
	if (!p->ring || !p->call.jobs || !p->call.others || !p->call.keys || !p->call.blocks ||
	    !p->call.statuses)
		return QMLA_ERR_NO_MEMORY;
	return QMLA_OK;
}

qmla_status_t qmw_publisher_create(const struct qmw_publisher_config *config,
				   struct qmw_publisher **publisher)
{
	struct qmw_publisher *p;
	qmla_status_t status;

	if (config->max_queued == 0 || config->max_call == 0 || config->timeout_ms == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	p = calloc(1, sizeof(*p));
	if (!p)
		return QMLA_ERR_NO_MEMORY;
	p->config = *config;
	status = publisher_allocate(p);
	if (status != QMLA_OK)
		goto err_free;
	pthread_mutex_init(&p->mutex, NULL);
	pthread_cond_init(&p->wake, NULL);
	if (pthread_create(&p->thread, NULL, publish_thread, p) != 0) {
		qmc_error(COMPONENT, "cannot start the publishing thread");
		status = QMLA_ERR_RESOURCE_EXHAUSTED;
		goto err_sync;
	}
	*publisher = p;
	return QMLA_OK;

err_sync:
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->mutex);
err_free:
	publisher_free(p);
	return status;
}

void qmw_publisher_destroy(struct qmw_publisher *publisher, qmc_time_t deadline)
{
	if (!publisher)
		return;
	pthread_mutex_lock(&publisher->mutex);
	publisher->stopping = true;
	publisher->stop_deadline = deadline;
	pthread_cond_signal(&publisher->wake);
	pthread_mutex_unlock(&publisher->mutex);
	pthread_join(publisher->thread, NULL);
	pthread_cond_destroy(&publisher->wake);
	pthread_mutex_destroy(&publisher->mutex);
	publisher_free(publisher);
}

qmla_status_t qmw_publisher_add(struct qmw_publisher *publisher, const qmla_key_t *key,
				uint32_t slot, struct qmw_batch *batch)
{
	struct qmw_publisher *p = publisher;
	qmla_status_t status = qmw_batch_broken(batch);

	pthread_mutex_lock(&p->mutex);
	if (status == QMLA_OK && (p->stopping || p->queued == p->config.max_queued))
		status = QMLA_ERR_RESOURCE_EXHAUSTED;
	if (status != QMLA_OK) {
		p->stats.dropped++;
		qmw_batch_refused(batch, status);
	} else {
		qmw_pool_hold(p->config.pool, slot);
		qmw_batch_enter(batch);
		p->ring[(p->head + p->queued++) % p->config.max_queued] =
			(struct job){.key = *key, .slot = slot, .batch = batch};
		pthread_cond_signal(&p->wake);
	}
	pthread_mutex_unlock(&p->mutex);
	return status;
}

void qmw_publisher_read_stats(struct qmw_publisher *publisher, struct qmw_publisher_stats *stats)
{
	pthread_mutex_lock(&publisher->mutex);
	*stats = publisher->stats;
	stats->queued = publisher->queued;
	pthread_mutex_unlock(&publisher->mutex);
}
