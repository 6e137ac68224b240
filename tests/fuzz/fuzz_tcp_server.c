/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real tcp server against what a peer may send. Byte 0 of the input: bit 0 puts
 * a valid handshake first. Whatever comes, the server finishes what it allowed,
 * stays inside its region and goes on serving.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/address.h"
#include "common/clock.h"
#include "transport/wire.h"
#include "transport_server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Within five seconds; libFuzzer's own alarm interrupts system calls. */
static bool comes(struct pollfd *pfd)
{
	qmc_time_t deadline = qmc_clock_after(5 * QMC_NS_PER_S);
	int n;

	do {
		n = poll(pfd, 1, qmc_clock_left_ms(deadline));
	} while (n < 0 && errno == EINTR);
	return n == 1;
}

static void drain_until_closed(int fd)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	uint8_t sink[8192];

	while (comes(&pfd)) {
		if (recv(fd, sink, sizeof(sink), 0) <= 0)
			return;
	}
	abort(); /* neither an answer nor the end */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char text[QMT_ADDRESS_TEXT_MAX];
	const struct qmt_identity *identity = victim_start("tcp", text);
	struct qmc_address address;
	int fd;

	if (size < 1 || size > 65536)
		return 0;
	if (qmc_address_parse(text, &address) != QMLA_OK ||
	    qmc_tcp_connect(&address, qmc_clock_after(5 * QMC_NS_PER_S), &fd) != QMLA_OK)
		abort();
	if (data[0] & 1) {
		struct qmt_wire_hello hello = {
			.version_min = 1, .version_max = 1, .incarnation = identity->incarnation};
		uint8_t out[QMT_WIRE_HELLO_BYTES];

		memcpy(hello.cookie, identity->cookie, QMT_COOKIE_BYTES);
		qmt_wire_hello_encode(&hello, out);
		(void)send(fd, out, sizeof(out), MSG_NOSIGNAL | MSG_MORE);
	}
	(void)send(fd, data + 1, size - 1, MSG_NOSIGNAL);
	shutdown(fd, SHUT_WR);
	drain_until_closed(fd);
	close(fd);
	victim_check();
	return 0;
}
