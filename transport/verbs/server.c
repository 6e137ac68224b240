/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/server.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/log.h"
#include "transport/verbs/rails.h"

#define MAX_PEERS_DEFAULT 1024
#define IDLE_DEFAULT      (10 * QMC_NS_PER_S)
#define GOODBYE_NS        (50 * QMC_NS_PER_MS)
#define REOPEN_FIRST      QMC_NS_PER_S
#define REOPEN_MAX        (60 * QMC_NS_PER_S)

LIST_HEAD(peer_list, qmt_verbs_peer);

/*
 * The lock guards the lists, the number of peers and the rails. The thread alone
 * takes peers out, so that it may look at them without the lock; it holds none while
 * it calls the owner.
 */
struct verbs_server {
	const struct qmt_verbs_api *api;
	struct qmt_identity identity;
	struct qmt_server_address address;
	char *spec;
	struct qmt_place place; /* of the first region: what ports are ranked by */
	char pci[16];
	uint32_t max_peers;
	struct qmt_verbs_peer_context context;
	pthread_t thread;
	bool running;
	atomic_bool stop;

	pthread_mutex_t lock;
	struct qmt_rails rails;
	struct qmt_region_list regions;
	struct peer_list peers;
	uint32_t peer_count;

	/* The thread's. */
	qmc_time_t reopen_at;
	int64_t reopen_pause;
};

static struct verbs_server *server_of(struct qmt_server *server)
{
	return (struct verbs_server *)server;
}

/* For const functions: the lock and what it guards are not part of what they promise. */
static struct verbs_server *server_of_const(const struct qmt_server *server)
{
	return (struct verbs_server *)(uintptr_t)server;
}

static void wake(struct verbs_server *server)
{
	(void)eventfd_write(server->context.wake_fd, 1);
}

/* ---- peers, on the thread ---- */

static struct qmt_verbs_peer *first_peer(struct verbs_server *server)
{
	struct qmt_verbs_peer *peer;

	pthread_mutex_lock(&server->lock);
	peer = LIST_FIRST(&server->peers);
	pthread_mutex_unlock(&server->lock);
	return peer;
}

static void end_peer(struct verbs_server *server, struct qmt_verbs_peer *peer)
{
	pthread_mutex_lock(&server->lock);
	LIST_REMOVE(peer, link);
	server->peer_count--;
	pthread_mutex_unlock(&server->lock);
	qmt_verbs_peer_end(peer);
}

static void end_all(struct verbs_server *server)
{
	struct qmt_verbs_peer *peer;

	while ((peer = first_peer(server)) != NULL)
		end_peer(server, peer);
}

static void serve_channel(struct verbs_server *server, struct ibv_comp_channel *channel)
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
static qmc_time_t tend_peers(struct verbs_server *server)
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

static void close_rails(struct verbs_server *server)
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

static void link_rails(struct verbs_server *server)
{
	server->context.ports = server->rails.ports;
	server->context.port_count = server->rails.count;
	server->context.channels = server->rails.channels;
	server->context.monitor = server->rails.monitor;
}

static qmla_status_t reopen_locked(struct verbs_server *server)
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
		link_rails(server);
		return QMLA_OK;
	}
	for (region = SLIST_FIRST(&server->regions); region; region = SLIST_NEXT(region, link)) {
		qmt_rails_unregister(&server->rails, region);
	}
	qmt_rails_close(&server->rails);
	return status;
}

/* Takes dead devices down and opens them again, at growing intervals. */
static void tend_rails(struct verbs_server *server, qmc_time_t *next)
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

static void say_goodbye(struct verbs_server *server)
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

