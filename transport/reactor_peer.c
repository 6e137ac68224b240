/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"
#include "transport/barrier.h"
#include "transport/reactor_thread.h"

#define PROGRESS_BYTES (UINT64_C(64) << 10)
#define CHECK_MIN_NS   (5 * QMC_NS_PER_MS)
#define CHECK_MAX_NS   QMC_NS_PER_S

void qmt_peer_want(struct qmt_peer *peer, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = peer};

	if (peer->interest == events)
		return;
	/* Cannot fail for an fd that is in the set; if it did, the stall check would drop it. */
	(void)epoll_ctl(peer->thread->epoll_fd, EPOLL_CTL_MOD, peer->fd, &event);
	peer->interest = events;
}

int64_t qmt_reactor_check_step(const struct qmt_reactor *reactor)
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
		thread->check_at = now + qmt_reactor_check_step(reactor);
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

void qmt_peer_end(struct qmt_reactor *reactor, struct qmt_peer *peer, qmla_status_t status)
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

void qmt_peer_drop(struct qmt_peer *peer, qmla_status_t status)
{
	struct qmt_reactor *reactor = peer->thread->reactor;

	qmt_peer_idle(peer);
	LIST_REMOVE(peer, link);
	qmt_peer_end(reactor, peer, status);
}
