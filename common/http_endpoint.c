/* SPDX-License-Identifier: Apache-2.0 */
#include "common/http_endpoint.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/address.h"
#include "common/log.h"

#define COMPONENT         "http"
#define CONNECTION_LIMIT  64u
#define IDLE_SECONDS      10u
#define CONNECTION_MEMORY ((size_t)16 << 10)

struct qmc_http_endpoint {
	struct qmc_http_endpoint_config config;
	struct MHD_Daemon *daemon;
	uint16_t port;
};

static enum MHD_Result respond(struct MHD_Connection *connection, unsigned code, const char *type,
			       struct MHD_Response *response)
{
	enum MHD_Result rc;

	if (!response)
		return MHD_NO;
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	rc = MHD_queue_response(connection, code, response);
	MHD_destroy_response(response);
	return rc;
}

static enum MHD_Result respond_text(struct MHD_Connection *connection, unsigned code,
				    const char *text)
{
	return respond(connection, code, "text/plain; charset=utf-8",
		       MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text,
						       MHD_RESPMEM_PERSISTENT));
}

static enum MHD_Result respond_metrics(struct qmc_http_endpoint *endpoint,
				       struct MHD_Connection *connection)
{
	char *text = NULL;
	size_t length = 0;
	FILE *out = open_memstream(&text, &length);

	if (!out)
		return respond_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory\n");
	endpoint->config.metrics(endpoint->config.user, out);
	if (fclose(out) != 0) {
		free(text);
		return respond_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory\n");
	}
	return respond(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
		       MHD_create_response_from_buffer(length, text, MHD_RESPMEM_MUST_FREE));
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
				  const char *method, const char *version, const char *upload,
				  size_t *upload_bytes, void **state)
{
	struct qmc_http_endpoint *endpoint = user;

	(void)version;
	(void)upload;
	if (!*state) { /* headers only: the library asks for a second call */
		*state = endpoint;
		return MHD_YES;
	}
	if (*upload_bytes) { /* a body: nobody wants it */
		*upload_bytes = 0;
		return MHD_YES;
	}
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return respond_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "use GET\n");
	if (strcmp(url, "/healthz") == 0)
		return respond_text(connection, MHD_HTTP_OK, "ok\n");
	if (strcmp(url, "/readyz") == 0 && endpoint->config.ready(endpoint->config.user))
		return respond_text(connection, MHD_HTTP_OK, "ready\n");
	if (strcmp(url, "/readyz") == 0)
		return respond_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "not ready\n");
	if (strcmp(url, "/metrics") == 0)
		return respond_metrics(endpoint, connection);
	return respond_text(connection, MHD_HTTP_NOT_FOUND,
			    "there is /healthz, /readyz and /metrics\n");
}

static qmla_status_t bind_listener(const char *listen, int *fd, uint16_t *port)
{
	struct qmc_address address;
	qmla_status_t status = qmc_address_parse(listen, &address);

	if (status != QMLA_OK) {
		qmc_error(COMPONENT, "'%s' is no address to listen on: expected host:port", listen);
		return status;
	}
	status = qmc_tcp_listen(&address, fd, port);
	if (status != QMLA_OK)
		qmc_error(COMPONENT, "cannot listen on %s: %s", listen, qmc_listen_reason(status));
	return status;
}

qmla_status_t qmc_http_endpoint_create(const struct qmc_http_endpoint_config *config,
				       struct qmc_http_endpoint **endpoint)
{
	struct qmc_http_endpoint *e;
	qmla_status_t status;
	int fd;

	e = calloc(1, sizeof(*e));
	if (!e)
		return QMLA_ERR_NO_MEMORY;
	e->config = *config;
	e->config.listen = NULL;
	status = bind_listener(config->listen, &fd, &e->port);
	if (status != QMLA_OK)
		goto err_free;
	e->daemon = MHD_start_daemon(MHD_USE_AUTO_INTERNAL_THREAD, 0, NULL, NULL, on_request, e,
				     MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
				     CONNECTION_LIMIT, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS,
				     MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_MEMORY,
				     MHD_OPTION_END);
	if (!e->daemon) {
		qmc_error(COMPONENT, "cannot start the HTTP endpoint on %s", config->listen);
		status = QMLA_ERR_INTERNAL;
		goto err_close;
	}
	*endpoint = e;
	return QMLA_OK;

err_close:
	close(fd);
err_free:
	free(e);
	return status;
}

uint16_t qmc_http_endpoint_port(const struct qmc_http_endpoint *endpoint)
{
	return endpoint->port;
}

void qmc_http_endpoint_destroy(struct qmc_http_endpoint *endpoint)
{
	if (!endpoint)
		return;
	MHD_stop_daemon(endpoint->daemon);
	free(endpoint);
}
