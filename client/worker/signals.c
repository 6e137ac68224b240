/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"

#define COMPONENT "worker"

/* All that the handlers touch. Lock-free atomics: they run on any thread, also several at a time.
 */
static int wake_pipe[2] = {-1, -1}; /* written once, before the handlers are there */
static _Atomic unsigned ends;       /* SIGTERM and SIGINT so far */
static _Atomic bool reload, woken;
static _Atomic(const struct qmc_port_file *) port_file;

/* The pipe only wakes, what there is to do is in the variables: a full one loses nothing. */
static void wake(void)
{
	static const char byte = 0;
	int error = errno;

	if (write(wake_pipe[1], &byte, 1) < 0)
		errno = error;
}

static void end_at_once(const char *text)
{
	/* Acquire: the file was filled in before it was set. */
	qmc_port_file_remove(atomic_load_explicit(&port_file, memory_order_acquire));
	if (write(STDERR_FILENO, text, strlen(text)) < 0)
		_exit(EXIT_FAILURE);
	_exit(EXIT_FAILURE);
}

static void on_end(int number)
{
	(void)number;
	/* Relaxed, here and below: they guard no other data, and the pipe orders them. */
	if (atomic_fetch_add_explicit(&ends, 1, memory_order_relaxed) > 0)
		end_at_once("qmla-worker: second signal: ended at once\n");
	wake();
}

static void on_reload(int number)
{
	(void)number;
	atomic_store_explicit(&reload, true, memory_order_relaxed);
	wake();
}

static void on_overdue(int number)
{
	(void)number;
	end_at_once("qmla-worker: did not end in time: ended at once\n");
}

static void ours(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGHUP);
	sigaddset(set, SIGALRM);
}

static qmla_status_t handle(int number, void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};

	/* One at a time on a thread: nothing is interrupted half way. */
	ours(&action.sa_mask);
	return sigaction(number, &action, NULL) == 0 ? QMLA_OK : QMLA_ERR_INTERNAL;
}

qmla_status_t qmw_signals_install(void)
{
	static const struct {
		int number;
		void (*handler)(int);
	} list[] = {
		{SIGTERM, on_end},     {SIGINT, on_end},   {SIGHUP, on_reload},
		{SIGALRM, on_overdue}, {SIGPIPE, SIG_IGN}, {SIGXFSZ, SIG_IGN},
	};
	qmla_status_t status = QMLA_OK;

	if (pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
		qmc_error(COMPONENT, "cannot make a pipe: %s", strerror(errno));
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	}
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]) && status == QMLA_OK; i++)
		status = handle(list[i].number, list[i].handler);
	if (status != QMLA_OK)
		qmc_error(COMPONENT, "cannot install the signal handlers: %s", strerror(errno));
	/* Whoever started the process may have left them blocked. */
	qmw_signals_release();
	return status;
}

void qmw_signals_hold(void)
{
	sigset_t set;

	ours(&set);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

void qmw_signals_release(void)
{
	sigset_t set;

	ours(&set);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static void drain_pipe(void)
{
	char bytes[64];

	while (read(wake_pipe[0], bytes, sizeof(bytes)) > 0)
		continue;
}

enum qmw_signal qmw_signals_next(int64_t wait_ns)
{
	qmc_time_t deadline = wait_ns < 0 ? QMC_TIME_NEVER : qmc_clock_after(wait_ns);
	struct pollfd readable = {.fd = wake_pipe[0], .events = POLLIN};

	for (;;) {
		drain_pipe();
		if (atomic_load_explicit(&ends, memory_order_relaxed) > 0)
			return QMW_SIGNAL_END;
		if (atomic_exchange_explicit(&reload, false, memory_order_relaxed))
			return QMW_SIGNAL_RELOAD;
		if (atomic_exchange_explicit(&woken, false, memory_order_relaxed) ||
		    qmc_clock_left(deadline) == 0)
			return QMW_SIGNAL_NONE;
		(void)poll(&readable, 1, qmc_clock_left_ms(deadline)); /* EINTR: look again */
	}
}

void qmw_signals_wake(void)
{
	atomic_store_explicit(&woken, true, memory_order_relaxed);
	wake();
}

void qmw_signals_set_port_file(const struct qmc_port_file *file)
{
	atomic_store_explicit(&port_file, file, memory_order_release);
}

void qmw_signals_end_after(unsigned seconds)
{
	alarm(seconds);
}
