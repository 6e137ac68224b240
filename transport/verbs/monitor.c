/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/monitor.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/log.h"

LIST_HEAD(watched_list, qmt_watched);

struct qmt_monitor {
	const struct qmt_port *ports;
	size_t count;
	pthread_t thread;
	int stop_fd;
	atomic_bool fatal;
	pthread_mutex_t lock;
	struct watched_list watched;
};

static void fail(struct qmt_watched *watched, enum ibv_event_type type)
{
	int none = 0;

	/* Release: pairs with the acquire in qmt_watched_reason. The first event counts. */
	if (!atomic_compare_exchange_strong_explicit(&watched->failed, &none, 1 + (int)type,
						     memory_order_release, memory_order_relaxed))
		return;
	if (watched->wake_fd >= 0)
		(void)eventfd_write(watched->wake_fd, 1);
}

/* Another address was added or taken away: does this queue pair still have its own? */
static bool has_lost_gid(const struct qmt_watched *watched)
{
	const struct qmt_port *port = watched->port;
	struct ibv_gid_entry entry = {0};

	if (!watched->state.ethernet)
		return false;
	return port->api->query_gid(port->context, port->number, watched->state.gid_index,
				    &entry) != 0 ||
	       memcmp(&entry.gid, &watched->state.gid, sizeof(entry.gid)) != 0;
}

/* @number 0: every port of the device. */
static void fail_port(struct qmt_monitor *monitor, const struct qmt_port *port, int number,
		      enum ibv_event_type type)
{
	struct qmt_watched *watched;

	pthread_mutex_lock(&monitor->lock);
	for (watched = LIST_FIRST(&monitor->watched); watched; watched = LIST_NEXT(watched, link)) {
		if (watched->port->context != port->context ||
		    (number != 0 && watched->port->number != number))
			continue;
		if (type != IBV_EVENT_GID_CHANGE || has_lost_gid(watched))
			fail(watched, type);
	}
	pthread_mutex_unlock(&monitor->lock);
}

/* The event is acknowledged after this: until then its queue pair cannot go away. */
static void handle(struct qmt_monitor *monitor, const struct qmt_port *port,
		   const struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_PATH_MIG_ERR:
		fail(event->element.qp->qp_context, event->event_type);
		break;
	case IBV_EVENT_CQ_ERR:
		fail(event->element.cq->cq_context, event->event_type);
		break;
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_GID_CHANGE:
		qmc_warn_limited("verbs", "%s port %d: %s", port->name, event->element.port_num,
				 port->api->event_type_str(event->event_type));
		fail_port(monitor, port, event->element.port_num, event->event_type);
		break;
	case IBV_EVENT_PORT_ACTIVE:
		qmc_info("verbs", "%s port %d is active", port->name, event->element.port_num);
		break;
	case IBV_EVENT_DEVICE_FATAL:
		qmc_error("verbs", "%s failed as a whole: it is opened anew", port->name);
		/* Release: whoever sees it opens the device anew. */
		atomic_store_explicit(&monitor->fatal, true, memory_order_release);
		fail_port(monitor, port, 0, event->event_type);
		break;
	default: /* nothing that a connection suffers from */
		break;
	}
}

static void drain(struct qmt_monitor *monitor, const struct qmt_port *port)
{
	struct ibv_async_event event;

	while (port->api->get_async_event(port->context, &event) == 0) {
		handle(monitor, port, &event);
		port->api->ack_async_event(&event);
	}
}

static void *run(void *argument)
{
	struct qmt_monitor *monitor = argument;
	struct pollfd fds[QMT_RAILS_MAX + 1];

	for (size_t i = 0; i < monitor->count; i++)
		fds[i] = (struct pollfd){monitor->ports[i].context->async_fd, POLLIN, 0};
	fds[monitor->count] = (struct pollfd){monitor->stop_fd, POLLIN, 0};
	while (!fds[monitor->count].revents) {
		if (poll(fds, monitor->count + 1, -1) < 0 && errno != EINTR)
			break;
		for (size_t i = 0; i < monitor->count; i++) {
			if (fds[i].revents & POLLIN)
				drain(monitor, &monitor->ports[i]);
			else if (fds[i].revents)
				fds[i].fd = -1; /* the device is gone; poll would not sleep again */
		}
	}
	return NULL;
}

qmla_status_t qmt_monitor_create(const struct qmt_port *ports, size_t count,
				 struct qmt_monitor **out)
{
	struct qmt_monitor *monitor = calloc(1, sizeof(*monitor));

	if (!monitor)
		return QMLA_ERR_NO_MEMORY;
	monitor->ports = ports;
	monitor->count = count;
	LIST_INIT(&monitor->watched);
	monitor->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (monitor->stop_fd < 0)
		goto err_free;
	pthread_mutex_init(&monitor->lock, NULL);
	if (pthread_create(&monitor->thread, NULL, run, monitor) != 0)
		goto err_fd;
	*out = monitor;
	return QMLA_OK;

err_fd:
	pthread_mutex_destroy(&monitor->lock);
	close(monitor->stop_fd);
err_free:
	free(monitor);
	return QMLA_ERR_RESOURCE_EXHAUSTED;
}

void qmt_monitor_destroy(struct qmt_monitor *monitor)
{
	if (!monitor)
		return;
	(void)eventfd_write(monitor->stop_fd, 1);
	pthread_join(monitor->thread, NULL);
	pthread_mutex_destroy(&monitor->lock);
	close(monitor->stop_fd);
	free(monitor);
}

void qmt_monitor_add(struct qmt_monitor *monitor, struct qmt_watched *watched)
{
	atomic_store_explicit(&watched->failed, 0, memory_order_relaxed);
	pthread_mutex_lock(&monitor->lock);
	LIST_INSERT_HEAD(&monitor->watched, watched, link);
	pthread_mutex_unlock(&monitor->lock);
}

void qmt_monitor_remove(struct qmt_monitor *monitor, struct qmt_watched *watched)
{
	pthread_mutex_lock(&monitor->lock);
	LIST_REMOVE(watched, link);
	pthread_mutex_unlock(&monitor->lock);
}

bool qmt_monitor_is_fatal(const struct qmt_monitor *monitor)
{
	return atomic_load_explicit(&monitor->fatal, memory_order_acquire);
}

const char *qmt_watched_reason(const struct qmt_watched *watched)
{
	int failed = atomic_load_explicit(&watched->failed, memory_order_acquire);

	return failed ? watched->port->api->event_type_str((enum ibv_event_type)(failed - 1))
		      : NULL;
}
