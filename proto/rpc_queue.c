/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc_queue.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/log.h"
#include "proto/rpc_runtime.h"

#define TICK_NS QMC_NS_PER_S

struct qmp_queue {
	grpc_completion_queue *handle;
	pthread_t thread;
	void (*tick)(void *argument);
	void *argument;
};

static struct {
	pthread_mutex_t lock;
	unsigned users;
	struct qmp_queue *queue;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *queue_run(void *argument)
{
	struct qmp_queue *queue = argument;
	qmc_time_t next = queue->tick ? qmc_clock_after(TICK_NS) : QMC_TIME_NEVER;

	for (;;) {
		grpc_event event = grpc_completion_queue_next(queue->handle,
							      qmp_timespec_from_time(next), NULL);

		if (event.type == GRPC_QUEUE_SHUTDOWN)
			return NULL;
		if (event.type == GRPC_OP_COMPLETE) {
			struct qmp_tag *tag = event.tag;

			QMP_TAKE_OVER(tag);
			tag->done(tag, event.success);
		}
		if (queue->tick && qmc_clock_left(next) == 0) {
			queue->tick(queue->argument);
			next = qmc_clock_after(TICK_NS);
		}
	}
}

qmla_status_t qmp_queue_create(const char *thread_name, void (*tick)(void *argument),
			       void *argument, struct qmp_queue **queue)
{
	struct qmp_queue *q = malloc(sizeof(*q));
	qmla_status_t status;

	if (!q)
		return QMLA_ERR_NO_MEMORY;
	*q = (struct qmp_queue){.tick = tick, .argument = argument};
	q->handle = grpc_completion_queue_create_for_next(NULL);
	status = qmp_thread_start(&q->thread, thread_name, queue_run, q);
	if (status != QMLA_OK) {
		qmc_error("rpc", "cannot start the thread %s: %s", thread_name,
			  qmla_status_text(status));
		grpc_completion_queue_shutdown(q->handle);
		grpc_completion_queue_destroy(q->handle);
		free(q);
		return status;
	}
	*queue = q;
	return QMLA_OK;
}

void qmp_queue_destroy(struct qmp_queue *queue)
{
	if (!queue)
		return;
	grpc_completion_queue_shutdown(queue->handle);
	pthread_join(queue->thread, NULL);
	grpc_completion_queue_destroy(queue->handle);
	free(queue);
}

grpc_completion_queue *qmp_queue_handle(struct qmp_queue *queue)
{
	return queue->handle;
}

qmla_status_t qmp_queue_shared_get(struct qmp_queue **queue)
{
	qmla_status_t status = QMLA_OK;

	pthread_mutex_lock(&shared.lock);
	if (shared.users == 0)
		status = qmp_queue_create("qmp-client", NULL, NULL, &shared.queue);
	if (status == QMLA_OK) {
		shared.users++;
		*queue = shared.queue;
	}
	pthread_mutex_unlock(&shared.lock);
	return status;
}

void qmp_queue_shared_put(void)
{
	pthread_mutex_lock(&shared.lock);
	if (--shared.users == 0) {
		qmp_queue_destroy(shared.queue);
		shared.queue = NULL;
	}
	pthread_mutex_unlock(&shared.lock);
}

bool qmp_batch_start(grpc_call *call, const grpc_op *ops, size_t count, struct qmp_tag *tag)
{
	grpc_call_error error;

	QMP_HAND_OVER(tag);
	error = grpc_call_start_batch(call, ops, count, tag, NULL);
	if (error == GRPC_CALL_OK)
		return true;
	qmc_error("rpc", "gRPC refused a batch of %zu operations: %s (a defect, please report)",
		  count, grpc_call_error_to_string(error));
	return false;
}
