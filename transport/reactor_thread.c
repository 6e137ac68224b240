/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/reactor_thread.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"

#define EVENTS_A_TURN   64
#define PENDING_MAX     128 /* connections that have not shaken hands yet */
#define ACCEPT_PAUSE_NS (100 * QMC_NS_PER_MS)

/* ---- peers ---- */

static void adopt(struct qmt_reactor_thread *thread, struct qmt_peer *peer)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};

	LIST_INSERT_HEAD(&thread->peers, peer, link);
	peer->interest = EPOLLIN;
	qmt_peer_busy(peer);
	if (epoll_ctl(thread->epoll_fd, EPOLL_CTL_ADD, peer->fd, &event) < 0) {
		qmc_warn_limited(thread->reactor->config.ops->component,
				 "peer %s cannot be watched: %s", peer->name, strerror(errno));
		qmt_peer_drop(peer, QMLA_ERR_RESOURCE_EXHAUSTED);
	}
}

static void adopt_arrivals(struct qmt_reactor_thread *thread)
{
	struct qmt_peer_list arrivals;
	struct qmt_peer *peer;

	pthread_mutex_lock(&thread->lock);
	arrivals = thread->arrivals;
	if (!LIST_EMPTY(&arrivals))
		LIST_FIRST(&arrivals)->link.le_prev = &arrivals.lh_first;
	LIST_INIT(&thread->arrivals);
	pthread_mutex_unlock(&thread->lock);
	while ((peer = LIST_FIRST(&arrivals)) != NULL) {
		LIST_REMOVE(peer, link);
		adopt(thread, peer);
	}
}

static void on_wake(struct qmt_reactor_thread *thread)
{
	const struct qmt_peer_ops *ops = thread->reactor->config.ops;
	struct qmt_peer *peer, *next;
	eventfd_t ignored;

	(void)eventfd_read(thread->wake_fd, &ignored);
	adopt_arrivals(thread);
	for (peer = LIST_FIRST(&thread->peers); peer; peer = next) {
		next = LIST_NEXT(peer, link);
		if (!ops->fenced(peer))
			qmt_peer_drop(peer, QMLA_ERR_PERMISSION);
	}
}

static void drop_stalled(struct qmt_reactor_thread *thread)
{
	const struct qmt_reactor_config *config = &thread->reactor->config;
	struct qmt_peer *peer, *next;
	qmc_time_t now;

	if (thread->busy == 0)
		return;
	now = qmc_clock_now();
	if (now < thread->check_at)
		return;
	for (peer = LIST_FIRST(&thread->peers); peer; peer = next) {
		next = LIST_NEXT(peer, link);
		if (now < peer->stalls_at)
			continue;
		qmc_warn_limited(config->ops->component,
				 "peer %s stalled inside a %s for %lld ms and was dropped",
				 peer->name, peer->admitted ? "message" : "handshake",
				 (long long)(config->idle_timeout_ns / QMC_NS_PER_MS));
		qmt_peer_drop(peer, QMLA_ERR_DEADLINE);
	}
	thread->check_at = now + qmt_reactor_check_step(thread->reactor);
}

/* ---- accepting (first thread) ---- */

static void listener_watch(struct qmt_reactor_thread *thread, uint32_t events)
{
	struct qmt_reactor *reactor = thread->reactor;
	struct epoll_event event = {.events = events, .data.ptr = reactor};

	(void)epoll_ctl(thread->epoll_fd, EPOLL_CTL_MOD, reactor->config.listen_fd, &event);
	thread->accept_at = events ? QMC_TIME_NEVER : qmc_clock_after(ACCEPT_PAUSE_NS);
}

static void peer_start(struct qmt_reactor *reactor, int fd, const char *name)
{
	const struct qmt_reactor_config *config = &reactor->config;
	struct qmt_reactor_thread *thread;
	struct qmt_peer *peer;

	if (atomic_load_explicit(&reactor->pending, memory_order_relaxed) >= PENDING_MAX) {
		qmc_warn_limited(config->ops->component,
				 "peer %s refused: %d others have not finished their handshake",
				 name, PENDING_MAX);
		close(fd);
		return;
	}
	peer = config->ops->open(config->user);
	if (!peer) {
		qmc_warn_limited(config->ops->component, "peer %s refused: out of memory", name);
		close(fd);
		return;
	}
	thread = &reactor->threads[reactor->next++ % reactor->count];
	peer->fd = fd;
	peer->wake_fd = thread->wake_fd;
	peer->thread = thread;
	peer->stalls_at = QMC_TIME_NEVER;
	snprintf(peer->name, sizeof(peer->name), "%s", name);
	atomic_fetch_add_explicit(&reactor->pending, 1, memory_order_relaxed);
	pthread_mutex_lock(&thread->lock);
	LIST_INSERT_HEAD(&thread->arrivals, peer, link);
	pthread_mutex_unlock(&thread->lock);
	(void)eventfd_write(thread->wake_fd, 1);
}

static void on_accept(struct qmt_reactor_thread *thread)
{
	struct qmt_reactor *reactor = thread->reactor;

	for (int i = 0; i < EVENTS_A_TURN; i++) {
		struct sockaddr_storage sa = {0};
		socklen_t length = sizeof(sa);
		char name[QMC_ADDRESS_TEXT_MAX];
		int fd = accept4(reactor->config.listen_fd, (struct sockaddr *)&sa, &length,
				 SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0) {
			qmc_sockaddr_format((struct sockaddr *)&sa, length, name);
			peer_start(reactor, fd, name);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			/* The connection stays in the backlog: look again in a moment. */
			qmc_warn_limited(reactor->config.ops->component,
					 "cannot accept a peer: %s (raise the limit of open files)",
					 strerror(errno));
			listener_watch(thread, 0);
			return;
		}
		if (errno != EINTR && errno != ECONNABORTED)
			return;
	}
}

/* ---- the loop ---- */

static int turn_timeout_ms(const struct qmt_reactor_thread *thread)
{
	qmc_time_t until = thread->accept_at;

	if (thread->busy > 0 && thread->check_at < until)
		until = thread->check_at;
	return qmc_clock_left_ms(until);
}

static void turn(struct qmt_reactor_thread *thread)
{
	struct qmt_reactor *reactor = thread->reactor;
	struct epoll_event events[EVENTS_A_TURN];
	bool woken = false;
	int n = epoll_wait(thread->epoll_fd, events, EVENTS_A_TURN, turn_timeout_ms(thread));

	for (int i = 0; i < n; i++) {
		void *target = events[i].data.ptr;

		if (target == thread)
			woken = true;
		else if (target == reactor)
			on_accept(thread);
		else if (!reactor->config.ops->ready(target))
			qmt_peer_drop(target, QMLA_ERR_UNAVAILABLE);
	}
	/* After the events, of which none may name a peer that is gone. */
	if (woken)
		on_wake(thread);
	drop_stalled(thread);
	if (thread->accept_at != QMC_TIME_NEVER && qmc_clock_left(thread->accept_at) == 0)
		listener_watch(thread, EPOLLIN);
}

void *qmt_reactor_thread_main(void *argument)
{
	struct qmt_reactor_thread *thread = argument;
	struct qmt_peer *peer;

	while (!atomic_load_explicit(&thread->reactor->stop, memory_order_acquire))
		turn(thread);
	while ((peer = LIST_FIRST(&thread->peers)) != NULL)
		qmt_peer_drop(peer, QMLA_ERR_UNAVAILABLE);
	return NULL;
}
