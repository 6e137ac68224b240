/* SPDX-License-Identifier: Apache-2.0 */
/* A verbs server's thread: its peers, and devices that die. */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>

#include "common/log.h"
#include "transport/verbs/server_internal.h"

#define GOODBYE_NS   (50 * QMC_NS_PER_MS)
#define REOPEN_FIRST QMC_NS_PER_S
#define REOPEN_MAX   (60 * QMC_NS_PER_S)

void qmt_verbs_server_wake(struct qmt_verbs_server *server)
{
	(void)eventfd_write(server->context.wake_fd, 1);
}

/* ---- peers, on the thread ---- */

static struct qmt_verbs_peer *first_peer(struct qmt_verbs_server *server)
{
	struct qmt_verbs_peer *peer;

	pthread_mutex_lock(&server->lock);
	peer = LIST_FIRST(&server->peers);
	pthread_mutex_unlock(&server->lock);
	return peer;
}

static void end_peer(struct qmt_verbs_server *server, struct qmt_verbs_peer *peer)
{
	pthread_mutex_lock(&server->lock);
	LIST_REMOVE(peer, link);
	server->peer_count--;
	pthread_mutex_unlock(&server->lock);
	qmt_verbs_peer_end(peer);
}

static void end_all(struct qmt_verbs_server *server)
{
	struct qmt_verbs_peer *peer;

	while ((peer = first_peer(server)) != NULL)
		end_peer(server, peer);
}

static void serve_channel(struct qmt_verbs_server *server, struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *user;

	while (server->api->get_cq_event(channel, &cq, &user) == 0) {
		struct qmt_verbs_peer_rail *rail = user;

		rail->qp.events++;
		if (!rail->peer->gone)
			qmt_verbs_peer_serve(rail);
	}
}

/* Goes round; returns when to do so again. */
static qmc_time_t tend_peers(struct qmt_verbs_server *server)
{
	qmc_time_t now = qmc_clock_now(), next = QMC_TIME_NEVER;
	struct qmt_verbs_peer *peer = first_peer(server), *after;

	for (; peer; peer = after) {
		qmc_time_t at;

		after = LIST_NEXT(peer, link);
		for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
			if (peer->rails[i].again && !peer->gone)
				qmt_verbs_peer_serve(&peer->rails[i]);
		}
		at = peer->gone ? now : qmt_verbs_peer_tend(peer, now);
		if (peer->gone) {
			end_peer(server, peer);
			continue;
		}
		for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
			if (peer->rails[i].again)
				at = now;
		}
		if (at < next)
			next = at;
	}
	return next;
}

/* ---- a device that died ---- */

static void close_rails(struct qmt_verbs_server *server)
{
	struct qmt_verbs_region *region;

	pthread_mutex_lock(&server->lock);
	for (region = SLIST_FIRST(&server->regions); region; region = SLIST_NEXT(region, link)) {
		qmt_rails_unregister(&server->rails, region);
	}
	qmt_rails_close(&server->rails);
	server->context.port_count = 0;
	pthread_mutex_unlock(&server->lock);
}

void qmt_verbs_server_link(struct qmt_verbs_server *server)
{
	server->context.ports = server->rails.ports;
	server->context.port_count = server->rails.count;
	server->context.channels = server->rails.channels;
	server->context.monitor = server->rails.monitor;
}

static qmla_status_t reopen_locked(struct qmt_verbs_server *server)
{
	struct qmt_verbs_region *region;
	qmla_status_t status =
		qmt_rails_open(server->api, server->spec, &server->place, &server->rails);

	if (status != QMLA_OK)
		return status;
	for (region = SLIST_FIRST(&server->regions); region; region = SLIST_NEXT(region, link)) {
		if (status == QMLA_OK)
			status = qmt_rails_register(&server->rails, region);
	}
	if (status == QMLA_OK) {
		qmt_verbs_server_link(server);
		return QMLA_OK;
	}
	for (region = SLIST_FIRST(&server->regions); region; region = SLIST_NEXT(region, link)) {
		qmt_rails_unregister(&server->rails, region);
	}
	qmt_rails_close(&server->rails);
	return status;
}

/* Takes dead devices down and opens them again, at growing intervals. */
static void tend_rails(struct qmt_verbs_server *server, qmc_time_t *next)
{
	qmc_time_t now = qmc_clock_now();
	qmla_status_t status;

	if (server->rails.count > 0 && qmt_monitor_is_fatal(server->rails.monitor)) {
		end_all(server);
		close_rails(server);
		server->reopen_pause = REOPEN_FIRST;
		server->reopen_at = now;
	}
	if (server->rails.count > 0)
		return;
	if (now >= server->reopen_at) {
		pthread_mutex_lock(&server->lock);
		status = reopen_locked(server);
		pthread_mutex_unlock(&server->lock);
		if (status == QMLA_OK) {
			qmc_info("verbs", "the RDMA devices are open again");
			return;
		}
		server->reopen_at = now + server->reopen_pause;
		server->reopen_pause = server->reopen_pause * 2 < REOPEN_MAX
					       ? server->reopen_pause * 2
					       : REOPEN_MAX;
	}
	if (server->reopen_at < *next)
		*next = server->reopen_at;
}

/* ---- the thread ---- */

static void say_goodbye(struct qmt_verbs_server *server)
{
	qmc_time_t deadline = qmc_clock_after(GOODBYE_NS);
	struct qmt_verbs_peer *peer;
	bool waiting;

	for (peer = first_peer(server); peer; peer = LIST_NEXT(peer, link))
		qmt_verbs_peer_leave(peer);
	do {
		waiting = false;
		for (peer = first_peer(server); peer; peer = LIST_NEXT(peer, link)) {
			for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
				struct qmt_verbs_peer_rail *rail = &peer->rails[i];

				if (!rail->used || peer->gone)
					continue;
				qmt_verbs_peer_serve(rail);
				waiting = waiting || rail->mail.done < rail->mail.sent;
			}
		}
		if (waiting)
			qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_MS));
	} while (waiting && qmc_clock_now() < deadline);
}

void *qmt_verbs_server_run(void *argument)
{
	struct qmt_verbs_server *server = argument;
	qmc_time_t next = QMC_TIME_NEVER;

	/* Relaxed: the wake-up that follows the store orders it. */
	while (!atomic_load_explicit(&server->stop, memory_order_relaxed)) {
		struct pollfd fds[QMT_RAILS_MAX + 1];
		size_t count = server->rails.count;
		eventfd_t ignored;

		for (size_t i = 0; i < count; i++)
			fds[i] = (struct pollfd){server->rails.channels[i]->fd, POLLIN, 0};
		fds[count] = (struct pollfd){server->context.wake_fd, POLLIN, 0};
		if (poll(fds, count + 1, qmc_clock_left_ms(next)) < 0 && errno != EINTR)
			qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_MS));
		if (fds[count].revents & POLLIN)
			(void)eventfd_read(server->context.wake_fd, &ignored);
		for (size_t i = 0; i < count; i++) {
			if (fds[i].revents & POLLIN)
				serve_channel(server, server->rails.channels[i]);
		}
		next = tend_peers(server);
		tend_rails(server, &next);
	}
	say_goodbye(server);
	end_all(server);
	return NULL;
}
