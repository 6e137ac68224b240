/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/peer.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/log.h"
#include "transport/wire.h"

#define IN_BYTES         4096               /* requests read ahead; 64 of them */
#define TURN_BYTES       (INT64_C(2) << 20) /* then other peers of the thread get their turn */
#define REQUEST_COST     1024               /* what a request without bytes takes off a turn */
#define DEAD_PEER_MS     30000              /* unacknowledged data or keepalive for this long */
#define DEAD_PEER_IDLE_S 15

enum state {
	STATE_HELLO,   /* waits for the handshake */
	STATE_REQUEST, /* waits for a request */
	STATE_REPLY,   /* sends a reply and, for a read, the region's bytes */
	STATE_RECEIVE, /* receives a write's bytes into the region */
	STATE_DISCARD, /* receives a refused write's bytes into nothing */
	STATE_CLOSE,   /* sends a last message, then closes */
};

enum outcome {
	GO_ON,    /* the state changed or moved bytes: look again */
	WAIT_IN,  /* the socket has no more */
	WAIT_OUT, /* the socket takes no more */
	DROP,     /* the peer is gone or broke the protocol */
};

struct tcp_peer {
	struct qmt_peer base;
	const struct qmt_tcp_context *context;
	enum state state;
	struct qmt_flight flight;
	bool in_flight;
	struct qmt_wire_request request;
	qmla_status_t verdict; /* of the request, for its reply */
	uint64_t moved;        /* payload bytes of the request that are through */
	size_t out_sent, out_bytes;
	size_t in_head, in_tail;
	uint8_t out[QMT_WIRE_REPLY_BYTES];
	uint8_t in[IN_BYTES];
};

_Static_assert(QMT_WIRE_WELCOME_BYTES <= QMT_WIRE_REPLY_BYTES, "out holds either");
_Static_assert(QMT_WIRE_HELLO_BYTES <= IN_BYTES, "in holds a hello");

static struct qmt_peer *peer_open(void *user)
{
	struct tcp_peer *peer = calloc(1, sizeof(*peer));

	if (!peer)
		return NULL;
	peer->context = user;
	return &peer->base;
}

static void flight_end(struct tcp_peer *peer, qmla_status_t status)
{
	if (!peer->in_flight)
		return;
	peer->in_flight = false;
	qmt_gate_end(peer->context->gate, &peer->flight, status, peer->moved);
}

static void peer_close(struct qmt_peer *base, qmla_status_t status)
{
	struct tcp_peer *peer = (struct tcp_peer *)base;

	flight_end(peer, status);
	free(peer);
}

static enum outcome socket_outcome(const struct tcp_peer *peer, ssize_t n, enum outcome wait)
{
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return wait;
	if (n < 0 && errno == EINTR)
		return GO_ON;
	if (n < 0)
		qmc_debug("tcp", "peer %s: %s", peer->base.name, strerror(errno));
	return DROP;
}

static enum outcome protocol_error(const struct tcp_peer *peer, const char *what)
{
	qmc_warn_limited("tcp", "peer %s dropped: %s", peer->base.name, what);
	return DROP;
}

/* Makes @bytes of one message contiguous at in_head, reading ahead what there is. */
static enum outcome fill(struct tcp_peer *peer, size_t bytes)
{
	ssize_t n;

	if (peer->in_tail - peer->in_head >= bytes)
		return GO_ON;
	memmove(peer->in, peer->in + peer->in_head, peer->in_tail - peer->in_head);
	peer->in_tail -= peer->in_head;
	peer->in_head = 0;
	n = recv(peer->base.fd, peer->in + peer->in_tail, IN_BYTES - peer->in_tail, 0);
	if (n <= 0)
		return socket_outcome(peer, n, WAIT_IN);
	peer->in_tail += (size_t)n;
	return peer->in_tail >= bytes ? GO_ON : WAIT_IN;
}

static void set_options(int fd)
{
	const int on = 1, idle = DEAD_PEER_IDLE_S, timeout = DEAD_PEER_MS;

	/* Best effort: each only makes a dead peer or a small message faster to deal with. */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof(idle));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
}

static enum outcome step_hello(struct tcp_peer *peer)
{
	struct qmt_wire_hello hello;
	struct qmt_wire_welcome welcome;
	enum outcome outcome = fill(peer, QMT_WIRE_HELLO_BYTES);

