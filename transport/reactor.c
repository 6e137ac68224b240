/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/reactor.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/log.h"
#include "common/status.h"
#include "transport/barrier.h"

#define EVENTS_A_TURN   64
#define THREADS_DEFAULT 4
#define THREADS_MAX     256
#define PEERS_DEFAULT   1024
#define PENDING_MAX     128 /* connections that have not shaken hands yet */
#define IDLE_DEFAULT_NS (10 * QMC_NS_PER_S)
#define PROGRESS_BYTES  (UINT64_C(64) << 10)
#define ACCEPT_PAUSE_NS (100 * QMC_NS_PER_MS)
#define CHECK_MIN_NS    (5 * QMC_NS_PER_MS)
#define CHECK_MAX_NS    QMC_NS_PER_S

LIST_HEAD(peer_list, qmt_peer);

struct qmt_reactor_thread {
	struct qmt_reactor *reactor;
	pthread_t thread;
	bool started;
	int epoll_fd, wake_fd;
	struct peer_list peers; /* the thread's own */
	uint32_t busy;          /* of them, those with a stall deadline */
	qmc_time_t check_at;    /* next look at stall deadlines while busy > 0 */
	qmc_time_t accept_at;   /* QMC_TIME_NEVER unless accepting pauses */
	pthread_mutex_t lock;   /* of arrivals */
	struct peer_list arrivals;
};

struct qmt_reactor {
	struct qmt_reactor_config config;
	/* Counters and the stop flag: relaxed, or ordered by the eventfd write that follows. */
	atomic_uint pending, admitted;
	atomic_bool stop;
	uint32_t next; /* accepting thread's: whose turn it is to get a peer */
	uint32_t count;
	struct qmt_reactor_thread threads[];
};

/* ---- what a back end calls ---- */

void qmt_peer_want(struct qmt_peer *peer, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = peer};

	if (peer->interest == events)
		return;
	/* Cannot fail for an fd that is in the set; if it did, the stall check would drop it. */
	(void)epoll_ctl(peer->thread->epoll_fd, EPOLL_CTL_MOD, peer->fd, &event);
	peer->interest = events;
}

static int64_t check_step(const struct qmt_reactor *reactor)
{
	int64_t step = reactor->config.idle_timeout_ns / 8;

	if (step < CHECK_MIN_NS)
		return CHECK_MIN_NS;
	return step < CHECK_MAX_NS ? step : CHECK_MAX_NS;
}

void qmt_peer_busy(struct qmt_peer *peer)
{
	struct qmt_reactor_thread *thread = peer->thread;
	const struct qmt_reactor *reactor = thread->reactor;
	qmc_time_t now;

	if (peer->stalls_at != QMC_TIME_NEVER && (!peer->admitted || peer->moved < PROGRESS_BYTES))
		return;
	now = qmc_clock_now();
	if (peer->stalls_at == QMC_TIME_NEVER && thread->busy++ == 0)
		thread->check_at = now + check_step(reactor);
	peer->stalls_at = now + reactor->config.idle_timeout_ns;
	peer->moved = 0;
}

void qmt_peer_progress(struct qmt_peer *peer, uint64_t bytes)
{
	peer->moved += bytes;
}

void qmt_peer_completed(struct qmt_peer *peer)
{
	peer->moved = PROGRESS_BYTES;
}

void qmt_peer_idle(struct qmt_peer *peer)
{
	if (peer->stalls_at == QMC_TIME_NEVER)
		return;
	peer->stalls_at = QMC_TIME_NEVER;
	peer->thread->busy--;
}

bool qmt_peer_admit(struct qmt_peer *peer)
{
	struct qmt_reactor *reactor = peer->thread->reactor;
	unsigned before = atomic_fetch_add_explicit(&reactor->admitted, 1, memory_order_relaxed);

	if (before >= reactor->config.max_peers) {
		atomic_fetch_sub_explicit(&reactor->admitted, 1, memory_order_relaxed);
		qmc_warn_limited(reactor->config.ops->component,
				 "peer %s refused: %u peers are connected already (max_peers)",
				 peer->name, before);
		return false;
	}
	atomic_fetch_sub_explicit(&reactor->pending, 1, memory_order_relaxed);
	peer->admitted = true;
	return true;
}

uint64_t qmt_reactor_peers(const struct qmt_reactor *reactor)
{
	return atomic_load_explicit(&reactor->admitted, memory_order_relaxed);
}

/* ---- peers of a thread ---- */

/* Frees a peer that is in no list. */
static void peer_end(struct qmt_reactor *reactor, struct qmt_peer *peer, qmla_status_t status)
{
	atomic_uint *counter = peer->admitted ? &reactor->admitted : &reactor->pending;
	int fd = peer->fd;

	/* Before any access ends: a peer that looks at the socket afterwards sees it closed. */
	shutdown(fd, SHUT_RDWR);
	qmt_barrier();
	reactor->config.ops->close(peer, status);
	close(fd);
	atomic_fetch_sub_explicit(counter, 1, memory_order_relaxed);
}

static void peer_drop(struct qmt_peer *peer, qmla_status_t status)
{
	struct qmt_reactor *reactor = peer->thread->reactor;

	qmt_peer_idle(peer);
	LIST_REMOVE(peer, link);
	peer_end(reactor, peer, status);
}

static void adopt(struct qmt_reactor_thread *thread, struct qmt_peer *peer)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};

	LIST_INSERT_HEAD(&thread->peers, peer, link);
	peer->interest = EPOLLIN;
	qmt_peer_busy(peer);
	if (epoll_ctl(thread->epoll_fd, EPOLL_CTL_ADD, peer->fd, &event) < 0) {
		qmc_warn_limited(thread->reactor->config.ops->component,
				 "peer %s cannot be watched: %s", peer->name, strerror(errno));
		peer_drop(peer, QMLA_ERR_RESOURCE_EXHAUSTED);
	}
}

static void adopt_arrivals(struct qmt_reactor_thread *thread)
{
	struct peer_list arrivals;
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
			peer_drop(peer, QMLA_ERR_PERMISSION);
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
		peer_drop(peer, QMLA_ERR_DEADLINE);
	}
	thread->check_at = now + check_step(thread->reactor);
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
			peer_drop(target, QMLA_ERR_UNAVAILABLE);
	}
	/* After the events, of which none may name a peer that is gone. */
	if (woken)
		on_wake(thread);
	drop_stalled(thread);
	if (thread->accept_at != QMC_TIME_NEVER && qmc_clock_left(thread->accept_at) == 0)
		listener_watch(thread, EPOLLIN);
}

static void *thread_main(void *argument)
{
	struct qmt_reactor_thread *thread = argument;
	struct qmt_peer *peer;

	while (!atomic_load_explicit(&thread->reactor->stop, memory_order_acquire))
		turn(thread);
	while ((peer = LIST_FIRST(&thread->peers)) != NULL)
		peer_drop(peer, QMLA_ERR_UNAVAILABLE);
	return NULL;
}

/* ---- life ---- */

static qmla_status_t watch(int epoll_fd, int fd, void *target)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = target};

	return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? qmc_status_from_errno(errno)
								  : QMLA_OK;
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
	if (pthread_create(&thread->thread, NULL, thread_main, thread))
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
			peer_end(reactor, peer, QMLA_ERR_UNAVAILABLE);
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
