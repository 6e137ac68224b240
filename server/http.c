/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/address.h"
#include "common/log.h"
#include "server/metrics.h"
#include "server/service.h"

#define CONNECTIONS   64u
#define IDLE_SECONDS  15u
#define REQUEST_BYTES (8u << 10)

struct qms_http {
	struct MHD_Daemon *daemon;
	struct qms_service *service;
	uint16_t port;
};

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code,
			      const char *content_type, struct MHD_Response *response)
{
	enum MHD_Result result;

	if (!response)
		return MHD_NO; /* out of memory: the connection is closed */
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, content_type);
	MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
	result = MHD_queue_response(connection, code, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned code,
				   const char *text)
{
	return answer(connection, code, "text/plain; charset=utf-8",
		      MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text,
						      MHD_RESPMEM_PERSISTENT));
}

static enum MHD_Result answer_metrics(struct MHD_Connection *connection,
				      struct qms_service *service)
{
	char *text = NULL;
	size_t length = 0;
	FILE *out = open_memstream(&text, &length);

	if (out)
		qms_metrics_print(service, out);
	if (!out || fclose(out) != 0) {
		free(text);
		return answer_text(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
	}
	return answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
		      MHD_create_response_from_buffer(length, text, MHD_RESPMEM_MUST_FREE));
}

static enum MHD_Result handle(void *user, struct MHD_Connection *connection, const char *url,
			      const char *method, const char *version, const char *upload,
			      size_t *upload_size, void **state)
{
	struct qms_service *service = ((struct qms_http *)user)->service;

	(void)version;
	(void)upload;
	(void)state;
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
		*upload_size = 0;
		return answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n");
	}
	if (strcmp(url, "/healthz") == 0)
		return answer_text(connection, MHD_HTTP_OK, "ok\n");
	if (strcmp(url, "/readyz") == 0) {
		if (qms_service_ready(service))
			return answer_text(connection, MHD_HTTP_OK, "ready\n");
		return answer_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
				   qms_service_draining(service) ? "draining\n" : "starting\n");
	}
	if (strcmp(url, "/metrics") == 0)
		return answer_metrics(connection, service);
	return answer_text(connection, MHD_HTTP_NOT_FOUND,
			   "there is /healthz, /readyz and /metrics\n");
}

static qmla_status_t listen_at(const char *listen, int *fd, uint16_t *port)
{
	struct qmc_address address;
	qmla_status_t status = qmc_address_parse(listen, &address);

	if (status != QMLA_OK) {
		qmc_error("http", "--http-listen: \"%s\" is not host:port, [v6]:port or a port",
			  listen);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	status = qmc_tcp_listen(&address, fd, port);
	if (status != QMLA_OK)
		qmc_error("http", "--http-listen: cannot listen at %s: %s", listen,
			  qmla_status_text(status));
	return status;
}

qmla_status_t qms_http_create(const char *listen, struct qms_service *service,
			      struct qms_http **http)
{
	struct qms_http *made = calloc(1, sizeof(*made));
	qmla_status_t status;
	int fd;

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	made->service = service;
	status = listen_at(listen, &fd, &made->port);
	if (status != QMLA_OK)
		goto err_free;
	made->daemon = MHD_start_daemon(
		MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL, handle, made,
		MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS,
		MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		(size_t)REQUEST_BYTES, MHD_OPTION_END);
	if (!made->daemon) {
		qmc_error("http", "cannot start the HTTP server at %s", listen);
		close(fd);
		status = QMLA_ERR_INTERNAL;
		goto err_free;
	}
	*http = made;
	return QMLA_OK;

err_free:
	free(made);
	return status;
}

void qms_http_destroy(struct qms_http *http)
{
	if (!http)
		return;
	MHD_stop_daemon(http->daemon); /* closes the socket too */
	free(http);
}

uint16_t qms_http_port(const struct qms_http *http)
{
	return http->port;
}