	if (outcome != GO_ON)
		return outcome;
	if (qmt_wire_hello_decode(peer->in + peer->in_head, &hello) != QMLA_OK)
		return protocol_error(peer, "its first bytes are no handshake of ours");
	peer->in_head += QMT_WIRE_HELLO_BYTES;
	qmt_wire_judge(&hello, &peer->context->identity, &welcome);
	if (welcome.status != QMLA_OK)
		qmc_warn_limited("tcp", "peer %s refused: %s", peer->base.name,
				 qmla_status_text(welcome.status));
	else if (!qmt_peer_admit(&peer->base))
		welcome.status = QMLA_ERR_RESOURCE_EXHAUSTED;
	else
		set_options(peer->base.fd);
	qmt_wire_welcome_encode(&welcome, peer->out);
	peer->out_sent = 0;
	peer->out_bytes = QMT_WIRE_WELCOME_BYTES;
	peer->verdict = welcome.status;
	peer->state = welcome.status == QMLA_OK ? STATE_REPLY : STATE_CLOSE;
	/* Not a read: STATE_REPLY sends the message alone. */
	peer->request.kind = QMT_WIRE_WRITE;
	return GO_ON;
}

static void prepare_reply(struct tcp_peer *peer)
{
	struct qmt_wire_reply reply = {
		.kind = peer->request.kind,
		.id = peer->request.id,
		.status = peer->verdict,
		.length = peer->verdict == QMLA_OK ? peer->request.length : 0,
	};

	qmt_wire_reply_encode(&reply, peer->out);
	peer->out_sent = 0;
	peer->out_bytes = QMT_WIRE_REPLY_BYTES;
	peer->state = STATE_REPLY;
}

static enum outcome step_request(struct tcp_peer *peer)
{
	struct qmt_wire_request *request = &peer->request;
	enum outcome outcome = fill(peer, QMT_WIRE_REQUEST_BYTES);

	if (outcome != GO_ON)
		return outcome;
	if (qmt_wire_request_decode(peer->in + peer->in_head, QMT_KIND_TCP, request) != QMLA_OK)
		return protocol_error(peer, "it sent a malformed request");
	peer->in_head += QMT_WIRE_REQUEST_BYTES;
	peer->moved = 0;
	peer->flight.request = (struct qmt_access_request){
		.access = request->kind == QMT_WIRE_READ ? QMT_READ : QMT_WRITE,
		.region = request->region,
		.offset = request->offset,
		.length = request->length,
	};
	memcpy(peer->flight.request.capability, request->capability, QMT_CAPABILITY_BYTES);
	peer->flight.wake_fd = peer->base.wake_fd;
	peer->verdict = qmt_gate_begin(peer->context->gate, &peer->flight);
	peer->in_flight = peer->verdict == QMLA_OK;
	if (request->kind == QMT_WIRE_READ)
		prepare_reply(peer);
	else
		peer->state = peer->in_flight ? STATE_RECEIVE : STATE_DISCARD;
	return GO_ON;
}

static enum outcome step_reply(struct tcp_peer *peer, int64_t *budget)
{
	uint64_t payload = 0;
	struct iovec iov[2];
	struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
	ssize_t n;
	size_t head;

	if (peer->in_flight && qmt_flight_is_fenced(&peer->flight))
		return DROP;
	if (peer->in_flight && peer->request.kind == QMT_WIRE_READ)
		payload = peer->request.length - peer->moved;
	if (payload > (uint64_t)TURN_BYTES)
		payload = (uint64_t)TURN_BYTES; /* a fence need not wait for more than this */
	iov[0].iov_base = peer->out + peer->out_sent;
	iov[0].iov_len = peer->out_bytes - peer->out_sent;
	iov[1].iov_base = peer->in_flight ? peer->flight.memory + peer->moved : NULL;
	iov[1].iov_len = payload;
	n = sendmsg(peer->base.fd, &message, MSG_NOSIGNAL);
	if (n < 0)
		return socket_outcome(peer, n, WAIT_OUT);
	head = (size_t)n < iov[0].iov_len ? (size_t)n : iov[0].iov_len;
	peer->out_sent += head;
	peer->moved += (size_t)n - head;
	*budget -= n + REQUEST_COST;
	qmt_peer_progress(&peer->base, (uint64_t)n);
	if (peer->out_sent < peer->out_bytes ||
	    (peer->in_flight && peer->moved < peer->request.length))
		return GO_ON;
	flight_end(peer, QMLA_OK);
	qmt_peer_completed(&peer->base);
	if (peer->state == STATE_CLOSE)
		return DROP;
	peer->state = STATE_REQUEST;
	return GO_ON;
}

