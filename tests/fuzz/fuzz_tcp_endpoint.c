/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real tcp endpoint against what a server may send. Byte 0 of the input: bit 0
 * puts a valid welcome first. Whatever comes, each of three ops comes back once
 * and nothing is written beside their memory.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/address.h"
#include "common/clock.h"
#include "common/log.h"
#include "transport/wire.h"

#define OPS   3
#define BYTES 100
#define GUARD 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
	int listen_fd;
	struct qmt_identity identity;
	struct qmt_server_address address;
	struct qmt_handle handle;
	const uint8_t *data; /* of this round */
	size_t size;
} server;

static void server_start(void)
{
	struct qmc_address address = {.host = "::1"};
	char text[QMC_ADDRESS_TEXT_MAX];

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	if (qmc_tcp_listen(&address, &server.listen_fd, &address.port) != QMLA_OK ||
	    qmt_identity_create(QMT_KIND_TCP, &server.identity) != QMLA_OK)
		abort();
	qmc_address_format(&address, text);
	if (qmt_address_encode(&server.identity, text, &server.address) != QMLA_OK)
		abort();
	qmt_handle_encode(&server.identity, 1, 1 << 20, &server.handle);
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
	uint8_t buffer[4096];
	int fd;

	(void)ignored;
	if (!comes(&pfd) || (fd = accept4(server.listen_fd, NULL, NULL, SOCK_CLOEXEC)) < 0)
		abort();
	qmt_wire_welcome_encode(&welcome, buffer);
	if (server.data[0] & 1)
		(void)send(fd, buffer, QMT_WIRE_WELCOME_BYTES, MSG_NOSIGNAL | MSG_MORE);
	(void)send(fd, server.data + 1, server.size - 1, MSG_NOSIGNAL);
	shutdown(fd, SHUT_WR);
	while (recv(fd, buffer, sizeof(buffer), 0) > 0)
		continue;
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
					 .local = memory[i],
					 .length = BYTES,
					 .deadline = qmc_clock_after(5 * QMC_NS_PER_S)};
		(void)qmt_tcp_ops.endpoint_post(endpoint, &ops[i]);
	}
	for (size_t i = 0; i < OPS; i++) {
		struct qmt_op *completed = NULL;

		if (qmt_tcp_ops.endpoint_wait(endpoint, QMC_TIME_NEVER, &completed) != QMLA_OK ||
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
	if (qmt_tcp_ops.endpoint_create(&server.address, qmc_clock_after(5 * QMC_NS_PER_S),
					&endpoint) == QMLA_OK)
		talk(endpoint);
	qmt_tcp_ops.endpoint_destroy(endpoint);
	pthread_join(thread, NULL);
	return 0;
}
