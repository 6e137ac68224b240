/* SPDX-License-Identifier: Apache-2.0 */
#include "server/control_plane.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/address.h"
#include "common/log.h"
#include "proto/accept_watch.h"

#define SPARE_DESCRIPTORS 16
#define SETTLE            QMC_NS_PER_S       /* before a restart, and between attempts */
#define GRACE             (2 * QMC_NS_PER_S) /* for calls that run on a deaf server */

struct qms_control_plane {
	struct qms_control_plane_config config;
	char listen[QMC_ADDRESS_TEXT_MAX]; /* with the real port, so that a new server takes the
					      same */
	uint16_t port;
	pthread_t thread;
	bool watching;
	atomic_bool stop;          /* relaxed: qmp_accept_watch_wake orders it */
	pthread_mutex_t lock;      /* guards the two below */
	struct qmp_server *server; /* NULL while it is made anew */
	bool serving;
};

static qmla_status_t fix_port(struct qms_control_plane *plane)
{
	struct qmc_address address;
	qmla_status_t status = qmc_address_parse(plane->config.server.listen, &address);

	if (status != QMLA_OK)
		return status;
	plane->port = qmp_server_port(plane->server);
	address.port = plane->port;
	qmc_address_format(&address, plane->listen);
	plane->config.server.listen = plane->listen;
	return QMLA_OK;
}

static bool stopping(const struct qms_control_plane *plane)
{
	return atomic_load_explicit(&plane->stop, memory_order_relaxed);
}

/* A short sleep that the end of the node cuts short. */
static void settle(const struct qms_control_plane *plane)
{
	qmc_time_t until = qmc_clock_after(SETTLE);

	while (!stopping(plane) && qmc_clock_left(until) > 0)
		qmc_clock_sleep_until(qmc_clock_after(50 * QMC_NS_PER_MS));
}

/* Enough descriptors for a listener and some connections; else a restart would only cut off those
 * served now. */
static bool has_room(void)
{
	int fds[SPARE_DESCRIPTORS];
	int count = 0;

	while (count < SPARE_DESCRIPTORS &&
	       (fds[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		count++;
	for (int i = 0; i < count; i++)
		close(fds[i]);
	return count == SPARE_DESCRIPTORS;
}

static struct qmp_server *swap(struct qms_control_plane *plane, struct qmp_server *server)
{
	struct qmp_server *old;

	pthread_mutex_lock(&plane->lock);
	old = plane->server;
	plane->server = server;
	if (server)
		qmp_server_set_serving(server, plane->serving);
	pthread_mutex_unlock(&plane->lock);
	return old;
}

static void restart(struct qms_control_plane *plane)
{
	const struct qms_control_plane_config *config = &plane->config;
	struct qmp_server *server = NULL;

	qmc_error("node",
		  "out of file descriptors: gRPC stopped listening at %s and is started "
		  "anew; raise the limit of open files (ulimit -n, LimitNOFILE=)",
		  plane->listen);
	do {
		settle(plane); /* meanwhile whoever is connected is served */
	} while (!stopping(plane) && !has_room());
	if (stopping(plane))
		return;
	config->before_restart(config->user);
	qmp_server_destroy(swap(plane, NULL), GRACE);
	while (!stopping(plane) && qmp_server_create(&config->server, config->services,
						     config->count, &server) != QMLA_OK)
		settle(plane);
	if (!server)
		return;
	config->after_restart(config->user);
	swap(plane, server);
	qmc_info("node", "gRPC listens at %s again", plane->listen);
}

static void *watch(void *argument)
{
	struct qms_control_plane *plane = argument;
	uint64_t seen = qmp_accept_failures();

	while (!stopping(plane)) {
		qmp_accept_watch_wait(seen, &plane->stop);
		if (stopping(plane))
			break;
		restart(plane);
		/* Failures up to here were the old server's. One that comes with the new
		 * server in this very moment is seen at the next. */
		seen = qmp_accept_failures();
	}
	return NULL;
}

qmla_status_t qms_control_plane_create(const struct qms_control_plane_config *config,
				       struct qms_control_plane **plane)
{
	struct qms_control_plane *made = calloc(1, sizeof(*made));
	qmla_status_t status;

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	made->config = *config;
	pthread_mutex_init(&made->lock, NULL);
	status = qmp_server_create(&made->config.server, config->services, config->count,
				   &made->server);
	if (status == QMLA_OK)
		status = fix_port(made);
	if (status == QMLA_OK && pthread_create(&made->thread, NULL, watch, made) != 0)
		status = QMLA_ERR_NO_MEMORY;
	if (status != QMLA_OK) {
		qms_control_plane_destroy(made, 0);
		return status;
	}
	made->watching = true;
	*plane = made;
	return QMLA_OK;
}

void qms_control_plane_destroy(struct qms_control_plane *plane, int64_t grace_ns)
{
	if (!plane)
		return;
	if (plane->watching) {
		atomic_store_explicit(&plane->stop, true, memory_order_relaxed);
		qmp_accept_watch_wake();
		pthread_join(plane->thread, NULL);
	}
	qmp_server_destroy(plane->server, grace_ns);
	pthread_mutex_destroy(&plane->lock);
	free(plane);
}

uint16_t qms_control_plane_port(const struct qms_control_plane *plane)
{
	return plane->port;
}

void qms_control_plane_set_serving(struct qms_control_plane *plane, bool serving)
{
	pthread_mutex_lock(&plane->lock);
	plane->serving = serving;
	if (plane->server)
		qmp_server_set_serving(plane->server, serving);
	pthread_mutex_unlock(&plane->lock);
}

bool qms_control_plane_listens(struct qms_control_plane *plane)
{
	bool listens;

	pthread_mutex_lock(&plane->lock);
	listens = plane->server != NULL;
	pthread_mutex_unlock(&plane->lock);
	return listens;
}