/* A write's bytes that came along with requests and lie in the read-ahead buffer. */
static uint64_t take_buffered(struct tcp_peer *peer, uint8_t *to, uint64_t wanted)
{
	uint64_t n = peer->in_tail - peer->in_head;

	if (n > wanted)
		n = wanted;
	if (to && n)
		memcpy(to, peer->in + peer->in_head, n);
	peer->in_head += n;
	return n;
}

static enum outcome step_receive(struct tcp_peer *peer, int64_t *budget)
{
	uint64_t left = peer->request.length - peer->moved;
	uint8_t *to = NULL;
	uint64_t n;

	if (peer->in_flight && qmt_flight_is_fenced(&peer->flight)) {
		/* The late writer's other operations may go on. */
		peer->verdict = QMLA_ERR_PERMISSION;
		flight_end(peer, peer->verdict);
		peer->state = STATE_DISCARD;
	}
	if (peer->in_flight)
		to = peer->flight.memory + peer->moved;
	n = take_buffered(peer, to, left);
	if (n == 0) {
		/* What is discarded goes over the read-ahead buffer, which is empty. */
		uint64_t room = to ? (uint64_t)TURN_BYTES : IN_BYTES;
		size_t piece = (size_t)(left < room ? left : room);
		ssize_t got = recv(peer->base.fd, to ? to : peer->in, piece, 0);

		if (got <= 0)
			return socket_outcome(peer, got, WAIT_IN);
		n = (uint64_t)got;
	}
	peer->moved += n;
	*budget -= (int64_t)n;
	qmt_peer_progress(&peer->base, n);
	if (peer->moved < peer->request.length)
		return GO_ON;
	flight_end(peer, QMLA_OK);
	prepare_reply(peer);
	return GO_ON;
}

static enum outcome step(struct tcp_peer *peer, int64_t *budget)
{
	switch (peer->state) {
	case STATE_HELLO:
		return step_hello(peer);
	case STATE_REQUEST:
		return step_request(peer);
	case STATE_REPLY:
	case STATE_CLOSE:
		return step_reply(peer, budget);
	case STATE_RECEIVE:
	case STATE_DISCARD:
		return step_receive(peer, budget);
	}
	return DROP;
}

static bool peer_ready(struct qmt_peer *base)
{
	struct tcp_peer *peer = (struct tcp_peer *)base;
	int64_t budget = TURN_BYTES;
	enum outcome outcome = GO_ON;

	while (outcome == GO_ON && budget > 0)
		outcome = step(peer, &budget);
	if (outcome == DROP)
		return false;
	if (peer->state == STATE_REQUEST && peer->in_head == peer->in_tail)
		qmt_peer_idle(base);
	else
		qmt_peer_busy(base);
	/*
	 * Out of budget: ask for an event that comes at once if there is something to
	 * do. Buffered requests need no input, so then it is room for their replies.
	 */
	if (outcome == GO_ON && peer->state != STATE_RECEIVE && peer->state != STATE_DISCARD)
		outcome = WAIT_OUT;
	qmt_peer_want(base, outcome == WAIT_OUT ? EPOLLOUT : EPOLLIN);
	return true;
}

static bool peer_fenced(struct qmt_peer *base)
{
	struct tcp_peer *peer = (struct tcp_peer *)base;

	if (!peer->in_flight || !qmt_flight_is_fenced(&peer->flight))
		return true;
	/* A read's reply has promised its bytes: only dropping the peer ends it. */
	return peer->request.kind == QMT_WIRE_WRITE && peer_ready(base);
}

const struct qmt_peer_ops qmt_tcp_peer_ops = {
	.component = "tcp",
	.open = peer_open,
	.ready = peer_ready,
	.fenced = peer_fenced,
	.close = peer_close,
};
