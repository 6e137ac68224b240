/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/connect.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/address.h"
#include "common/status.h"
#include "transport/wire.h"

static qmla_status_t await_input(int fd, qmc_time_t deadline)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	int rc;

	do {
		rc = poll(&pfd, 1, qmc_clock_left_ms(deadline));
	} while (rc < 0 && errno == EINTR);
	if (rc < 0)
		return qmc_status_from_errno(errno);
	return rc == 0 ? QMLA_ERR_DEADLINE : QMLA_OK;
}

static qmla_status_t receive_exactly(int fd, uint8_t *to, size_t bytes, qmc_time_t deadline)
{
	size_t got = 0;

	while (got < bytes) {
		qmla_status_t status = await_input(fd, deadline);
		ssize_t n;

		if (status != QMLA_OK)
			return status;
		n = recv(fd, to + got, bytes - got, 0);
		if (n > 0)
			got += (size_t)n;
		else if (n == 0 || (errno != EAGAIN && errno != EINTR))
			return QMLA_ERR_UNAVAILABLE;
	}
	return QMLA_OK;
}

static qmla_status_t shake_hands(int fd, const struct qmt_identity *identity, qmc_time_t deadline,
				 uint64_t *max_length)
{
	uint8_t out[QMT_WIRE_HELLO_BYTES], in[QMT_WIRE_WELCOME_BYTES];
	qmla_status_t status;

	qmt_wire_greet(identity, out);
	/* A fresh connection's send buffer has room for it. */
	if (send(fd, out, sizeof(out), MSG_NOSIGNAL) != (ssize_t)sizeof(out))
		return QMLA_ERR_UNAVAILABLE;
	status = receive_exactly(fd, in, sizeof(in), deadline);
	return status == QMLA_OK ? qmt_wire_welcomed(in, identity, max_length) : status;
}

qmla_status_t qmt_tcp_connect(const struct qmt_identity *identity, const char *text,
			      qmc_time_t deadline, int *out, uint64_t *max_length)
{
	struct qmc_address address;
	qmla_status_t status = qmc_address_parse(text, &address);
	int fd;

	if (status != QMLA_OK)
		return status;
	status = qmc_tcp_connect(&address, deadline, &fd);
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
