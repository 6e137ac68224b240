/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"
#include "transport/queue.h"
#include "transport/shm/memory.h"
#include "transport/shm/packet.h"

#define PIECE_BYTES (INT64_C(1) << 20) /* a fence waits for at most one of these */
#define TURN_BYTES  (INT64_C(2) << 20) /* then other peers of the thread get their turn */
#define GRANTS      QMT_WINDOW_OPS     /* as many as a client ever asks for */

enum outcome { GO_ON, WAIT_IN, WAIT_OUT, DROP };

struct shm_peer {
	struct qmt_peer base;
	const struct qmt_shm_context *context;
	bool greeted;
	/* Reads that the client may be copying, oldest at head. */
	struct qmt_flight grants[GRANTS];
	uint64_t grant_ids[GRANTS];
	unsigned head, tail; /* counting up */
	/* The write that is being copied. */
	struct qmt_flight write;
	bool writing;
	uint64_t moved;
	int staging_fd;
	uint64_t staging_bytes;
	/* Requests of the last packet: those before `next` are dealt with. */
	struct qmt_wire_request requests[QMT_PACKET_MESSAGES];
	size_t next, count;
	/* Replies not sent yet, and the descriptor that goes with the last of them. */
	uint8_t out[QMT_PACKET_MESSAGES * QMT_WIRE_REPLY_BYTES];
	size_t out_bytes;
	int passing;
	bool flush; /* the packet is complete: send before anything else */
	/* Regions whose descriptor the client has. */
	const struct qmt_memory **known;
	size_t known_count;
};

static struct qmt_peer *peer_open(void *user)
{
	struct shm_peer *peer = calloc(1, sizeof(*peer));

	if (!peer)
		return NULL;
	peer->context = user;
	peer->staging_fd = peer->passing = -1;
	return &peer->base;
}

static void write_end(struct shm_peer *peer, qmla_status_t status)
{
	peer->writing = false;
	qmt_gate_end(peer->context->gate, &peer->write, status, peer->moved);
}

/* Ends the oldest grant. */
static void grant_end(struct shm_peer *peer, qmla_status_t status)
{
	struct qmt_flight *flight = &peer->grants[peer->head++ % GRANTS];

	qmt_gate_end(peer->context->gate, flight, status,
		     status == QMLA_OK ? flight->request.length : 0);
}

static void peer_close(struct qmt_peer *base, qmla_status_t status)
{
	struct shm_peer *peer = (struct shm_peer *)base;

	if (peer->writing)
		write_end(peer, status);
	while (peer->head != peer->tail)
		grant_end(peer, status);
	if (peer->staging_fd >= 0)
		close(peer->staging_fd);
	free(peer->known);
	free(peer);
}

static enum outcome protocol_error(const struct shm_peer *peer, const char *what)
{
	qmc_warn_limited("shm", "peer %s dropped: %s", peer->base.name, what);
	return DROP;
}

/* ---- handshake ---- */

