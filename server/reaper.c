/* SPDX-License-Identifier: Apache-2.0 */
#include "server/reaper.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "common/log.h"

struct qms_reaper {
	struct qms_store *store;
	pthread_t thread;
	bool running;
	pthread_mutex_t lock; /* guards the two below */
	pthread_cond_t wake;
	bool kicked;
	bool stop;
};

qmla_status_t qms_reaper_create(struct qms_reaper **reaper)
{
	struct qms_reaper *made = calloc(1, sizeof(*made));
	pthread_condattr_t attributes;

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	pthread_mutex_init(&made->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&made->wake, &attributes);
	pthread_condattr_destroy(&attributes);
	*reaper = made;
	return QMLA_OK;
}

static void sleep_until(struct qms_reaper *reaper, qmc_time_t when)
{
	struct timespec until = {.tv_sec = (time_t)(when / QMC_NS_PER_S),
				 .tv_nsec = (long)(when % QMC_NS_PER_S)};
	int rc = 0;

	while (!reaper->kicked && !reaper->stop && rc == 0) {
		if (when == QMC_TIME_NEVER)
			rc = pthread_cond_wait(&reaper->wake, &reaper->lock);
		else
			rc = pthread_cond_timedwait(&reaper->wake, &reaper->lock, &until);
	}
	reaper->kicked = false;
}

static void *run(void *argument)
{
	struct qms_reaper *reaper = argument;
	bool stop = false;

	while (!stop) {
		qmc_time_t next;

		/* While awake every new expiry kicks, so that none falls between here and the
		 * sleep. */
		qms_store_arm(reaper->store, QMC_TIME_NEVER);
		next = qms_store_expire(reaper->store, qmc_clock_now());
		qms_store_arm(reaper->store, next);
		pthread_mutex_lock(&reaper->lock);
		sleep_until(reaper, next);
		stop = reaper->stop;
		pthread_mutex_unlock(&reaper->lock);
	}
	return NULL;
}

qmla_status_t qms_reaper_start(struct qms_reaper *reaper, struct qms_store *store)
{
	reaper->store = store;
	if (pthread_create(&reaper->thread, NULL, run, reaper) != 0) {
		qmc_error("node",
			  "cannot start a thread: raise the limit of processes (ulimit -u)");
		return QMLA_ERR_NO_MEMORY;
	}
	reaper->running = true;
	return QMLA_OK;
}

void qms_reaper_wake(void *argument)
{
	struct qms_reaper *reaper = argument;

	pthread_mutex_lock(&reaper->lock);
	reaper->kicked = true;
	pthread_cond_signal(&reaper->wake);
	pthread_mutex_unlock(&reaper->lock);
}

void qms_reaper_destroy(struct qms_reaper *reaper)
{
	if (!reaper)
		return;
	pthread_mutex_lock(&reaper->lock);
	reaper->stop = true;
	pthread_cond_signal(&reaper->wake);
	pthread_mutex_unlock(&reaper->lock);
	if (reaper->running)
		pthread_join(reaper->thread, NULL);
	pthread_cond_destroy(&reaper->wake);
	pthread_mutex_destroy(&reaper->lock);
	free(reaper);
}
