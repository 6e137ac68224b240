/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/server.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/log.h"
#include "transport/verbs/server_internal.h"

#define MAX_PEERS_DEFAULT 1024
#define IDLE_DEFAULT      (10 * QMC_NS_PER_S)

/* ---- life ---- */

static void set_context(struct qmt_verbs_server *server, const struct qmt_server_config *config)
{
	server->context.api = server->api;
	server->context.identity = server->identity;
	server->context.idle_timeout_ns =
		config->idle_timeout_ns > 0 ? config->idle_timeout_ns : IDLE_DEFAULT;
	server->max_peers = config->max_peers ? config->max_peers : MAX_PEERS_DEFAULT;
}

static void announce(const struct qmt_verbs_server *server)
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
static qmla_status_t check_ports(const struct qmt_verbs_server *server)
{
	const struct qmt_place anywhere = {.numa_node = QMT_NUMA_UNKNOWN};
	struct qmt_port ports[QMT_RAILS_MAX];
	size_t count = 0;
	qmla_status_t status = qmt_ports_open(server->api, server->spec, &anywhere, ports, &count);

	if (status == QMLA_OK)
		qmt_ports_close(ports, count);
	return status;
}

static qmla_status_t fill(struct qmt_verbs_server *server, const struct qmt_server_config *config)
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
	struct qmt_verbs_server *server;
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
	struct qmt_verbs_server *server = qmt_verbs_server_of(base);
	struct qmt_verbs_region *region;

	if (!server)
		return;
	if (server->running) {
		atomic_store_explicit(&server->stop, true, memory_order_relaxed);
		qmt_verbs_server_wake(server);
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
	*address = qmt_verbs_server_of_const(server)->address;
	return QMLA_OK;
}

/* ---- regions ---- */

/* The first region decides which ports are near; then the serving begins. */
static qmla_status_t start_locked(struct qmt_verbs_server *server, const struct qmt_memory *memory)
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
	qmt_verbs_server_link(server);
	if (pthread_create(&server->thread, NULL, qmt_verbs_server_run, server) != 0) {
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
	struct qmt_verbs_server *server = qmt_verbs_server_of(base);
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
	qmt_gate_fence(qmt_verbs_server_of(server)->context.gate, capability);
	return QMLA_OK;
}

void qmt_verbs_server_revoke(struct qmt_server *base, uint64_t number)
{
	struct qmt_verbs_server *server = qmt_verbs_server_of(base);
	struct qmt_verbs_peer *peer;

	pthread_mutex_lock(&server->lock);
	for (peer = LIST_FIRST(&server->peers); peer; peer = LIST_NEXT(peer, link)) {
		if (peer->region->number == number)
			qmt_verbs_peer_cut(peer);
	}
	pthread_mutex_unlock(&server->lock);
	qmt_verbs_server_wake(server);
}
