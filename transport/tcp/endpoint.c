/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/endpoint.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/log.h"
#include "transport/liveness.h"
#include "transport/queue.h"
#include "transport/tcp/connect.h"
#include "transport/wire.h"

#define OUT_REQUESTS 64
#define SINK_BYTES   (64 * 1024)
#define TURN_BYTES   (UINT64_C(4) << 20) /* then deadlines are looked at again */

struct tcp_endpoint {
	int fd;
	bool alive;
	struct qmt_identity peer;
	uint64_t max_length;
	char name[QMT_ADDRESS_TEXT_MAX];
	struct qmt_queue queue;
	/* Sending: encoded requests, of which the last may be a write's, then its bytes. */
	uint8_t out[OUT_REQUESTS * QMT_WIRE_REQUEST_BYTES];
	size_t out_sent, out_bytes;
	struct qmt_wire_op *writing;
	uint64_t written;
	/* Receiving: a reply, then the bytes of the oldest op on the wire. */
	uint8_t in[QMT_WIRE_REPLY_BYTES];
	size_t in_bytes;
	uint64_t payload_left;
	uint8_t sink[SINK_BYTES]; /* a cancelled read's bytes end here */
};

static struct tcp_endpoint *endpoint_of(struct qmt_endpoint *endpoint)
{
	return (struct tcp_endpoint *)endpoint;
}

qmla_status_t qmt_tcp_endpoint_create(const struct qmt_server_address *address, qmc_time_t deadline,
				      struct qmt_endpoint **out)
{
	struct tcp_endpoint *endpoint = calloc(1, sizeof(*endpoint));
	qmla_status_t status;

	if (!endpoint)
		return QMLA_ERR_NO_MEMORY;
	status = qmt_address_decode(address, QMT_KIND_TCP, &endpoint->peer, endpoint->name);
	if (status != QMLA_OK) {
		qmc_error("tcp", "not the address of a tcp server: %s", qmla_status_text(status));
		goto err_free;
	}
	status = qmt_tcp_connect(&endpoint->peer, endpoint->name, deadline, &endpoint->fd,
				 &endpoint->max_length);
	if (status != QMLA_OK) {
		qmc_warn_limited("tcp", "cannot connect to %s: %s", endpoint->name,
				 qmla_status_text(status));
		goto err_free;
	}
	qmt_queue_init(&endpoint->queue);
	endpoint->alive = true;
	*out = (struct qmt_endpoint *)endpoint;
	return QMLA_OK;

err_free:
	free(endpoint);
	return status;
}

void qmt_tcp_endpoint_destroy(struct qmt_endpoint *base)
{
	struct tcp_endpoint *endpoint = endpoint_of(base);

	if (!endpoint)
		return;
	if (endpoint->fd >= 0)
		close(endpoint->fd);
	free(endpoint);
}

qmla_status_t qmt_tcp_endpoint_register(struct qmt_endpoint *endpoint,
					const struct qmt_memory *memory)
{
	/* The kernel copies to and from any memory. */
	(void)endpoint;
	(void)memory;
	return QMLA_OK;
}

