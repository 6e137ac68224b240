/* SPDX-License-Identifier: Apache-2.0 */
/* Decoders of the transport's blobs and messages: what they accept, encodes to the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "transport/shm/packet.h"
#include "transport/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool condition)
{
	if (!condition)
		abort();
}

static void address(const uint8_t *data, size_t size)
{
	struct qmt_server_address in = {.length = (uint32_t)size}, out;
	char text[QMT_ADDRESS_TEXT_MAX];
	struct qmt_identity identity;

	memcpy(in.bytes, data, size < QMT_ADDRESS_MAX ? size : QMT_ADDRESS_MAX);
	for (int kind = QMT_KIND_TCP; kind <= QMT_KIND_SHM; kind++) {
		if (qmt_address_decode(&in, (enum qmt_kind)kind, &identity, text) != QMLA_OK)
			continue;
		check(qmt_address_encode(&identity, text, &out) == QMLA_OK);
		check(out.length == in.length && memcmp(out.bytes, in.bytes, in.length) == 0);
	}
}

static void handle(const uint8_t *data, size_t size)
{
	struct qmt_handle in = {.length = (uint32_t)size}, out;
	struct qmt_remote_region region;
	struct qmt_identity identity = {0};

	memcpy(in.bytes, data, size < QMT_HANDLE_MAX ? size : QMT_HANDLE_MAX);
	if (qmt_handle_decode(&in, &region) != QMLA_OK)
		return;
	identity.kind = region.kind;
	identity.incarnation = region.incarnation;
	qmt_handle_encode(&identity, region.region, region.bytes, &out);
	check(out.length == in.length && memcmp(out.bytes, in.bytes, in.length) == 0);
}

static void handshake(const uint8_t *data, size_t size)
{
	struct qmt_identity identity = {.kind = QMT_KIND_TCP, .incarnation = 1};
	struct qmt_wire_hello hello;
	struct qmt_wire_welcome welcome;

	if (size >= QMT_WIRE_HELLO_BYTES && qmt_wire_hello_decode(data, &hello) == QMLA_OK) {
		qmt_wire_judge(&hello, &identity, &welcome);
		check(welcome.status != QMLA_OK || hello.incarnation == 1);
	}
	if (size >= QMT_WIRE_WELCOME_BYTES)
		(void)qmt_wire_welcome_decode(data, &welcome);
}

static void messages(const uint8_t *data, size_t size, bool with_descriptor)
{
	struct qmt_wire_request requests[QMT_PACKET_MESSAGES];
	struct qmt_wire_reply replies[QMT_PACKET_MESSAGES];
	uint8_t out[QMT_WIRE_REQUEST_BYTES];
	size_t count;

	if (qmt_packet_requests(data, size, with_descriptor, requests, &count) == QMLA_OK) {
		for (size_t i = 0; i < count; i++) {
			qmt_wire_request_encode(&requests[i], out);
			check(memcmp(out, data + i * sizeof(out), sizeof(out)) == 0);
		}
	}
	if (qmt_packet_replies(data, size, with_descriptor, replies, &count) == QMLA_OK) {
		for (size_t i = 0; i < count; i++) {
			qmt_wire_reply_encode(&replies[i], out);
			check(memcmp(out, data + i * QMT_WIRE_REPLY_BYTES, QMT_WIRE_REPLY_BYTES) ==
			      0);
		}
	}
}

static void tcp_messages(const uint8_t *data, size_t size)
{
	struct qmt_wire_request request;
	struct qmt_wire_reply reply;

	if (size >= QMT_WIRE_REQUEST_BYTES &&
	    qmt_wire_request_decode(data, QMT_KIND_TCP, &request) == QMLA_OK)
		check(request.length > 0 && request.length <= QMT_LENGTH_MAX &&
		      request.staging == 0 && request.kind <= QMT_WIRE_WRITE);
	if (size >= QMT_WIRE_REPLY_BYTES &&
	    qmt_wire_reply_decode(data, QMT_KIND_TCP, &reply) == QMLA_OK)
		check(reply.length <= QMT_LENGTH_MAX && reply.region_bytes == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	bool with_descriptor;

	if (size < 1)
		return 0;
	with_descriptor = data[0] & 1;
	data++;
	size--;
	address(data, size);
	handle(data, size);
	handshake(data, size);
	messages(data, size, with_descriptor);
	tcp_messages(data, size);
	return 0;
}
