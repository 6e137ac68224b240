/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/accept_watch.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t failures; /* guarded by lock */

uint64_t qmp_accept_failures(void)
{
	uint64_t count;

	pthread_mutex_lock(&lock);
	count = failures;
	pthread_mutex_unlock(&lock);
	return count;
}

void qmp_accept_watch_wait(uint64_t seen, const atomic_bool *stop)
{
	pthread_mutex_lock(&lock);
	/* Relaxed: wake takes the lock after the flag was set. */
	while (failures == seen && !atomic_load_explicit(stop, memory_order_relaxed))
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

void qmp_accept_watch_wake(void)
{
	pthread_mutex_lock(&lock);
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

void qmp_accept_watch_note(void)
{
	pthread_mutex_lock(&lock);
	failures++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}
