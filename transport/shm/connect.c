/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/connect.h"

#include <poll.h>
#include <unistd.h>

#include "transport/shm/packet.h"
#include "transport/shm/socket.h"

static qmla_status_t receive_welcome(int fd, qmc_time_t deadline,
				     uint8_t in[QMT_WIRE_WELCOME_BYTES])
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	enum qmt_packet_result result;
	size_t bytes = 0;
	int passed = -1;

	while ((result = qmt_packet_receive(fd, in, QMT_WIRE_WELCOME_BYTES, &bytes, &passed)) ==
	       QMT_PACKET_WAIT) {
		if (poll(&pfd, 1, qmc_clock_left_ms(deadline)) == 0)
			return QMLA_ERR_DEADLINE;
	}
	if (passed >= 0)
		close(passed);
	if (result != QMT_PACKET_OK)
		return QMLA_ERR_UNAVAILABLE;
	return bytes == QMT_WIRE_WELCOME_BYTES && passed < 0 ? QMLA_OK : QMLA_ERR_FORMAT;
}

static qmla_status_t shake_hands(int fd, const struct qmt_identity *identity, qmc_time_t deadline,
				 uint64_t *max_length)
{
	uint8_t out[QMT_WIRE_HELLO_BYTES], in[QMT_WIRE_WELCOME_BYTES];
	qmla_status_t status;

	qmt_wire_greet(identity, out);
	if (qmt_packet_send(fd, out, sizeof(out), -1) != QMT_PACKET_OK)
		return QMLA_ERR_UNAVAILABLE;
	status = receive_welcome(fd, deadline, in);
	return status == QMLA_OK ? qmt_wire_welcomed(in, identity, max_length) : status;
}

qmla_status_t qmt_shm_connect(const struct qmt_identity *identity, const char *path,
			      qmc_time_t deadline, int *out, uint64_t *max_length)
{
	int fd;
	qmla_status_t status = qmt_shm_socket_connect(path, deadline, &fd);

	if (status != QMLA_OK)
		return status;
	status = shake_hands(fd, identity, deadline, max_length);
	if (status != QMLA_OK) {
		close(fd);
		return status;
	}
	*out = fd;
	return QMLA_OK;
}
