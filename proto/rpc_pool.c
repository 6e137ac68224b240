/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc_pool.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/log.h"
#include "proto/rpc_runtime.h"

struct qmp_pool {
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct qmp_job *head;
	struct qmp_job **tail;
	uint32_t waiting, max_waiting;
	uint32_t threads;
	bool stopping;
	pthread_t handles[];
};

static struct qmp_job *pool_take(struct qmp_pool *pool)
{
	struct qmp_job *job;

	pthread_mutex_lock(&pool->lock);
	while (!pool->head && !pool->stopping)
		pthread_cond_wait(&pool->work, &pool->lock);
	job = pool->head;
	if (job) {
		pool->head = job->next;
		if (!pool->head)
			pool->tail = &pool->head;
		pool->waiting--;
	}
	pthread_mutex_unlock(&pool->lock);
	return job;
}

static void *pool_run(void *argument)
{
	struct qmp_pool *pool = argument;
	struct qmp_job *job;

	while ((job = pool_take(pool)))
		job->run(job);
	return NULL;
}

qmla_status_t qmp_pool_create(uint32_t threads, uint32_t max_waiting, struct qmp_pool **pool)
{
	struct qmp_pool *p = calloc(1, sizeof(*p) + threads * sizeof(p->handles[0]));
	qmla_status_t status = QMLA_OK;

	if (!p)
		return QMLA_ERR_NO_MEMORY;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	p->tail = &p->head;
	p->max_waiting = max_waiting;
	for (; status == QMLA_OK && p->threads < threads; p->threads++) {
		status = qmp_thread_start(&p->handles[p->threads], "qmp-worker", pool_run, p);
		if (status != QMLA_OK)
			break;
	}
	if (status != QMLA_OK) {
		qmc_error("rpc", "cannot start %u handler threads: only %u fit", threads,
			  p->threads);
		qmp_pool_destroy(p);
		return status;
	}
	*pool = p;
	return QMLA_OK;
}

void qmp_pool_destroy(struct qmp_pool *pool)
{
	if (!pool)
		return;
	pthread_mutex_lock(&pool->lock);
	pool->stopping = true;
	pthread_cond_broadcast(&pool->work);
	pthread_mutex_unlock(&pool->lock);
	for (uint32_t i = 0; i < pool->threads; i++)
		pthread_join(pool->handles[i], NULL);
	pthread_cond_destroy(&pool->work);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

bool qmp_pool_submit(struct qmp_pool *pool, struct qmp_job *job)
{
	bool accepted;

	pthread_mutex_lock(&pool->lock);
	accepted = pool->waiting < pool->max_waiting;
	if (accepted) {
		job->next = NULL;
		*pool->tail = job;
		pool->tail = &job->next;
		pool->waiting++;
		pthread_cond_signal(&pool->work);
	}
	pthread_mutex_unlock(&pool->lock);
	return accepted;
}