static void *run(void *argument)
{
	struct verbs_server *server = argument;
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

/* ---- life ---- */

static void set_context(struct verbs_server *server, const struct qmt_server_config *config)
{
	server->context.api = server->api;
	server->context.identity = server->identity;
	server->context.idle_timeout_ns =
		config->idle_timeout_ns > 0 ? config->idle_timeout_ns : IDLE_DEFAULT;
	server->max_peers = config->max_peers ? config->max_peers : MAX_PEERS_DEFAULT;
}

static void announce(const struct verbs_server *server)
{
	for (size_t i = 0; i < server->rails.count; i++) {
		const struct qmt_port *port = &server->rails.ports[i];
		char text[QMT_DEVICE_NAME_MAX];

		qmt_port_text(&port->state, text);
		qmc_info("verbs", "serving through %s port %u, gid %u (%s), mtu %d", port->name,
			 port->number, port->state.gid_index, text, 128 << port->state.mtu);
	}
}

/* Which ports are near is known with the first region; here, whether there are any. */
static qmla_status_t check_ports(const struct verbs_server *server)
{
	const struct qmt_place anywhere = {.numa_node = QMT_NUMA_UNKNOWN};
	struct qmt_port ports[QMT_RAILS_MAX];
	size_t count = 0;
	qmla_status_t status = qmt_ports_open(server->api, server->spec, &anywhere, ports, &count);

	if (status == QMLA_OK)
		qmt_ports_close(ports, count);
	return status;
}

static qmla_status_t fill(struct verbs_server *server, const struct qmt_server_config *config)
{
	qmla_status_t status;

	server->spec = config->devices ? strdup(config->devices) : NULL;
	if (config->devices && !server->spec)
		return QMLA_ERR_NO_MEMORY;
	status = check_ports(server);
	if (status == QMLA_OK)
		status = qmt_identity_create(QMT_KIND_VERBS, &server->identity);
	if (status == QMLA_OK)
		status = qmt_address_encode(&server->identity, "verbs", &server->address);
	if (status == QMLA_OK)
		status = qmt_gate_create(&config->callbacks, &server->context.gate);
	if (status != QMLA_OK)
		return status;
	set_context(server, config);
	server->context.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return server->context.wake_fd < 0 ? QMLA_ERR_RESOURCE_EXHAUSTED : QMLA_OK;
}

qmla_status_t qmt_verbs_server_create(const struct qmt_server_config *config,
				      struct qmt_server **out)
{
	const struct qmt_verbs_api *api = qmt_verbs_api();
	struct verbs_server *server;
	qmla_status_t status;

	if (!api)
		return QMLA_ERR_UNSUPPORTED;
	server = calloc(1, sizeof(*server));
	if (!server)
		return QMLA_ERR_NO_MEMORY;
	server->api = api;
	server->context.wake_fd = -1;
	pthread_mutex_init(&server->lock, NULL);
	SLIST_INIT(&server->regions);
	LIST_INIT(&server->peers);
	status = fill(server, config);
	if (status != QMLA_OK) {
		qmt_verbs_server_destroy((struct qmt_server *)server);
		return status;
	}
	*out = (struct qmt_server *)server;
	return QMLA_OK;
}

void qmt_verbs_server_destroy(struct qmt_server *base)
{
	struct verbs_server *server = server_of(base);
	struct qmt_verbs_region *region;

	if (!server)
		return;
	if (server->running) {
		atomic_store_explicit(&server->stop, true, memory_order_relaxed);
		wake(server);
		pthread_join(server->thread, NULL);
	}
	while ((region = SLIST_FIRST(&server->regions)) != NULL) {
		SLIST_REMOVE_HEAD(&server->regions, link);
		qmt_rails_unregister(&server->rails, region);
		free(region);
	}
	qmt_rails_close(&server->rails);
	if (server->context.wake_fd >= 0)
		close(server->context.wake_fd);
	qmt_gate_destroy(server->context.gate);
	pthread_mutex_destroy(&server->lock);
	free(server->spec);
	free(server);
}

qmla_status_t qmt_verbs_server_address(const struct qmt_server *server,
				       struct qmt_server_address *address)
{
	*address = server_of_const(server)->address;
	return QMLA_OK;
}

/* ---- regions ---- */

static struct qmt_verbs_region *find_region_locked(struct verbs_server *server, uint64_t number)
{
	struct qmt_verbs_region *region;

	for (region = SLIST_FIRST(&server->regions); region; region = SLIST_NEXT(region, link)) {
		if (region->number == number)
			return region;
	}
	return NULL;
}

/* The first region decides which ports are near; then the serving begins. */
static qmla_status_t start_locked(struct verbs_server *server, const struct qmt_memory *memory)
{
	const struct qmt_gpu_api *gpu = qmt_gpu_api();
	qmla_status_t status;

	if (server->running)
		return server->rails.count > 0 ? QMLA_OK : QMLA_ERR_UNAVAILABLE;
	server->place = (struct qmt_place){.numa_node = QMT_NUMA_UNKNOWN};
	if (gpu && gpu->owns(memory->base, server->pci))
		server->place.pci_device = server->pci;
	else
		server->place.numa_node = qmt_memory_numa_node(memory->base);
	status = qmt_rails_open(server->api, server->spec, &server->place, &server->rails);
	if (status != QMLA_OK)
		return status;
	link_rails(server);
	if (pthread_create(&server->thread, NULL, run, server) != 0) {
		qmt_rails_close(&server->rails);
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	}
	server->running = true;
	announce(server);
	return QMLA_OK;
}

qmla_status_t qmt_verbs_server_register(struct qmt_server *base, const struct qmt_memory *memory,
					uint64_t number, struct qmt_handle *handle)
{
	struct verbs_server *server = server_of(base);
	struct qmt_verbs_region *region = calloc(1, sizeof(*region));
	qmla_status_t status;

	if (!region)
		return QMLA_ERR_NO_MEMORY;
	region->number = number;
	region->memory = *memory;
	status = qmt_gate_register(server->context.gate, memory, number);
	if (status != QMLA_OK)
		goto err_free;
	pthread_mutex_lock(&server->lock);
	status = start_locked(server, memory);
	if (status == QMLA_OK)
		status = qmt_rails_register(&server->rails, region);
	if (status == QMLA_OK)
		SLIST_INSERT_HEAD(&server->regions, region, link);
	pthread_mutex_unlock(&server->lock);
	if (status != QMLA_OK)
		goto err_free;
	qmt_handle_encode(&server->identity, number, memory->bytes, handle);
	return QMLA_OK;

err_free:
	free(region);
	return status;
}

qmla_status_t qmt_verbs_server_fence(struct qmt_server *server,
				     const uint8_t capability[QMT_CAPABILITY_BYTES])
{
	qmt_gate_fence(server_of(server)->context.gate, capability);
	return QMLA_OK;
}

void qmt_verbs_server_revoke(struct qmt_server *base, uint64_t number)
{
	struct verbs_server *server = server_of(base);
	struct qmt_verbs_peer *peer;

	pthread_mutex_lock(&server->lock);
	for (peer = LIST_FIRST(&server->peers); peer; peer = LIST_NEXT(peer, link)) {
		if (peer->region->number == number)
			qmt_verbs_peer_cut(peer);
	}
	pthread_mutex_unlock(&server->lock);
	wake(server);
}

/* ---- what it says of itself ---- */

void qmt_verbs_server_stats(const struct qmt_server *base, struct qmt_server_stats *stats)
{
	struct verbs_server *server = server_of_const(base);

	qmt_gate_stats(server->context.gate, stats);
	/* Relaxed: figures. */
	stats->reads += atomic_load_explicit(&server->context.reads, memory_order_relaxed);
	stats->bytes_read +=
		atomic_load_explicit(&server->context.bytes_read, memory_order_relaxed);
	pthread_mutex_lock(&server->lock);
	stats->peers = server->peer_count;
	pthread_mutex_unlock(&server->lock);
}

void qmt_verbs_server_describe(const struct qmt_server *base, char text[QMT_DESCRIPTION_MAX])
{
	struct verbs_server *server = server_of_const(base);
	const struct qmt_verbs_region *region;
	size_t used;

	pthread_mutex_lock(&server->lock);
	used = (size_t)snprintf(text, QMT_DESCRIPTION_MAX, "verbs:%s",
				server->rails.count ? "" : " no device at the moment");
	for (size_t i = 0; i < server->rails.count && used < 384; i++) {
		const struct qmt_port *port = &server->rails.ports[i];
		struct qmt_port_state state = port->state;
		bool up = qmt_port_query(port, &state) == QMLA_OK;
		char address[QMT_DEVICE_NAME_MAX];

		qmt_port_text(&state, address);
		used += (size_t)snprintf(text + used, QMT_DESCRIPTION_MAX - used,
					 "%s %s port %u gid %u (%s)%s", i ? "," : "", port->name,
					 port->number, state.gid_index, address, up ? "" : " DOWN");
	}
	region = SLIST_FIRST(&server->regions);
	if (region && server->rails.count > 0)
		snprintf(text + used, QMT_DESCRIPTION_MAX - used, "; %s; writes %s",
			 qmt_memory_kind_text(region->rails[0].registration.kind),
			 region->write_mode == QMT_WRITE_WINDOW ? "by window" : "fetched");
	pthread_mutex_unlock(&server->lock);
}

/* ---- answers ---- */

static qmla_status_t judge_offer(const struct verbs_server *server,
				 const struct qmt_verbs_offer *offer)
{
	if (offer->server.incarnation != server->identity.incarnation)
		return QMLA_ERR_PEER_RESTARTED;
	return qmc_equal_constant_time(offer->server.cookie, server->identity.cookie,
				       QMT_COOKIE_BYTES)
		       ? QMLA_OK
		       : QMLA_ERR_PERMISSION;
}

static struct qmt_verbs_peer *find_peer_locked(struct verbs_server *server,
					       const uint8_t *connection)
{
	struct qmt_verbs_peer *peer;

	for (peer = LIST_FIRST(&server->peers); peer; peer = LIST_NEXT(peer, link)) {
		if (memcmp(peer->connection, connection, QMT_CONNECTION_BYTES) == 0)
			return peer;
	}
	return NULL;
}

static qmla_status_t answer_locked(struct verbs_server *server, uint64_t number,
				   const struct qmt_verbs_offer *offer, struct qmt_offer *answer)
{
	struct qmt_verbs_region *region = find_region_locked(server, number);
	struct qmt_verbs_peer *peer = find_peer_locked(server, offer->connection);
	qmla_status_t status;

	if (!region)
		return QMLA_ERR_NOT_FOUND;
	if (peer && peer->region != region)
		return QMLA_ERR_PERMISSION;
	if (!peer) {
		if (server->rails.count == 0)
			return QMLA_ERR_UNAVAILABLE;
		if (server->peer_count >= server->max_peers) {
			qmc_warn_limited("verbs", "%u connections: no more are taken (--max-peers)",
					 server->peer_count);
			return QMLA_ERR_RESOURCE_EXHAUSTED;
		}
		status = qmt_verbs_peer_create(&server->context, region, offer, &peer);
		if (status != QMLA_OK)
			return status;
		LIST_INSERT_HEAD(&server->peers, peer, link);
		server->peer_count++;
	}
	*answer = peer->answer;
	return QMLA_OK;
}

qmla_status_t qmt_verbs_server_answer(struct qmt_server *base, uint64_t region,
				      const struct qmt_offer *blob, struct qmt_offer *answer)
{
	struct verbs_server *server = server_of(base);
	struct qmt_verbs_offer offer;
	qmla_status_t status = qmt_verbs_offer_decode(blob, &offer);

	if (status == QMLA_OK)
		status = judge_offer(server, &offer);
	if (status != QMLA_OK)
		return status;
	pthread_mutex_lock(&server->lock);
	status = answer_locked(server, region, &offer, answer);
	pthread_mutex_unlock(&server->lock);
	if (status == QMLA_OK)
		wake(server); /* its times count from now */
	return status;
}
