/* SPDX-License-Identifier: Apache-2.0 */
#include "common/http_endpoint.h"

#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/address.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status.h"

#define COMPONENT         "http"
#define CONNECTION_LIMIT  64u
#define IDLE_SECONDS      10u
#define CONNECTION_MEMORY ((size_t)16 << 10)
#define ACCEPT_BACK_OFF   (100 * QMC_NS_PER_MS)

/*
 * The library's own loop spins when it cannot accept for want of descriptors, so the
 * listener is ours and the library is only handed connections.
 */
struct qmc_http_endpoint {
	struct qmc_http_endpoint_config config;
	struct MHD_Daemon *daemon;
	int listener, wake, events; /* events: the library's epoll descriptor, its own */
	atomic_bool stop;           /* relaxed: wake orders it */
	pthread_t thread;
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

/* False when it ended with an error that trying again at once would meet again. */
static bool accept_all(struct qmc_http_endpoint *endpoint)
{
	for (;;) {
		struct sockaddr_storage peer;
		socklen_t length = sizeof(peer);
		int fd = accept4(endpoint->listener, (struct sockaddr *)&peer, &length,
				 SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) /* over the limit of connections the library closes it */
			(void)MHD_add_connection(endpoint->daemon, fd, (struct sockaddr *)&peer,
						 length);
		else if (errno != EINTR && errno != ECONNABORTED)
			return errno == EAGAIN;
	}
}

/* Until when to sleep: the library's next timeout or the end of @back_off. */
static int sleep_ms(struct qmc_http_endpoint *endpoint, qmc_time_t back_off)
{
	MHD_UNSIGNED_LONG_LONG wait_ms;
	int limit = back_off ? qmc_clock_left_ms(back_off) : -1;

	if (MHD_get_timeout(endpoint->daemon, &wait_ms) != MHD_YES)
		return limit;
	if (limit >= 0 && (MHD_UNSIGNED_LONG_LONG)limit < wait_ms)
		return limit;
	return wait_ms > IDLE_SECONDS * 1000 ? (int)IDLE_SECONDS * 1000 : (int)wait_ms;
}

static void *serve(void *argument)
{
	struct qmc_http_endpoint *endpoint = argument;
	qmc_time_t back_off = 0;

	while (!atomic_load_explicit(&endpoint->stop, memory_order_relaxed)) {
		struct pollfd fds[3] = {
			{.fd = endpoint->wake, .events = POLLIN},
			{.fd = endpoint->events, .events = POLLIN},
			{.fd = back_off ? -1 : endpoint->listener, .events = POLLIN},
		};

		(void)poll(fds, 3, sleep_ms(endpoint, back_off));
		if (back_off && qmc_clock_left(back_off) <= 0)
			back_off = 0;
		if (fds[2].revents && !accept_all(endpoint)) {
			qmc_warn_limited(COMPONENT, "cannot accept a connection: %s",
					 strerror(errno));
			back_off = qmc_clock_after(ACCEPT_BACK_OFF);
		}
		(void)MHD_run(endpoint->daemon);
	}
	return NULL;
}

static qmla_status_t start_daemon(struct qmc_http_endpoint *endpoint)
{
	const union MHD_DaemonInfo *info;

	endpoint->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL,
					    on_request, endpoint, MHD_OPTION_CONNECTION_LIMIT,
					    CONNECTION_LIMIT, MHD_OPTION_CONNECTION_TIMEOUT,
					    IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
					    CONNECTION_MEMORY, MHD_OPTION_END);
	if (!endpoint->daemon)
		return QMLA_ERR_INTERNAL;
	info = MHD_get_daemon_info(endpoint->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	if (!info)
		return QMLA_ERR_INTERNAL;
	endpoint->events = info->epoll_fd;
	endpoint->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return endpoint->wake < 0 ? qmc_status_from_errno(errno) : QMLA_OK;
}

static void release(struct qmc_http_endpoint *endpoint)
{
	if (endpoint->daemon)
		MHD_stop_daemon(endpoint->daemon);
	if (endpoint->wake >= 0)
		close(endpoint->wake);
	if (endpoint->listener >= 0)
		close(endpoint->listener);
	free(endpoint);
}

qmla_status_t qmc_http_endpoint_create(const struct qmc_http_endpoint_config *config,
				       struct qmc_http_endpoint **endpoint)
{
	struct qmc_http_endpoint *e = calloc(1, sizeof(*e));
	qmla_status_t status;

	if (!e)
		return QMLA_ERR_NO_MEMORY;
	e->config = *config;
	e->config.listen = NULL;
	e->listener = e->wake = -1;
	status = bind_listener(config->listen, &e->listener, &e->port);
	if (status != QMLA_OK)
		goto err_release;
	status = start_daemon(e);
	if (status == QMLA_OK && pthread_create(&e->thread, NULL, serve, e) != 0)
		status = QMLA_ERR_RESOURCE_EXHAUSTED;
	if (status != QMLA_OK) {
		qmc_error(COMPONENT, "cannot start the HTTP endpoint on %s: %s", config->listen,
			  qmla_status_text(status));
		goto err_release;
	}
	*endpoint = e;
	return QMLA_OK;

err_release:
	release(e);
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
	atomic_store_explicit(&endpoint->stop, true, memory_order_relaxed);
	(void)eventfd_write(endpoint->wake, 1);
	pthread_join(endpoint->thread, NULL);
	release(endpoint);
}
