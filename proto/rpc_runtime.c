/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc_runtime.h"

#include <errno.h>
#include <grpc/support/time.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

static pthread_mutex_t runtime_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned runtime_users;

void qmp_runtime_get(void)
{
	sigset_t all, saved;

	pthread_mutex_lock(&runtime_lock);
	if (runtime_users++ == 0) {
		/* gRPC's threads inherit the mask; none of them may take SIGTERM. */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &saved);
		/*
		 * getaddrinfo, as everywhere else here, instead of c-ares: the one in
		 * Debian 12 leaks a little with every name it looks up, and knows nothing
		 * of nsswitch.conf. The environment may still choose otherwise.
		 */
		(void)setenv("GRPC_DNS_RESOLVER", "native", 0);
		qmp_log_redirect();
		grpc_init();
		pthread_sigmask(SIG_SETMASK, &saved, NULL);
	}
	pthread_mutex_unlock(&runtime_lock);
}

void qmp_runtime_put(void)
{
	pthread_mutex_lock(&runtime_lock);
	if (--runtime_users == 0)
		grpc_shutdown_blocking();
	pthread_mutex_unlock(&runtime_lock);
}

gpr_timespec qmp_timespec_from_time(qmc_time_t time)
{
	if (time == QMC_TIME_NEVER)
		return gpr_inf_future(GPR_CLOCK_MONOTONIC);
	/* Relative, so that it does not matter which clock gRPC counts on. */
	return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
			    gpr_time_from_nanos(qmc_clock_left(time), GPR_TIMESPAN));
}

qmc_time_t qmp_time_from_timespec(gpr_timespec timespec)
{
	gpr_timespec left;

	if (gpr_time_cmp(timespec, gpr_inf_future(timespec.clock_type)) == 0)
		return QMC_TIME_NEVER;
	left = gpr_time_sub(timespec, gpr_now(timespec.clock_type));
	if (left.tv_sec < 0)
		return qmc_clock_now();
	if (left.tv_sec > INT64_MAX / QMC_NS_PER_S - 1)
		return QMC_TIME_NEVER;
	return qmc_clock_after(left.tv_sec * QMC_NS_PER_S + left.tv_nsec);
}

void qmp_condition_init(pthread_cond_t *condition)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(condition, &attributes);
	pthread_condattr_destroy(&attributes);
}

bool qmp_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, qmc_time_t deadline)
{
	struct timespec until = {
		.tv_sec = (time_t)(deadline / QMC_NS_PER_S),
		.tv_nsec = (long)(deadline % QMC_NS_PER_S),
	};

	if (deadline == QMC_TIME_NEVER)
		return pthread_cond_wait(condition, lock) == 0;
	return pthread_cond_timedwait(condition, lock, &until) != ETIMEDOUT;
}

qmla_status_t qmp_thread_start(pthread_t *thread, const char *name, void *(*run)(void *),
			       void *argument)
{
	sigset_t all, saved;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &saved);
	rc = pthread_create(thread, NULL, run, argument);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	if (rc)
		return QMLA_ERR_NO_MEMORY;
	(void)pthread_setname_np(*thread, name);
	return QMLA_OK;
}