static void name_peer(struct shm_peer *peer)
{
	struct ucred credentials;
	socklen_t length = sizeof(credentials);

	if (getsockopt(peer->base.fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0)
		snprintf(peer->base.name, sizeof(peer->base.name), "pid %ld (user %lu)",
			 (long)credentials.pid, (unsigned long)credentials.uid);
}

static enum outcome step_hello(struct shm_peer *peer)
{
	uint8_t in[QMT_WIRE_HELLO_BYTES], out[QMT_WIRE_WELCOME_BYTES];
	struct qmt_wire_hello hello;
	struct qmt_wire_welcome welcome;
	size_t bytes = 0;
	int passed = -1;
	enum qmt_packet_result result =
		qmt_packet_receive(peer->base.fd, in, sizeof(in), &bytes, &passed);

	if (result == QMT_PACKET_WAIT)
		return WAIT_IN;
	if (result == QMT_PACKET_CLOSED)
		return DROP;
	name_peer(peer);
	if (passed >= 0)
		close(passed);
	if (result != QMT_PACKET_OK || passed >= 0 || bytes != sizeof(in) ||
	    qmt_wire_hello_decode(in, &hello) != QMLA_OK)
		return protocol_error(peer, "its first packet is no handshake of ours");
	qmt_wire_judge(&hello, &peer->context->identity, &welcome);
	if (welcome.status != QMLA_OK)
		qmc_warn_limited("shm", "peer %s refused: %s", peer->base.name,
				 qmla_status_text(welcome.status));
	else if (!qmt_peer_admit(&peer->base))
		welcome.status = QMLA_ERR_RESOURCE_EXHAUSTED;
	qmt_wire_welcome_encode(&welcome, out);
	peer->greeted = true;
	/* The first packet of a connection: there is room for it. */
	if (qmt_packet_send(peer->base.fd, out, sizeof(out), -1) != QMT_PACKET_OK)
		return DROP;
	qmt_peer_completed(&peer->base);
	return welcome.status == QMLA_OK ? GO_ON : DROP;
}

/* ---- replies ---- */

static enum outcome send_replies(struct shm_peer *peer)
{
	switch (qmt_packet_send(peer->base.fd, peer->out, peer->out_bytes, peer->passing)) {
	case QMT_PACKET_OK:
		peer->out_bytes = 0;
		peer->passing = -1;
		peer->flush = false;
		return GO_ON;
	case QMT_PACKET_WAIT:
		return WAIT_OUT;
	default:
		qmc_debug("shm", "peer %s: %s", peer->base.name, strerror(errno));
		return DROP;
	}
}

/* True when the client has no descriptor of @region yet; from now on it counts as having one. */
static bool introduce(struct shm_peer *peer, const struct qmt_memory *region)
{
	const struct qmt_memory **grown;

	for (size_t i = 0; i < peer->known_count; i++) {
		if (peer->known[i] == region)
			return false;
	}
	grown = realloc(peer->known, (peer->known_count + 1) * sizeof(const struct qmt_memory *));
	if (!grown)
		return true; /* it gets another one next time */
	peer->known = grown;
	peer->known[peer->known_count++] = region;
	return true;
}

static void reply(struct shm_peer *peer, const struct qmt_wire_request *request,
		  qmla_status_t status, const struct qmt_memory *region)
{
	struct qmt_wire_reply message = {
		.kind = request->kind,
		.id = request->id,
		.status = status,
		.length = status == QMLA_OK ? request->length : 0,
	};

	if (region && introduce(peer, region)) {
		message.region_bytes = region->bytes;
		peer->passing = region->fd;
		peer->flush = true;
	}
	qmt_wire_reply_encode(&message, peer->out + peer->out_bytes);
	peer->out_bytes += QMT_WIRE_REPLY_BYTES;
	if (peer->out_bytes == sizeof(peer->out))
		peer->flush = true;
}

/* ---- requests ---- */

static qmla_status_t flight_begin(struct shm_peer *peer, struct qmt_flight *flight,
				  const struct qmt_wire_request *request)
{
	flight->request = (struct qmt_access_request){
		.access = request->kind == QMT_WIRE_READ ? QMT_READ : QMT_WRITE,
		.region = request->region,
		.offset = request->offset,
		.length = request->length,
	};
	memcpy(flight->request.capability, request->capability, QMT_CAPABILITY_BYTES);
	flight->wake_fd = peer->base.wake_fd;
	return qmt_gate_begin(peer->context->gate, flight);
}

static enum outcome on_read(struct shm_peer *peer, const struct qmt_wire_request *request)
{
	struct qmt_flight *flight = &peer->grants[peer->tail % GRANTS];
	qmla_status_t status;

	if (peer->tail - peer->head == GRANTS)
		return protocol_error(peer, "it holds too many reads without finishing them");
	status = flight_begin(peer, flight, request);
	if (status == QMLA_OK)
		peer->grant_ids[peer->tail++ % GRANTS] = request->id;
	reply(peer, request, status, status == QMLA_OK ? flight->region : NULL);
	return GO_ON;
}

static enum outcome on_done(struct shm_peer *peer, const struct qmt_wire_request *request)
{
	if (peer->head == peer->tail || peer->grant_ids[peer->head % GRANTS] != request->id)
		return protocol_error(peer, "it finished a read that it does not hold");
	grant_end(peer, request->status);
	qmt_peer_completed(&peer->base);
	return GO_ON;
}

static enum outcome on_write(struct shm_peer *peer, const struct qmt_wire_request *request)
{
	qmla_status_t status;

	if (request->length > peer->staging_bytes ||
	    request->staging > peer->staging_bytes - request->length)
		return protocol_error(peer, "it named bytes outside its staging buffer");
	status = flight_begin(peer, &peer->write, request);
	peer->moved = 0;
	peer->writing = status == QMLA_OK;
	if (!peer->writing)
		reply(peer, request, status, NULL);
	return GO_ON;
}

static enum outcome on_request(struct shm_peer *peer)
{
	const struct qmt_wire_request *request = &peer->requests[peer->next++];

	switch (request->kind) {
	case QMT_WIRE_READ:
		return on_read(peer, request);
	case QMT_WIRE_WRITE:
		return on_write(peer, request);
	case QMT_WIRE_DONE:
		return on_done(peer, request);
	case QMT_WIRE_STAGE:
		break; /* dealt with on arrival */
	}
	return GO_ON;
}

static enum outcome on_stage(struct shm_peer *peer, int fd)
{
	uint64_t bytes = peer->requests[0].length;

	if (qmt_shm_check(fd, bytes) != QMLA_OK) {
		close(fd);
		return protocol_error(peer, "its staging buffer is no memfd sealed against "
					    "shrinking, or smaller than it says");
	}
	if (peer->staging_fd >= 0)
		close(peer->staging_fd);
	peer->staging_fd = fd;
	peer->staging_bytes = bytes;
	return GO_ON;
}

static enum outcome receive_requests(struct shm_peer *peer)
{
	uint8_t in[QMT_PACKET_BYTES];
	size_t bytes = 0, count;
	int passed = -1;

	switch (qmt_packet_receive(peer->base.fd, in, sizeof(in), &bytes, &passed)) {
	case QMT_PACKET_WAIT:
		return WAIT_IN;
	case QMT_PACKET_CLOSED:
		return DROP;
	case QMT_PACKET_BROKEN:
		return protocol_error(peer, "it sent an oversized packet or too many descriptors");
	case QMT_PACKET_OK:
		break;
	}
	if (qmt_packet_requests(in, bytes, passed >= 0, peer->requests, &count) != QMLA_OK) {
		if (passed >= 0)
			close(passed);
		return protocol_error(peer, "it sent a malformed request");
	}
	peer->next = 0;
	peer->count = count;
	return passed >= 0 ? on_stage(peer, passed) : GO_ON;
}

/*
 * Copies a piece of the write. pread and not a mapping: a hostile client can
 * punch holes into its memfd, which pread reads as zeros without allocating
 * pages on our account, and whatever it does cannot raise SIGBUS here.
 */
static enum outcome copy_piece(struct shm_peer *peer, int64_t *budget)
{
	const struct qmt_wire_request *request = &peer->requests[peer->next - 1];
	int64_t left = (int64_t)(request->length - peer->moved);
	ssize_t n;

	if (qmt_flight_is_fenced(&peer->write)) {
		write_end(peer, QMLA_ERR_PERMISSION);
		reply(peer, request, QMLA_ERR_PERMISSION, NULL);
		return GO_ON;
	}
	n = pread(peer->staging_fd, peer->write.memory + peer->moved,
		  (size_t)(left < PIECE_BYTES ? left : PIECE_BYTES),
		  (off_t)(request->staging + peer->moved));
	if (n < 0 && errno == EINTR)
		return GO_ON;
	if (n <= 0)
		return protocol_error(peer, "its staging buffer cannot be read");
	peer->moved += (uint64_t)n;
	*budget -= n;
	if (peer->moved < request->length)
		return GO_ON;
	write_end(peer, QMLA_OK);
	reply(peer, request, QMLA_OK, NULL);
	/* One reply at a time while data moves: the client refills its staging buffer. */
	peer->flush = true;
	qmt_peer_completed(&peer->base);
	return GO_ON;
}

/* ---- the machine ---- */

static enum outcome step(struct shm_peer *peer, int64_t *budget)
{
	if (!peer->greeted)
		return step_hello(peer);
	if (peer->flush)
		return send_replies(peer);
	if (peer->writing)
		return copy_piece(peer, budget);
	if (peer->next < peer->count)
		return on_request(peer);
	if (peer->out_bytes)
		return send_replies(peer);
	*budget -= PIECE_BYTES / 8;
	return receive_requests(peer);
}

static bool peer_ready(struct qmt_peer *base)
{
	struct shm_peer *peer = (struct shm_peer *)base;
	int64_t budget = TURN_BYTES;
	enum outcome outcome = GO_ON;
	bool pending;

	while (outcome == GO_ON && budget > 0)
		outcome = step(peer, &budget);
	if (outcome == DROP)
		return false;
	pending = peer->writing || peer->next < peer->count || peer->out_bytes > 0;
	if (pending || peer->head != peer->tail || !peer->greeted)
		qmt_peer_busy(base);
	else
		qmt_peer_idle(base);
	/* Out of budget with work left: room in the socket is an event that comes at once. */
	if (outcome == GO_ON && pending)
		outcome = WAIT_OUT;
	qmt_peer_want(base, outcome == WAIT_OUT ? EPOLLOUT : EPOLLIN);
	return true;
}

static bool peer_fenced(struct qmt_peer *base)
{
	struct shm_peer *peer = (struct shm_peer *)base;

	/* The client may be copying: only the end of the connection makes it discard that. */
	for (unsigned i = peer->head; i != peer->tail; i++) {
		if (qmt_flight_is_fenced(&peer->grants[i % GRANTS]))
			return false;
	}
	return !peer->writing || !qmt_flight_is_fenced(&peer->write) || peer_ready(base);
}

const struct qmt_peer_ops qmt_shm_peer_ops = {
	.component = "shm",
	.open = peer_open,
	.ready = peer_ready,
	.fenced = peer_fenced,
	.close = peer_close,
};
