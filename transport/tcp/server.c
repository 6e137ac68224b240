/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/server.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/address.h"
#include "common/log.h"
#include "transport/tcp/peer.h"

struct tcp_server {
	struct qmt_tcp_context context;
	struct qmt_server_address address;
	struct qmt_reactor *reactor;
};

static struct tcp_server *server_of(struct qmt_server *server)
{
	return (struct tcp_server *)server;
}

static const struct tcp_server *server_of_const(const struct qmt_server *server)
{
	return (const struct tcp_server *)server;
}

/* The address that peers shall use: the advertised host, or the bound one. */
static qmla_status_t advertise(struct tcp_server *server, const struct qmt_server_config *config,
			       int fd, uint16_t port)
{
	struct qmc_address address = {.port = port};
	char text[QMC_ADDRESS_TEXT_MAX];
	struct sockaddr_storage sa;
	socklen_t length = sizeof(sa);

	if (config->advertise && config->advertise[0]) {
		size_t n = strlen(config->advertise);

		if (n >= QMC_HOST_MAX) {
			qmc_error("tcp", "advertised host is longer than %d characters",
				  QMC_HOST_MAX - 1);
			return QMLA_ERR_INVALID_ARGUMENT;
		}
		memcpy(address.host, config->advertise, n + 1);
		qmc_address_format(&address, text);
	} else {
		if (getsockname(fd, (struct sockaddr *)&sa, &length) < 0)
			return QMLA_ERR_INTERNAL;
		qmc_sockaddr_format((struct sockaddr *)&sa, length, text);
		if (strncmp(text, "[::]:", 5) == 0 || strncmp(text, "0.0.0.0:", 8) == 0)
			qmc_warn("tcp",
				 "%s is every interface: peers of other hosts need an "
				 "advertised host",
				 text);
	}
	return qmt_address_encode(&server->context.identity, text, &server->address);
}

static qmla_status_t listen_at(const char *listen_text, int *fd, uint16_t *port)
{
	struct qmc_address address;
	qmla_status_t status = qmc_address_parse(listen_text, &address);

	if (status != QMLA_OK) {
		qmc_error("tcp", "listen address \"%s\" is not host:port or [v6]:port",
			  listen_text);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	status = qmc_tcp_listen(&address, fd, port);
	if (status != QMLA_OK)
		qmc_error("tcp", "cannot listen at %s: %s", listen_text, qmla_status_text(status));
	return status;
}

static qmla_status_t start(struct tcp_server *server, const struct qmt_server_config *config)
{
	struct qmt_reactor_config reactor = {
		.ops = &qmt_tcp_peer_ops,
		.user = &server->context,
		.threads = config->threads,
		.max_peers = config->max_peers,
		.idle_timeout_ns = config->idle_timeout_ns,
	};
	uint16_t port;
	qmla_status_t status = listen_at(config->listen, &reactor.listen_fd, &port);

	if (status != QMLA_OK)
		return status;
	status = advertise(server, config, reactor.listen_fd, port);
	if (status == QMLA_OK)
		status = qmt_reactor_create(&reactor, &server->reactor);
	if (status != QMLA_OK)
		close(reactor.listen_fd);
	return status;
}

qmla_status_t qmt_tcp_server_create(const struct qmt_server_config *config, struct qmt_server **out)
{
	struct tcp_server *server = calloc(1, sizeof(*server));
	qmla_status_t status;

	if (!server)
		return QMLA_ERR_NO_MEMORY;
	status = qmt_identity_create(QMT_KIND_TCP, &server->context.identity);
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
	free(server);
	return status;
}

void qmt_tcp_server_destroy(struct qmt_server *base)
{
	struct tcp_server *server = server_of(base);

	if (!server)
		return;
	qmt_reactor_destroy(server->reactor);
	qmt_gate_destroy(server->context.gate);
	free(server);
}

qmla_status_t qmt_tcp_server_address(const struct qmt_server *server,
				     struct qmt_server_address *address)
{
	*address = server_of_const(server)->address;
	return QMLA_OK;
}

qmla_status_t qmt_tcp_server_register(struct qmt_server *base, const struct qmt_memory *memory,
				      uint64_t region, struct qmt_handle *handle)
{
	struct tcp_server *server = server_of(base);
	qmla_status_t status = qmt_gate_register(server->context.gate, memory, region);

	if (status == QMLA_OK)
		qmt_handle_encode(&server->context.identity, region, memory->bytes, handle);
	return status;
}

qmla_status_t qmt_tcp_server_fence(struct qmt_server *server,
				   const uint8_t capability[QMT_CAPABILITY_BYTES])
{
	qmt_gate_fence(server_of(server)->context.gate, capability);
	return QMLA_OK;
}

void qmt_tcp_server_stats(const struct qmt_server *base, struct qmt_server_stats *stats)
{
	const struct tcp_server *server = server_of_const(base);

	stats->peers = qmt_reactor_peers(server->reactor);
	qmt_gate_stats(server->context.gate, stats);
}
