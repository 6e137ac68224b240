/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/packet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* CMSG_SPACE of one int is aligned up to two: the kernel may fill both. */
#define DESCRIPTORS_MAX 2

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
};

static enum qmt_packet_result failure(void)
{
	if (errno == EAGAIN || errno == EWOULDBLOCK)
		return QMT_PACKET_WAIT;
	return QMT_PACKET_CLOSED;
}

enum qmt_packet_result qmt_packet_send(int fd, const void *data, size_t bytes, int passed)
{
	union control control = {0};
	struct iovec iov = {(void *)(uintptr_t)data, bytes};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (passed >= 0) {
		struct cmsghdr *head;

		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(sizeof(int));
		head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &passed, sizeof(int));
	}
	do {
		n = sendmsg(fd, &message, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? failure() : QMT_PACKET_OK;
}

/* Collects what SCM_RIGHTS brought; returns how many there are. */
static size_t take_descriptors(struct msghdr *message, int fds[DESCRIPTORS_MAX])
{
	size_t count = 0;

	for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head;
	     head = CMSG_NXTHDR(message, head)) {
		size_t n;

		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		n = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		if (n > DESCRIPTORS_MAX - count)
			n = DESCRIPTORS_MAX - count;
		memcpy(fds + count, CMSG_DATA(head), n * sizeof(int));
		count += n;
	}
	return count;
}

enum qmt_packet_result qmt_packet_receive(int fd, void *data, size_t size, size_t *bytes,
					  int *passed)
{
	union control control = {0};
	struct iovec iov = {data, size};
	struct msghdr message = {.msg_iov = &iov,
				 .msg_iovlen = 1,
				 .msg_control = control.bytes,
				 .msg_controllen = sizeof(control.bytes)};
	int fds[DESCRIPTORS_MAX];
	size_t count;
	ssize_t n;

	do {
		n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return failure();
	count = take_descriptors(&message, fds);
	if (n == 0 || count > 1 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		while (count > 0)
			close(fds[--count]);
		errno = 0;
		return n == 0 ? QMT_PACKET_CLOSED : QMT_PACKET_BROKEN;
	}
	*bytes = (size_t)n;
	*passed = count ? fds[0] : -1;
	return QMT_PACKET_OK;
}

qmla_status_t qmt_packet_requests(const uint8_t *data, size_t bytes, bool with_descriptor,
				  struct qmt_wire_request *requests, size_t *out)
{
	size_t count = bytes / QMT_WIRE_REQUEST_BYTES;
	bool stage = false;

	if (count == 0 || count > QMT_PACKET_MESSAGES || bytes % QMT_WIRE_REQUEST_BYTES)
		return QMLA_ERR_FORMAT;
	for (size_t i = 0; i < count; i++) {
		qmla_status_t status = qmt_wire_request_decode(data + i * QMT_WIRE_REQUEST_BYTES,
							       QMT_KIND_SHM, &requests[i]);

		if (status != QMLA_OK)
			return status;
		stage |= requests[i].kind == QMT_WIRE_STAGE;
	}
	if (stage != with_descriptor || (stage && count != 1))
		return QMLA_ERR_FORMAT;
	*out = count;
	return QMLA_OK;
}

qmla_status_t qmt_packet_replies(const uint8_t *data, size_t bytes, bool with_descriptor,
				 struct qmt_wire_reply *replies, size_t *out)
{
	size_t count = bytes / QMT_WIRE_REPLY_BYTES;

	if (count == 0 || count > QMT_PACKET_MESSAGES || bytes % QMT_WIRE_REPLY_BYTES)
		return QMLA_ERR_FORMAT;
	for (size_t i = 0; i < count; i++) {
		qmla_status_t status = qmt_wire_reply_decode(data + i * QMT_WIRE_REPLY_BYTES,
							     QMT_KIND_SHM, &replies[i]);
		bool announces;

		if (status != QMLA_OK)
			return status;
		announces = i == count - 1 && with_descriptor;
		if ((replies[i].region_bytes > 0) != announces)
			return QMLA_ERR_FORMAT;
	}
	*out = count;
	return QMLA_OK;
}
