/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/endpoint.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "transport/liveness.h"
#include "transport/shm/connect.h"
#include "transport/shm/internal.h"

static struct qmt_shm_endpoint *endpoint_of(struct qmt_endpoint *endpoint)
{
	return (struct qmt_shm_endpoint *)endpoint;
}

qmla_status_t qmt_shm_endpoint_create(const struct qmt_server_address *address, qmc_time_t deadline,
				      struct qmt_endpoint **out)
{
	struct qmt_shm_endpoint *endpoint = calloc(1, sizeof(*endpoint));
	qmla_status_t status;

	if (!endpoint)
		return QMLA_ERR_NO_MEMORY;
	status = qmt_address_decode(address, QMT_KIND_SHM, &endpoint->peer, endpoint->path);
	if (status != QMLA_OK) {
		qmc_error("shm", "not the address of a shm server: %s", qmla_status_text(status));
		goto err_free;
	}
	status = qmt_shm_connect(&endpoint->peer, endpoint->path, deadline, &endpoint->fd,
				 &endpoint->max_length);
	if (status != QMLA_OK) {
		qmc_warn_limited("shm", "cannot connect to %s: %s", endpoint->path,
				 qmla_status_text(status));
		goto err_free;
	}
	qmt_queue_init(&endpoint->queue);
	qmt_staging_init(&endpoint->staging);
	qmt_inbox_init(&endpoint->inbox);
	endpoint->alive = true;
	*out = (struct qmt_endpoint *)endpoint;
	return QMLA_OK;

err_free:
	free(endpoint);
	return status;
}

static void disconnect(struct qmt_shm_endpoint *endpoint)
{
	qmt_inbox_fini(&endpoint->inbox);
	if (endpoint->fd >= 0)
		close(endpoint->fd);
	endpoint->fd = -1;
}

void qmt_shm_endpoint_destroy(struct qmt_endpoint *base)
{
	struct qmt_shm_endpoint *endpoint = endpoint_of(base);

	if (!endpoint)
		return;
	disconnect(endpoint);
	qmt_mappings_fini(&endpoint->mappings);
	qmt_staging_fini(&endpoint->staging);
	free(endpoint);
}

qmla_status_t qmt_shm_endpoint_register(struct qmt_endpoint *endpoint,
					const struct qmt_memory *memory)
{
	/* memcpy reaches any memory of this process. */
	(void)endpoint;
	(void)memory;
	return QMLA_OK;
}

qmla_status_t qmt_shm_endpoint_post(struct qmt_endpoint *base, struct qmt_op *op)
{
	struct qmt_shm_endpoint *endpoint = endpoint_of(base);
	struct qmt_remote_region region;
	qmla_status_t status;

	if (!endpoint->alive)
		return QMLA_ERR_UNAVAILABLE;
	status = qmt_op_check(op, &endpoint->peer, endpoint->max_length, &region);
	if (status == QMLA_OK)
		qmt_queue_push(&endpoint->queue, op);
	return status;
}

/* ---- failure ---- */

void qmt_shm_die(struct qmt_shm_endpoint *endpoint, const char *why)
{
	if (!endpoint->alive)
		return;
	qmc_warn_limited("shm", "connection to %s dropped: %s", endpoint->path, why);
	endpoint->alive = false;
	endpoint->unconfirmed = 0;
	disconnect(endpoint);
	qmt_queue_fail(&endpoint->queue, qmc_clock_now(), QMLA_ERR_UNAVAILABLE);
}

void qmt_shm_die_of_close(struct qmt_shm_endpoint *endpoint)
{
	qmt_shm_die(endpoint, errno ? strerror(errno) : "closed by the server");
}

/* ---- waiting ---- */

static void expire(struct qmt_shm_endpoint *endpoint, qmc_time_t now)
{
	if (qmt_queue_expire(&endpoint->queue, now))
		qmt_shm_die(endpoint, "an operation passed its deadline");
}

static void sleep_until_ready(struct qmt_shm_endpoint *endpoint, bool sending, qmc_time_t deadline)
{
	struct pollfd pfd = {.fd = endpoint->fd,
			     .events = (short)(POLLIN | (sending ? POLLOUT : 0))};

	if (endpoint->queue.next_deadline < deadline)
		deadline = endpoint->queue.next_deadline;
	(void)poll(&pfd, 1, qmc_clock_left_ms(deadline));
}

qmla_status_t qmt_shm_endpoint_wait(struct qmt_endpoint *base, qmc_time_t deadline,
				    struct qmt_op **completed)
{
	struct qmt_shm_endpoint *endpoint = endpoint_of(base);
	qmc_time_t now = qmc_clock_now();

	for (;;) {
		struct qmt_op *op = qmt_queue_pop(&endpoint->queue);
		bool blocked, moved;

		if (op || qmt_queue_is_empty(&endpoint->queue)) {
			*completed = op;
			return QMLA_OK;
		}
		/* What is late before it was sent costs the connection nothing. */
		(void)qmt_queue_expire(&endpoint->queue, now);
		blocked = qmt_shm_submit(endpoint, true);
		moved = qmt_shm_complete(endpoint);
		now = qmc_clock_now();
		expire(endpoint, now);
		if (endpoint->queue.completed.head) {
			/* The last one: its end must not wait for a caller who may stay away. */
			if (!qmt_queue_front(&endpoint->queue))
				(void)qmt_shm_submit(endpoint, false);
			continue;
		}
		if (!endpoint->alive)
			continue;
		if (!moved)
			blocked |= qmt_shm_submit(endpoint, false);
		if (now >= deadline)
			return QMLA_ERR_DEADLINE;
		if (!moved && endpoint->alive)
			sleep_until_ready(endpoint, blocked, deadline);
	}
}

void qmt_shm_endpoint_cancel(struct qmt_endpoint *endpoint, struct qmt_op *op)
{
	qmt_queue_cancel(&endpoint_of(endpoint)->queue, op);
}

bool qmt_shm_endpoint_alive(const struct qmt_endpoint *base)
{
	const struct qmt_shm_endpoint *endpoint = (const struct qmt_shm_endpoint *)base;

	/* An idle endpoint notices here that its server went; wait ends its ops. */
	return endpoint->alive && qmt_socket_is_open(endpoint->fd);
}