qmla_status_t qmt_tcp_endpoint_post(struct qmt_endpoint *base, struct qmt_op *op)
{
	struct tcp_endpoint *endpoint = endpoint_of(base);
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

/* Ends the endpoint and every op of it. The socket is closed at once: nothing moves after. */
static void die(struct tcp_endpoint *endpoint, qmla_status_t status)
{
	if (!endpoint->alive)
		return;
	endpoint->alive = false;
	close(endpoint->fd);
	endpoint->fd = -1;
	endpoint->writing = NULL;
	qmt_queue_fail(&endpoint->queue, qmc_clock_now(), status);
}

static void die_of_errno(struct tcp_endpoint *endpoint, ssize_t n)
{
	if (n == 0)
		qmc_warn_limited("tcp", "%s closed the connection", endpoint->name);
	else
		qmc_warn_limited("tcp", "connection to %s failed: %s", endpoint->name,
				 strerror(errno));
	die(endpoint, QMLA_ERR_UNAVAILABLE);
}

static void die_of_protocol(struct tcp_endpoint *endpoint, const char *what)
{
	qmc_warn_limited("tcp", "connection to %s dropped: %s", endpoint->name, what);
	die(endpoint, QMLA_ERR_UNAVAILABLE);
}

static bool would_block(void)
{
	return errno == EAGAIN || errno == EWOULDBLOCK;
}

/* ---- sending ---- */

static void encode_op(struct tcp_endpoint *endpoint, const struct qmt_wire_op *wire)
{
	const struct qmt_op *op = wire->op;
	struct qmt_remote_region region = {0};
	struct qmt_wire_request request = {
		.kind = op->access == QMT_READ ? QMT_WIRE_READ : QMT_WIRE_WRITE,
		.id = wire->id,
		.offset = op->remote_offset,
		.length = op->length,
	};

	(void)qmt_handle_decode(op->remote, &region); /* checked by post */
	request.region = region.region;
	memcpy(request.capability, op->capability, QMT_CAPABILITY_BYTES);
	qmt_wire_request_encode(&request, endpoint->out + endpoint->out_bytes);
	endpoint->out_bytes += QMT_WIRE_REQUEST_BYTES;
}

/* Encodes what fits; false when there is nothing to send. */
static bool prepare_sending(struct tcp_endpoint *endpoint)
{
	if (endpoint->out_sent < endpoint->out_bytes || endpoint->writing)
		return true;
	endpoint->out_sent = endpoint->out_bytes = 0;
	while (!endpoint->writing && endpoint->out_bytes < sizeof(endpoint->out)) {
		struct qmt_wire_op *wire = qmt_queue_start(&endpoint->queue);

		if (!wire)
			break;
		encode_op(endpoint, wire);
		if (wire->access == QMT_WRITE) {
			wire->busy = true;
			endpoint->writing = wire;
			endpoint->written = 0;
		}
	}
	return endpoint->out_bytes > 0;
}

static void account_sent(struct tcp_endpoint *endpoint, size_t n)
{
	size_t head = endpoint->out_bytes - endpoint->out_sent;

	if (head > n)
		head = n;
	endpoint->out_sent += head;
	if (!endpoint->writing)
		return;
	endpoint->written += n - head;
	if (endpoint->written < endpoint->writing->length)
		return;
	qmt_queue_unbusy(endpoint->writing, &endpoint->queue);
	endpoint->writing = NULL;
}

/* True when the socket takes no more for now, so that POLLOUT is worth waiting for. */
static bool push(struct tcp_endpoint *endpoint)
{
	while (endpoint->alive && prepare_sending(endpoint)) {
		struct iovec iov[2] = {
			{endpoint->out + endpoint->out_sent,
			 endpoint->out_bytes - endpoint->out_sent},
			{NULL, 0},
		};
		struct msghdr message = {.msg_iov = iov, .msg_iovlen = 1};
		ssize_t n;

		if (endpoint->writing) {
			iov[1].iov_base =
				(uint8_t *)endpoint->writing->op->local + endpoint->written;
			iov[1].iov_len = endpoint->writing->length - endpoint->written;
			message.msg_iovlen = 2;
		}
		n = sendmsg(endpoint->fd, &message, MSG_NOSIGNAL);
		if (n > 0)
			account_sent(endpoint, (size_t)n);
		else if (n < 0 && would_block())
			return true;
		else if (n == 0 || errno != EINTR)
			die_of_errno(endpoint, -1);
	}
	return false;
}

/* ---- receiving ---- */

/* A whole reply is there: finds its op and whether bytes follow. */
static void on_reply(struct tcp_endpoint *endpoint)
{
	struct qmt_wire_op *wire = qmt_queue_front(&endpoint->queue);
	struct qmt_wire_reply reply;

	endpoint->in_bytes = 0;
	if (qmt_wire_reply_decode(endpoint->in, QMT_KIND_TCP, &reply) != QMLA_OK) {
		die_of_protocol(endpoint, "malformed reply");
		return;
	}
	if (!wire || wire == endpoint->writing || reply.id != wire->id ||
	    (unsigned)reply.kind != (unsigned)wire->access ||
	    (reply.status == QMLA_OK && reply.length != wire->length)) {
		die_of_protocol(endpoint, "reply to something that was not asked");
		return;
	}
	if (reply.status == QMLA_OK && wire->access == QMT_READ)
		endpoint->payload_left = reply.length;
	else
		qmt_queue_retire(&endpoint->queue, reply.status);
}

/* Where the next payload bytes go: the caller's memory, or nowhere if it was cancelled. */
static struct iovec payload_target(struct tcp_endpoint *endpoint)
{
	struct qmt_wire_op *wire = qmt_queue_front(&endpoint->queue);
	uint64_t done = wire->length - endpoint->payload_left;
	uint64_t left = endpoint->payload_left;

	if (wire->op)
		return (struct iovec){(uint8_t *)wire->op->local + done, left};
	return (struct iovec){endpoint->sink, left < SINK_BYTES ? left : SINK_BYTES};
}

static void account_received(struct tcp_endpoint *endpoint, size_t n, size_t payload)
{
	size_t body = n < payload ? n : payload;

	if (endpoint->payload_left) {
		endpoint->payload_left -= body;
		if (endpoint->payload_left == 0)
			qmt_queue_retire(&endpoint->queue, QMLA_OK);
	}
	endpoint->in_bytes += n - body;
	if (endpoint->in_bytes == QMT_WIRE_REPLY_BYTES)
		on_reply(endpoint);
}

/* Receives until the socket is empty, an op completed or the turn is over. */
static void pull(struct tcp_endpoint *endpoint)
{
	uint64_t turn = 0;

	while (endpoint->alive && !endpoint->queue.completed.head && turn < TURN_BYTES) {
		struct iovec iov[2];
		struct msghdr message = {.msg_iov = iov};
		size_t payload = 0;
		ssize_t n;

		if (endpoint->payload_left) {
			iov[0] = payload_target(endpoint);
			payload = iov[0].iov_len;
			message.msg_iovlen = 1;
		}
		/* The next reply comes along only when all of the payload does. */
		if (payload == endpoint->payload_left) {
			iov[message.msg_iovlen].iov_base = endpoint->in + endpoint->in_bytes;
			iov[message.msg_iovlen].iov_len = QMT_WIRE_REPLY_BYTES - endpoint->in_bytes;
			message.msg_iovlen++;
		}
		n = recvmsg(endpoint->fd, &message, 0);
		if (n > 0) {
			account_received(endpoint, (size_t)n, payload);
			turn += (uint64_t)n;
		} else if (n < 0 && would_block()) {
			return;
		} else if (n == 0 || errno != EINTR) {
			die_of_errno(endpoint, n);
		}
	}
}

/* ---- waiting ---- */

static void expire(struct tcp_endpoint *endpoint, qmc_time_t now)
{
	if (!qmt_queue_expire(&endpoint->queue, now))
		return;
	qmc_warn_limited("tcp", "an operation on %s passed its deadline, connection dropped",
			 endpoint->name);
	die(endpoint, QMLA_ERR_UNAVAILABLE);
}

static void sleep_until_ready(struct tcp_endpoint *endpoint, bool sending, qmc_time_t deadline)
{
	struct pollfd pfd = {.fd = endpoint->fd,
			     .events = (short)(POLLIN | (sending ? POLLOUT : 0))};

	if (endpoint->queue.next_deadline < deadline)
		deadline = endpoint->queue.next_deadline;
	(void)poll(&pfd, 1, qmc_clock_left_ms(deadline));
}

qmla_status_t qmt_tcp_endpoint_wait(struct qmt_endpoint *base, qmc_time_t deadline,
				    struct qmt_op **completed)
{
	struct tcp_endpoint *endpoint = endpoint_of(base);
	qmc_time_t now = qmc_clock_now();

	for (;;) {
		struct qmt_op *op = qmt_queue_pop(&endpoint->queue);
		bool blocked;

		if (op || qmt_queue_is_empty(&endpoint->queue)) {
			*completed = op;
			return QMLA_OK;
		}
		/* What is late before it was sent costs the connection nothing. */
		(void)qmt_queue_expire(&endpoint->queue, now);
		blocked = push(endpoint);
		pull(endpoint);
		now = qmc_clock_now();
		expire(endpoint, now);
		if (endpoint->queue.completed.head)
			continue;
		if (now >= deadline)
			return QMLA_ERR_DEADLINE;
		sleep_until_ready(endpoint, blocked, deadline);
	}
}

void qmt_tcp_endpoint_cancel(struct qmt_endpoint *endpoint, struct qmt_op *op)
{
	qmt_queue_cancel(&endpoint_of(endpoint)->queue, op);
}

bool qmt_tcp_endpoint_alive(const struct qmt_endpoint *base)
{
	const struct tcp_endpoint *endpoint = (const struct tcp_endpoint *)base;

	/* An idle endpoint notices here that its server went; wait ends its ops. */
	return endpoint->alive && qmt_socket_is_open(endpoint->fd);
}
