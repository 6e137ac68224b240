/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real shm endpoint against what a server may send. The input is a list of
 * packets: a byte of flags (bit 0: a sealed memfd comes along), a byte n, then
 * n × 16 bytes. Byte 0 of the input: bit 0 puts a valid welcome first.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "transport/shm/packet.h"
#include "transport/shm/socket.h"

#define OPS   3
#define BYTES 100
#define GUARD 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
	int listen_fd, memory_fd;
	struct qmt_identity identity;
	struct qmt_server_address address;
	struct qmt_handle handle;
	char directory[32], path[QMT_ADDRESS_TEXT_MAX];
	const uint8_t *data; /* of this round */
	size_t size;
} server = {.directory = "/tmp/qmt-fuzz-XXXXXX"};

static void leave(void)
{
	unlink(server.path);
	rmdir(server.directory);
}

static void server_start(void)
{
	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	server.memory_fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (server.memory_fd < 0 || ftruncate(server.memory_fd, 65536) ||
	    fcntl(server.memory_fd, F_ADD_SEALS, F_SEAL_SHRINK) || !mkdtemp(server.directory) ||
	    qmt_shm_socket_listen(server.directory, &server.listen_fd, server.path) != QMLA_OK ||
	    qmt_identity_create(QMT_KIND_SHM, &server.identity) != QMLA_OK ||
	    qmt_address_encode(&server.identity, server.path, &server.address) != QMLA_OK)
		abort();
	qmt_handle_encode(&server.identity, 1, 1 << 20, &server.handle);
	atexit(leave);
}

static void send_packets(int fd, const uint8_t *data, size_t size)
{
	while (size > 2) {
		size_t bytes = (size_t)data[1] * 16;
		int passed = data[0] & 1 ? server.memory_fd : -1;

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

static void *server_round(void *ignored)
{
	struct qmt_wire_welcome welcome = {.version = 1,
					   .incarnation = server.identity.incarnation,
					   .max_length = QMT_LENGTH_MAX};
	struct pollfd pfd = {.fd = server.listen_fd, .events = POLLIN};
	uint8_t buffer[QMT_PACKET_BYTES];
	size_t bytes;
	int fd, passed;

	(void)ignored;
	if (!comes(&pfd) ||
	    (fd = accept4(server.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) < 0)
		abort();
	qmt_wire_welcome_encode(&welcome, buffer);
	if (server.data[0] & 1)
		(void)qmt_packet_send(fd, buffer, QMT_WIRE_WELCOME_BYTES, -1);
	send_packets(fd, server.data + 1, server.size - 1);
	shutdown(fd, SHUT_WR);
	pfd.fd = fd;
	while (comes(&pfd) &&
	       qmt_packet_receive(fd, buffer, sizeof(buffer), &bytes, &passed) == QMT_PACKET_OK) {
		if (passed >= 0)
			close(passed);
	}
	close(fd);
	return NULL;
}

static void talk(struct qmt_endpoint *endpoint)
{
	uint8_t memory[OPS][BYTES + GUARD];
	struct qmt_op ops[OPS];

	memset(memory, 0xc3, sizeof(memory));
	for (size_t i = 0; i < OPS; i++) {
		ops[i] = (struct qmt_op){.access = i == 1 ? QMT_WRITE : QMT_READ,
					 .remote = &server.handle,
					 .remote_offset = i * 65536,
					 .local = memory[i],
					 .length = BYTES,
					 .deadline = qmc_clock_after(5 * QMC_NS_PER_S)};
		(void)qmt_shm_ops.endpoint_post(endpoint, &ops[i]);
	}
	for (size_t i = 0; i < OPS; i++) {
		struct qmt_op *completed = NULL;

		if (qmt_shm_ops.endpoint_wait(endpoint, QMC_TIME_NEVER, &completed) != QMLA_OK ||
		    !completed)
			abort();
	}
	/* The server has said its last word: nothing waits for a deadline. */
	if (qmc_clock_left(ops[0].deadline) == 0)
		abort();
	for (size_t i = 0; i < OPS; i++) {
		for (size_t j = BYTES; j < BYTES + GUARD; j++) {
			if (memory[i][j] != 0xc3)
				abort();
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct qmt_endpoint *endpoint = NULL;
	pthread_t thread;

	if (size < 1 || size > 4096)
		return 0;
	if (!server.address.length)
		server_start();
	server.data = data;
	server.size = size;
	if (pthread_create(&thread, NULL, server_round, NULL))
		abort();
	if (qmt_shm_ops.endpoint_create(&server.address, qmc_clock_after(5 * QMC_NS_PER_S),
					&endpoint) == QMLA_OK)
		talk(endpoint);
	qmt_shm_ops.endpoint_destroy(endpoint);
	pthread_join(thread, NULL);
	return 0;
}
