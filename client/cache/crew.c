/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/crew.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "client/cache/thread.h"

struct job {
	struct job *next;
	qml_crew_func_t work;
	void *const *items;
	size_t count;
	size_t taken;
	size_t done;
	pthread_cond_t finished;
};

struct qml_crew {
	pthread_mutex_t lock; /* everything here and in the jobs */
	pthread_cond_t work;
	struct job *jobs; /* with items nobody took yet */
	pthread_t *threads;
	size_t most, started, idle;
	bool stopping;
};

/* Under the lock: takes the job's next item, and the job off the list with its last. */
static void *take_item(struct qml_crew *crew, struct job *job)
{
	void *item = job->items[job->taken++];

	if (job->taken == job->count) {
		struct job **at = &crew->jobs;

		while (*at != job)
			at = &(*at)->next;
		*at = job->next;
	}
	return item;
}

/* Under the lock, let go while working. */
static void work_on(struct qml_crew *crew, struct job *job)
{
	void *item = take_item(crew, job);

	pthread_mutex_unlock(&crew->lock);
	job->work(item);
	pthread_mutex_lock(&crew->lock);
	if (++job->done == job->count)
		pthread_cond_signal(&job->finished);
}

static void *crew_main(void *user)
{
	struct qml_crew *crew = user;

	pthread_mutex_lock(&crew->lock);
	while (!crew->stopping) {
		if (crew->jobs) {
			work_on(crew, crew->jobs);
			continue;
		}
		crew->idle++;
		pthread_cond_wait(&crew->work, &crew->lock);
		crew->idle--;
	}
	pthread_mutex_unlock(&crew->lock);
	return NULL;
}

qmla_status_t qml_crew_create(size_t most_threads, struct qml_crew **crew)
{
	struct qml_crew *self = calloc(1, sizeof(*self));

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->threads = calloc(most_threads, sizeof(*self->threads));
	if (!self->threads) {
		free(self);
		return QMLA_ERR_NO_MEMORY;
	}
	self->most = most_threads;
	pthread_mutex_init(&self->lock, NULL);
	pthread_cond_init(&self->work, NULL);
	*crew = self;
	return QMLA_OK;
}

void qml_crew_destroy(struct qml_crew *crew)
{
	if (!crew)
		return;
	pthread_mutex_lock(&crew->lock);
	crew->stopping = true;
	pthread_cond_broadcast(&crew->work);
	pthread_mutex_unlock(&crew->lock);
	for (size_t i = 0; i < crew->started; i++)
		pthread_join(crew->threads[i], NULL);
	pthread_cond_destroy(&crew->work);
	pthread_mutex_destroy(&crew->lock);
	free(crew->threads);
	free(crew);
}

/* Under the lock. Too few threads is no error: the caller works too. */
static void hire(struct qml_crew *crew, size_t wanted)
{
	while (crew->idle < wanted && crew->started < crew->most && wanted > 0) {
		if (qml_thread_start(&crew->threads[crew->started], crew_main, crew) != QMLA_OK)
			break;
		crew->started++;
		wanted--;
	}
	pthread_cond_broadcast(&crew->work);
}

void qml_crew_run(struct qml_crew *crew, qml_crew_func_t work, void *const *items, size_t count)
{
	struct job job = {.work = work, .items = items, .count = count};

	if (count == 1) {
		work(items[0]);
		return;
	}
	if (count == 0)
		return;
	pthread_cond_init(&job.finished, NULL);
	pthread_mutex_lock(&crew->lock);
	job.next = crew->jobs;
	/* Off the list before this returns: take_item. */
	/* cppcheck-suppress autoVariables */
	crew->jobs = &job;
	hire(crew, count - 1);
	while (job.taken < job.count)
		work_on(crew, &job);
	while (job.done < job.count)
		pthread_cond_wait(&job.finished, &crew->lock);
	pthread_mutex_unlock(&crew->lock);
	pthread_cond_destroy(&job.finished);
}
