/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/mailbox.h"

#include <unistd.h>

#define DUE_BYTES (UINT64_C(2) << 20)

size_t qmt_outbox_room(const struct qmt_outbox *outbox)
{
	return (sizeof(outbox->data) - outbox->bytes) / QMT_WIRE_REQUEST_BYTES;
}

void qmt_outbox_add(struct qmt_outbox *outbox, const struct qmt_wire_request *request,
		    uint64_t moved)
{
	qmt_wire_request_encode(request, outbox->data + outbox->bytes);
	outbox->bytes += QMT_WIRE_REQUEST_BYTES;
	outbox->weight += moved;
	outbox->requests += request->kind != QMT_WIRE_DONE;
}

bool qmt_outbox_is_due(const struct qmt_outbox *outbox)
{
	return outbox->weight >= DUE_BYTES || outbox->bytes == sizeof(outbox->data);
}

enum qmt_packet_result qmt_outbox_send(struct qmt_outbox *outbox, int fd)
{
	enum qmt_packet_result result;

	if (outbox->bytes == 0)
		return QMT_PACKET_OK;
	result = qmt_packet_send(fd, outbox->data, outbox->bytes, -1);
	if (result == QMT_PACKET_OK)
		outbox->bytes = outbox->weight = outbox->requests = 0;
	return result;
}

void qmt_inbox_init(struct qmt_inbox *inbox)
{
	*inbox = (struct qmt_inbox){.passed = -1};
}

void qmt_inbox_fini(struct qmt_inbox *inbox)
{
	if (inbox->passed >= 0)
		close(inbox->passed);
	qmt_inbox_init(inbox);
}

static enum qmt_packet_result receive(struct qmt_inbox *inbox, int fd)
{
	uint8_t in[QMT_PACKET_MESSAGES * QMT_WIRE_REPLY_BYTES];
	size_t bytes = 0, count;
	enum qmt_packet_result result;

	qmt_inbox_fini(inbox);
	result = qmt_packet_receive(fd, in, sizeof(in), &bytes, &inbox->passed);
	if (result != QMT_PACKET_OK)
		return result;
	if (qmt_packet_replies(in, bytes, inbox->passed >= 0, inbox->replies, &count) != QMLA_OK)
		return QMT_PACKET_BROKEN;
	inbox->count = count;
	return QMT_PACKET_OK;
}

enum qmt_packet_result qmt_inbox_peek(struct qmt_inbox *inbox, int fd,
				      const struct qmt_wire_reply **reply)
{
	if (inbox->next == inbox->count) {
		enum qmt_packet_result result = receive(inbox, fd);

		if (result != QMT_PACKET_OK)
			return result;
	}
	*reply = &inbox->replies[inbox->next];
	return QMT_PACKET_OK;
}
