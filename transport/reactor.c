/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/reactor.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/log.h"
#include "common/status.h"
#include "transport/reactor_thread.h"

#define THREADS_DEFAULT 4
#define THREADS_MAX     256
#define PEERS_DEFAULT   1024
#define IDLE_DEFAULT_NS (10 * QMC_NS_PER_S)

static qmla_status_t watch(int epoll_fd, int fd, void *target)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = target};

	return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? qmc_status_from_errno(errno)
								  : QMLA_OK;
}

/* With all signals blocked: the application's handlers are not to run on our threads. */
static int spawn(struct qmt_reactor_thread *thread)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread->thread, NULL, qmt_reactor_thread_main, thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

static qmla_status_t thread_start(struct qmt_reactor_thread *thread)
{
	qmla_status_t status;

	thread->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	thread->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (thread->epoll_fd < 0 || thread->wake_fd < 0)
		return qmc_status_from_errno(errno);
	status = watch(thread->epoll_fd, thread->wake_fd, thread);
	if (status == QMLA_OK && thread == thread->reactor->threads)
		status =
			watch(thread->epoll_fd, thread->reactor->config.listen_fd, thread->reactor);
	if (status != QMLA_OK)
		return status;
	if (spawn(thread))
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	thread->started = true;
	return QMLA_OK;
}

static uint32_t thread_count(uint32_t wanted)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);

	if (wanted == 0)
		wanted = processors > 0 && processors < THREADS_DEFAULT ? (uint32_t)processors
									: THREADS_DEFAULT;
	return wanted < THREADS_MAX ? wanted : THREADS_MAX;
}

static void threads_stop(struct qmt_reactor *reactor)
{
	struct qmt_peer *peer;

	atomic_store_explicit(&reactor->stop, true, memory_order_release);
	for (uint32_t i = 0; i < reactor->count; i++) {
		if (reactor->threads[i].started)
			(void)eventfd_write(reactor->threads[i].wake_fd, 1);
	}
	for (uint32_t i = 0; i < reactor->count; i++) {
		if (reactor->threads[i].started)
			pthread_join(reactor->threads[i].thread, NULL);
	}
	/* Only now: the first thread hands peers to the others until it has ended. */
	for (uint32_t i = 0; i < reactor->count; i++) {
		while ((peer = LIST_FIRST(&reactor->threads[i].arrivals)) != NULL) {
			LIST_REMOVE(peer, link);
			qmt_peer_end(reactor, peer, QMLA_ERR_UNAVAILABLE);
		}
	}
}

static void reactor_free(struct qmt_reactor *reactor)
{
	for (uint32_t i = 0; i < reactor->count; i++) {
		struct qmt_reactor_thread *thread = &reactor->threads[i];

		if (thread->epoll_fd >= 0)
			close(thread->epoll_fd);
		if (thread->wake_fd >= 0)
			close(thread->wake_fd);
		pthread_mutex_destroy(&thread->lock);
	}
	free(reactor);
}

static struct qmt_reactor *reactor_alloc(const struct qmt_reactor_config *config)
{
	uint32_t count = thread_count(config->threads);
	struct qmt_reactor *reactor =
		calloc(1, sizeof(*reactor) + count * sizeof(reactor->threads[0]));

	if (!reactor)
		return NULL;
	reactor->config = *config;
	reactor->count = count;
	if (reactor->config.max_peers == 0)
		reactor->config.max_peers = PEERS_DEFAULT;
	if (reactor->config.idle_timeout_ns <= 0)
		reactor->config.idle_timeout_ns = IDLE_DEFAULT_NS;
	for (uint32_t i = 0; i < count; i++) {
		struct qmt_reactor_thread *thread = &reactor->threads[i];

		thread->reactor = reactor;
		thread->epoll_fd = thread->wake_fd = -1;
		thread->accept_at = QMC_TIME_NEVER;
		pthread_mutex_init(&thread->lock, NULL);
	}
	return reactor;
}

qmla_status_t qmt_reactor_create(const struct qmt_reactor_config *config, struct qmt_reactor **out)
{
	struct qmt_reactor *reactor = reactor_alloc(config);
	qmla_status_t status = QMLA_OK;

	if (!reactor)
		return QMLA_ERR_NO_MEMORY;
	/* The accepting thread last: it hands peers to all the others. */
	for (uint32_t i = reactor->count; i-- > 0 && status == QMLA_OK;)
		status = thread_start(&reactor->threads[i]);
	if (status != QMLA_OK) {
		qmc_error(config->ops->component, "cannot start %u serving threads: %s",
			  reactor->count, qmla_status_text(status));
		threads_stop(reactor);
		reactor_free(reactor);
		return status;
	}
	*out = reactor;
	return QMLA_OK;
}

void qmt_reactor_destroy(struct qmt_reactor *reactor)
{
	if (!reactor)
		return;
	threads_stop(reactor);
	close(reactor->config.listen_fd);
	reactor_free(reactor);
}
