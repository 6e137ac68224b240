/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/thread.h"

#include <signal.h>
#include <time.h>

#include "common/log.h"

qmla_status_t qml_thread_start(pthread_t *thread, void *(*run)(void *), void *user)
{
	sigset_t all, before;
	int failed;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = pthread_create(thread, NULL, run, user);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failed) {
		qmc_error("client", "no thread could be started: error %d", failed);
		return QMLA_ERR_NO_MEMORY;
	}
	return QMLA_OK;
}

void qml_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &monotonic);
	pthread_condattr_destroy(&monotonic);
}
