/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#define THREADS_MAX 64u
/* Looks at the round counter before sleeping: about 20 us, the gap between two products of a decode
 * step. */
#define SPINS 2000

struct helper {
	struct qmw_team *team;
	uint32_t number;
	pthread_t thread;
};

struct qmw_team {
	uint32_t threads;
	pthread_mutex_t lock;
	pthread_cond_t start, finish;
	qmw_team_function *function;
	void *argument;
	uint32_t count;
	atomic_uint next;  /**< index to be taken */
	atomic_uint busy;  /**< helpers inside the round */
	atomic_uint round; /**< odd values never matter; a change starts a round */
	bool stop;         /**< under lock */
	struct helper helpers[];
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

uint32_t qmw_team_processors(void)
{
	cpu_set_t set;
	int count = 1;

	CPU_ZERO(&set);
	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		count = CPU_COUNT(&set);
	if (count < 1)
		count = 1;
	return (uint32_t)count < THREADS_MAX ? (uint32_t)count : THREADS_MAX;
}

static void work(struct qmw_team *team, uint32_t number)
{
	uint32_t index;

	/* Relaxed: the indices only divide the work; start and finish order the memory. */
	while ((index = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed)) <
	       team->count)
		team->function(team->argument, index, number);
}

/* Waits for a round other than @p seen; false when the team ends. */
static bool wait_for_round(struct qmw_team *team, uint32_t *seen)
{
	bool stop;

	/* Acquire pairs with the release in qmw_team_run: the round's fields are visible. */
	for (int i = 0; i < SPINS; i++) {
		if (atomic_load_explicit(&team->round, memory_order_acquire) != *seen) {
			*seen = atomic_load_explicit(&team->round, memory_order_acquire);
			return true;
		}
		pause_briefly();
	}
	pthread_mutex_lock(&team->lock);
	while (!team->stop && atomic_load_explicit(&team->round, memory_order_acquire) == *seen)
		pthread_cond_wait(&team->start, &team->lock);
	stop = team->stop;
	*seen = atomic_load_explicit(&team->round, memory_order_acquire);
	pthread_mutex_unlock(&team->lock);
	return !stop;
}

static void *helper_main(void *argument)
{
	struct helper *helper = argument;
	struct qmw_team *team = helper->team;
	uint32_t seen = 0;

	while (wait_for_round(team, &seen)) {
		work(team, helper->number);
		/* Release: what this thread wrote is visible to the caller once it sees zero. */
		if (atomic_fetch_sub_explicit(&team->busy, 1, memory_order_acq_rel) == 1) {
			pthread_mutex_lock(&team->lock);
			pthread_cond_signal(&team->finish);
			pthread_mutex_unlock(&team->lock);
		}
	}
	return NULL;
}

static void wait_for_helpers(struct qmw_team *team)
{
	for (int i = 0; i < SPINS; i++) {
		if (atomic_load_explicit(&team->busy, memory_order_acquire) == 0)
			return;
		pause_briefly();
	}
	pthread_mutex_lock(&team->lock);
	while (atomic_load_explicit(&team->busy, memory_order_acquire) != 0)
		pthread_cond_wait(&team->finish, &team->lock);
	pthread_mutex_unlock(&team->lock);
}

void qmw_team_run(struct qmw_team *team, uint32_t count, qmw_team_function *function,
		  void *argument)
{
	if (team->threads == 1 || count <= 1) {
		for (uint32_t i = 0; i < count; i++)
			function(argument, i, 0);
		return;
	}
	team->function = function;
	team->argument = argument;
	team->count = count;
	atomic_store_explicit(&team->next, 0, memory_order_relaxed);
	atomic_store_explicit(&team->busy, team->threads - 1, memory_order_relaxed);
	pthread_mutex_lock(&team->lock);
	atomic_fetch_add_explicit(&team->round, 1, memory_order_release);
	pthread_cond_broadcast(&team->start);
	pthread_mutex_unlock(&team->lock);
	work(team, 0);
	wait_for_helpers(team);
}

static qmla_status_t start_helpers(struct qmw_team *team)
{
	sigset_t all, old;
	int error = 0;
	uint32_t i;

	/* Signals belong to the program's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (i = 1; i < team->threads && !error; i++) {
		team->helpers[i] = (struct helper){.team = team, .number = i};
		error = pthread_create(&team->helpers[i].thread, NULL, helper_main,
				       &team->helpers[i]);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!error)
		return QMLA_OK;
	team->threads = i - 1;
	return QMLA_ERR_RESOURCE_EXHAUSTED;
}

qmla_status_t qmw_team_create(uint32_t threads, struct qmw_team **team)
{
	struct qmw_team *self;
	qmla_status_t status;

	if (threads < 1 || threads > THREADS_MAX)
		return QMLA_ERR_INVALID_ARGUMENT;
	self = calloc(1, sizeof(*self) + threads * sizeof(self->helpers[0]));
	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->threads = threads;
	pthread_mutex_init(&self->lock, NULL);
	pthread_cond_init(&self->start, NULL);
	pthread_cond_init(&self->finish, NULL);
	status = start_helpers(self);
	if (status) {
		qmw_team_destroy(self);
		return status;
	}
	*team = self;
	return QMLA_OK;
}

void qmw_team_destroy(struct qmw_team *team)
{
	if (!team)
		return;
	pthread_mutex_lock(&team->lock);
	team->stop = true;
	pthread_cond_broadcast(&team->start);
	pthread_mutex_unlock(&team->lock);
	for (uint32_t i = 1; i < team->threads; i++)
		pthread_join(team->helpers[i].thread, NULL);
	pthread_cond_destroy(&team->finish);
	pthread_cond_destroy(&team->start);
	pthread_mutex_destroy(&team->lock);
	free(team);
}

uint32_t qmw_team_threads(const struct qmw_team *team)
{
	return team->threads;
}
