/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real shm server against what a peer may send. The input is a list of packets:
 * a byte of flags (bit 0: a sealed memfd comes along, bit 1: an unsealed one),
 * a byte n, then n × 16 bytes. Byte 0 of the input: bit 0 puts a valid handshake first.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "transport/shm/packet.h"
#include "transport/shm/socket.h"
#include "transport_server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int memfd(bool sealed)
{
	static int fds[2] = {-1, -1};

	if (fds[sealed] < 0) {
		fds[sealed] = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		if (fds[sealed] < 0 || ftruncate(fds[sealed], 8192) ||
		    (sealed && fcntl(fds[sealed], F_ADD_SEALS, F_SEAL_SHRINK)))
			abort();
	}
	return fds[sealed];
}

static void say_hello(int fd, const struct qmt_identity *identity)
{
	struct qmt_wire_hello hello = {
		.version_min = 1, .version_max = 1, .incarnation = identity->incarnation};
	uint8_t out[QMT_WIRE_HELLO_BYTES];

	memcpy(hello.cookie, identity->cookie, QMT_COOKIE_BYTES);
	qmt_wire_hello_encode(&hello, out);
	(void)qmt_packet_send(fd, out, sizeof(out), -1);
}

static void send_packets(int fd, const uint8_t *data, size_t size)
{
	while (size > 2) {
		size_t bytes = (size_t)data[1] * 16;
		int passed = data[0] & 1 ? memfd(true) : data[0] & 2 ? memfd(false) : -1;

		data += 2;
		size -= 2;
		if (bytes == 0 || bytes > size)
			bytes = size;
		if (qmt_packet_send(fd, data, bytes, passed) != QMT_PACKET_OK)
			return;
		data += bytes;
		size -= bytes;
	}
}

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

/* Takes the answers; what comes along is closed. Ends when the server closed, too. */
static void drain_until_closed(int fd)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	uint8_t in[QMT_PACKET_BYTES];
	size_t bytes;
	int passed;

	shutdown(fd, SHUT_WR);
	while (comes(&pfd)) {
		if (qmt_packet_receive(fd, in, sizeof(in), &bytes, &passed) != QMT_PACKET_OK)
			return;
		if (passed >= 0)
			close(passed);
	}
	abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char path[QMT_ADDRESS_TEXT_MAX];
	const struct qmt_identity *identity = victim_start("shm", path);
	int fd;

	if (size < 1 || size > 65536)
		return 0;
	if (qmt_shm_socket_connect(path, qmc_clock_after(5 * QMC_NS_PER_S), &fd) != QMLA_OK)
		abort();
	if (data[0] & 1)
		say_hello(fd, identity);
	send_packets(fd, data + 1, size - 1);
	drain_until_closed(fd);
	close(fd);
	victim_check();
	return 0;
}
