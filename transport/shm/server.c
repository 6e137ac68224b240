/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/server.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <unistd.h>

#include "common/log.h"
#include "transport/shm/memory.h"
#include "transport/shm/peer.h"
#include "transport/shm/socket.h"

/* The read-only descriptor of one region, kept open for peers to come. */
struct shared_fd {
	SLIST_ENTRY(shared_fd) link;
	int fd;
};

SLIST_HEAD(shared_fd_list, shared_fd);

struct shm_server {
	struct qmt_shm_context context;
	struct qmt_server_address address;
	struct qmt_reactor *reactor;
	char path[QMT_ADDRESS_TEXT_MAX];
	pthread_mutex_t lock; /* of shared */
	struct shared_fd_list shared;
};

static struct shm_server *server_of(struct qmt_server *server)
{
	return (struct shm_server *)server;
}

static const struct shm_server *server_of_const(const struct qmt_server *server)
{
	return (const struct shm_server *)server;
}

static qmla_status_t start(struct shm_server *server, const struct qmt_server_config *config)
{
	struct qmt_reactor_config reactor = {
		.ops = &qmt_shm_peer_ops,
		.user = &server->context,
		.threads = config->threads,
		.max_peers = config->max_peers,
		.idle_timeout_ns = config->idle_timeout_ns,
	};
	qmla_status_t status =
		qmt_shm_socket_listen(config->listen, &reactor.listen_fd, server->path);

	if (status != QMLA_OK)
		return status;
	status = qmt_address_encode(&server->context.identity, server->path, &server->address);
	if (status == QMLA_OK)
		status = qmt_reactor_create(&reactor, &server->reactor);
	if (status != QMLA_OK) {
		close(reactor.listen_fd);
		unlink(server->path);
	}
	return status;
}

qmla_status_t qmt_shm_server_create(const struct qmt_server_config *config, struct qmt_server **out)
{
	struct shm_server *server = calloc(1, sizeof(*server));
	qmla_status_t status;

	if (!server)
		return QMLA_ERR_NO_MEMORY;
	pthread_mutex_init(&server->lock, NULL);
	status = qmt_identity_create(QMT_KIND_SHM, &server->context.identity);
	if (status != QMLA_OK)
		goto err_free;
	status = qmt_gate_create(&config->callbacks, &server->context.gate);
	if (status != QMLA_OK)
		goto err_free;
	status = start(server, config);
	if (status != QMLA_OK)
		goto err_gate;
	*out = (struct qmt_server *)server;
	return QMLA_OK;

err_gate:
	qmt_gate_destroy(server->context.gate);
err_free:
	pthread_mutex_destroy(&server->lock);
	free(server);
	return status;
}

void qmt_shm_server_destroy(struct qmt_server *base)
{
	struct shm_server *server = server_of(base);
	struct shared_fd *shared;

	if (!server)
		return;
	unlink(server->path);
	qmt_reactor_destroy(server->reactor);
	qmt_gate_destroy(server->context.gate);
	while ((shared = SLIST_FIRST(&server->shared)) != NULL) {
		SLIST_REMOVE_HEAD(&server->shared, link);
		close(shared->fd);
		free(shared);
	}
	pthread_mutex_destroy(&server->lock);
	free(server);
}

qmla_status_t qmt_shm_server_address(const struct qmt_server *server,
				     struct qmt_server_address *address)
{
	*address = server_of_const(server)->address;
	return QMLA_OK;
}

qmla_status_t qmt_shm_server_register(struct qmt_server *base, const struct qmt_memory *memory,
				      uint64_t region, struct qmt_handle *handle)
{
	struct shm_server *server = server_of(base);
	struct qmt_memory peers_view = *memory;
	struct shared_fd *shared = calloc(1, sizeof(*shared));
	qmla_status_t status;

	if (!shared)
		return QMLA_ERR_NO_MEMORY;
	status = qmt_shm_region_seal(memory, &shared->fd);
	if (status != QMLA_OK)
		goto err_free;
	peers_view.fd = shared->fd;
	status = qmt_gate_register(server->context.gate, &peers_view, region);
	if (status != QMLA_OK)
		goto err_close;
	pthread_mutex_lock(&server->lock);
	SLIST_INSERT_HEAD(&server->shared, shared, link);
	pthread_mutex_unlock(&server->lock);
	qmt_handle_encode(&server->context.identity, region, memory->bytes, handle);
	return QMLA_OK;

err_close:
	close(shared->fd);
err_free:
	free(shared);
	return status;
}

qmla_status_t qmt_shm_server_fence(struct qmt_server *server,
				   const uint8_t capability[QMT_CAPABILITY_BYTES])
{
	qmt_gate_fence(server_of(server)->context.gate, capability);
	return QMLA_OK;
}

void qmt_shm_server_stats(const struct qmt_server *base, struct qmt_server_stats *stats)
{
	const struct shm_server *server = server_of_const(base);

	stats->peers = qmt_reactor_peers(server->reactor);
	qmt_gate_stats(server->context.gate, stats);
}
