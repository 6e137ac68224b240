/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/batch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "client/worker/publisher.h"

struct qmw_batch {
	pthread_mutex_t mutex;
	pthread_cond_t settled; /* nothing pending */
	uint32_t references;
	struct qmw_batch_result result;
	qmla_status_t failed;  /* why a settled block is missing */
	qmla_status_t refused; /* why one could not be queued */
};

qmla_status_t qmw_batch_create(struct qmw_batch **batch)
{
	struct qmw_batch *b = calloc(1, sizeof(*b));
	pthread_condattr_t attr;

	if (!b)
		return QMLA_ERR_NO_MEMORY;
	b->references = 1;
	pthread_mutex_init(&b->mutex, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&b->settled, &attr);
	pthread_condattr_destroy(&attr);
	*batch = b;
	return QMLA_OK;
}

/* Called with the mutex held; releases it. */
static void release(struct qmw_batch *batch)
{
	bool last = --batch->references == 0;

	pthread_mutex_unlock(&batch->mutex);
	if (!last)
		return;
	pthread_cond_destroy(&batch->settled);
	pthread_mutex_destroy(&batch->mutex);
	free(batch);
}

void qmw_batch_put(struct qmw_batch *batch)
{
	if (!batch)
		return;
	pthread_mutex_lock(&batch->mutex);
	release(batch);
}

static void count_failure(struct qmw_batch *batch, qmla_status_t status)
{
	batch->result.failed++;
	if (batch->result.first_failure == QMLA_OK)
		batch->result.first_failure = status;
}

/* Another writer may be at it: the block is there as soon as that one commits. */
static bool is_missing(qmla_status_t status)
{
	return status != QMLA_OK && status != QMLA_ERR_ALREADY_EXISTS && status != QMLA_ERR_BUSY;
}

void qmw_batch_enter(struct qmw_batch *batch)
{
	pthread_mutex_lock(&batch->mutex);
	batch->references++;
	batch->result.pending++;
	pthread_mutex_unlock(&batch->mutex);
}

void qmw_batch_leave(struct qmw_batch *batch, qmla_status_t status)
{
	pthread_mutex_lock(&batch->mutex);
	if (status == QMLA_OK || status == QMLA_ERR_ALREADY_EXISTS)
		batch->result.published++;
	else
		count_failure(batch, status);
	if (batch->failed == QMLA_OK && is_missing(status))
		batch->failed = status;
	if (--batch->result.pending == 0)
		pthread_cond_broadcast(&batch->settled);
	release(batch);
}

void qmw_batch_refused(struct qmw_batch *batch, qmla_status_t status)
{
	pthread_mutex_lock(&batch->mutex);
	count_failure(batch, status);
	batch->refused = status;
	pthread_mutex_unlock(&batch->mutex);
}

qmla_status_t qmw_batch_failed(struct qmw_batch *batch)
{
	qmla_status_t status;

	pthread_mutex_lock(&batch->mutex);
	status = batch->failed;
	pthread_mutex_unlock(&batch->mutex);
	return status;
}

qmla_status_t qmw_batch_broken(struct qmw_batch *batch)
{
	qmla_status_t status;

	pthread_mutex_lock(&batch->mutex);
	status = batch->failed != QMLA_OK ? batch->failed : batch->refused;
	pthread_mutex_unlock(&batch->mutex);
	return status;
}

void qmw_batch_wait(struct qmw_batch *batch, qmc_time_t deadline, struct qmw_batch_result *result)
{
	struct timespec ts = {.tv_sec = deadline / QMC_NS_PER_S,
			      .tv_nsec = deadline % QMC_NS_PER_S};
	int rc = 0;

	pthread_mutex_lock(&batch->mutex);
	while (batch->result.pending > 0 && rc == 0)
		rc = pthread_cond_timedwait(&batch->settled, &batch->mutex, &ts);
	*result = batch->result;
	pthread_mutex_unlock(&batch->mutex);
}
