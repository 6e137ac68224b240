/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc_keeper.h"

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
#define SETTLE            QMC_NS_PER_S /* before a restart, and between attempts */
#define GRACE_DEFAULT     (2 * QMC_NS_PER_S)

struct qmp_keeper {
	struct qmp_keeper_config config;
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

static qmla_status_t fix_port(struct qmp_keeper *keeper)
{
	struct qmc_address address;
	qmla_status_t status = qmc_address_parse(keeper->config.server.listen, &address);

	if (status != QMLA_OK)
		return status;
	keeper->port = qmp_server_port(keeper->server);
	address.port = keeper->port;
	qmc_address_format(&address, keeper->listen);
	keeper->config.server.listen = keeper->listen;
	return QMLA_OK;
}

static bool stopping(const struct qmp_keeper *keeper)
{
	return atomic_load_explicit(&keeper->stop, memory_order_relaxed);
}

/* A short sleep that destroying cuts short. */
static void settle(const struct qmp_keeper *keeper)
{
	qmc_time_t until = qmc_clock_after(SETTLE);

	while (!stopping(keeper) && qmc_clock_left(until) > 0)
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

static struct qmp_server *swap(struct qmp_keeper *keeper, struct qmp_server *server)
{
	struct qmp_server *old;

	pthread_mutex_lock(&keeper->lock);
	old = keeper->server;
	keeper->server = server;
	if (server)
		qmp_server_set_serving(server, keeper->serving);
	pthread_mutex_unlock(&keeper->lock);
	return old;
}

static void restart(struct qmp_keeper *keeper)
{
	const struct qmp_keeper_config *config = &keeper->config;
	struct qmp_server *server = NULL;

	qmc_error("rpc",
		  "out of file descriptors: gRPC stopped listening at %s and is started "
		  "anew; raise the limit of open files (ulimit -n, LimitNOFILE=)",
		  keeper->listen);
	do {
		settle(keeper); /* meanwhile whoever is connected is served */
	} while (!stopping(keeper) && !has_room());
	if (stopping(keeper))
		return;
	if (config->before_restart)
		config->before_restart(config->user);
	qmp_server_destroy(swap(keeper, NULL), config->grace_ns ? config->grace_ns : GRACE_DEFAULT);
	while (!stopping(keeper) && qmp_server_create(&config->server, config->services,
						      config->count, &server) != QMLA_OK)
		settle(keeper);
	if (!server)
		return;
	if (config->after_restart)
		config->after_restart(config->user);
	swap(keeper, server);
	qmc_info("rpc", "gRPC listens at %s again", keeper->listen);
}

static void *watch(void *argument)
{
	struct qmp_keeper *keeper = argument;
	uint64_t seen = qmp_accept_failures();

	while (!stopping(keeper)) {
		qmp_accept_watch_wait(seen, &keeper->stop);
		if (stopping(keeper))
			break;
		restart(keeper);
		/* Failures up to here were the old server's. One that comes with the new
		 * server in this very moment is seen at the next. */
		seen = qmp_accept_failures();
	}
	return NULL;
}

qmla_status_t qmp_keeper_create(const struct qmp_keeper_config *config, struct qmp_keeper **keeper)
{
	struct qmp_keeper *made = calloc(1, sizeof(*made));
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
		qmp_keeper_destroy(made, 0);
		return status;
	}
	made->watching = true;
	*keeper = made;
	return QMLA_OK;
}

void qmp_keeper_destroy(struct qmp_keeper *keeper, int64_t grace_ns)
{
	if (!keeper)
		return;
	if (keeper->watching) {
		atomic_store_explicit(&keeper->stop, true, memory_order_relaxed);
		qmp_accept_watch_wake();
		pthread_join(keeper->thread, NULL);
	}
	qmp_server_destroy(keeper->server, grace_ns);
	pthread_mutex_destroy(&keeper->lock);
	free(keeper);
}

uint16_t qmp_keeper_port(const struct qmp_keeper *keeper)
{
	return keeper->port;
}

void qmp_keeper_set_serving(struct qmp_keeper *keeper, bool serving)
{
	pthread_mutex_lock(&keeper->lock);
	keeper->serving = serving;
	if (keeper->server)
		qmp_server_set_serving(keeper->server, serving);
	pthread_mutex_unlock(&keeper->lock);
}

bool qmp_keeper_listens(struct qmp_keeper *keeper)
{
	bool listens;

	pthread_mutex_lock(&keeper->lock);
	listens = keeper->server != NULL;
	pthread_mutex_unlock(&keeper->lock);
	return listens;
}
