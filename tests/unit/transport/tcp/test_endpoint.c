/* SPDX-License-Identifier: Apache-2.0 */
/* What a tcp endpoint does with a server that breaks the protocol. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/address.h"
#include "owner.h"
#include "transport/wire.h"

#define SIZE 5000

/* A server that a test writes by hand, one connection after the other. */
struct fake {
	int listen_fd, fd;
	struct qmt_identity identity;
	struct qmt_server_address address;
	struct qmt_handle handle;
	/* Said when a client has said hello, and when its first request is there. */
	uint8_t welcome[QMT_WIRE_WELCOME_BYTES];
	size_t welcome_bytes;
	uint8_t answer[QMT_WIRE_REPLY_BYTES * 2 + SIZE];
	size_t answer_bytes;
	bool early;   /* the answer is sent before the request is read */
	bool hang_up; /* right after the welcome */
	pthread_t thread;
};

static void fake_init(struct fake *fake)
{
	struct qmc_address address = {.host = "::1"};
	struct qmt_wire_welcome welcome = {.version = 1, .max_length = QMT_LENGTH_MAX};
	char text[QMC_ADDRESS_TEXT_MAX];

	memset(fake, 0, sizeof(*fake));
	fake->fd = -1;
	assert_int_equal(qmc_tcp_listen(&address, &fake->listen_fd, &address.port), QMLA_OK);
	assert_int_equal(qmt_identity_create(QMT_KIND_TCP, &fake->identity), QMLA_OK);
	qmc_address_format(&address, text);
	assert_int_equal(qmt_address_encode(&fake->identity, text, &fake->address), QMLA_OK);
	qmt_handle_encode(&fake->identity, 1, 1 << 20, &fake->handle);
	welcome.incarnation = fake->identity.incarnation;
	qmt_wire_welcome_encode(&welcome, fake->welcome);
	fake->welcome_bytes = sizeof(fake->welcome);
}

static void *fake_main(void *argument)
{
	struct fake *fake = argument;
	struct pollfd pfd = {.fd = fake->listen_fd, .events = POLLIN};
	uint8_t in[QMT_WIRE_REQUEST_BYTES];

	if (poll(&pfd, 1, 5000) != 1)
		return NULL;
	fake->fd = accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (fake->fd < 0 || !hear(fake->fd, in, QMT_WIRE_HELLO_BYTES) ||
	    !tell(fake->fd, fake->welcome, fake->welcome_bytes))
		return NULL;
	if (fake->hang_up)
		shutdown(fake->fd, SHUT_RDWR);
	if (fake->answer_bytes == 0)
		return NULL;
	if (!fake->early && !hear(fake->fd, in, sizeof(in)))
		return NULL;
	(void)tell(fake->fd, fake->answer, fake->answer_bytes);
	return NULL;
}

static void fake_start(struct fake *fake)
{
	assert_int_equal(pthread_create(&fake->thread, NULL, fake_main, fake), 0);
}

/* The server has said all that it will, and goes. */
static void fake_close(struct fake *fake)
{
	pthread_join(fake->thread, NULL);
	if (fake->fd >= 0)
		close(fake->fd);
	fake->fd = -1;
}

static qmla_status_t connect_to(struct fake *fake, struct qmt_endpoint **endpoint)
{
	return qmt_tcp_ops.endpoint_create(&fake->address, qmc_clock_after(5 * QMC_NS_PER_S),
					   endpoint);
}

static void bad_welcomes_are_refused(void **state)
{
	static const struct {
		size_t at;
		uint8_t value;
		size_t bytes;
		qmla_status_t status;
	} cases[] = {
		{0, 'X', QMT_WIRE_WELCOME_BYTES, QMLA_ERR_FORMAT},
		{4, 2, QMT_WIRE_WELCOME_BYTES, QMLA_ERR_FORMAT},  /* a version nobody offered */
		{8, 3, QMT_WIRE_WELCOME_BYTES, QMLA_ERR_FORMAT},  /* no status of ours */
		{27, 0, QMT_WIRE_WELCOME_BYTES, QMLA_ERR_FORMAT}, /* no length allowed */
		{0, 'Q', QMT_WIRE_WELCOME_BYTES - 1, QMLA_ERR_UNAVAILABLE},
		{0, 'Q', 0, QMLA_ERR_UNAVAILABLE},
	};
	struct fake fake;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct qmt_endpoint *endpoint = NULL;

		fake_init(&fake);
		fake.welcome[cases[i].at] = cases[i].value;
		fake.welcome_bytes = cases[i].bytes;
		fake.hang_up = true;
		fake_start(&fake);
		assert_int_equal(connect_to(&fake, &endpoint), cases[i].status);
		assert_null(endpoint);
		fake_close(&fake);
		close(fake.listen_fd);
	}
}

static void another_life_is_noticed(void **state)
{
	struct fake fake;
	struct qmt_endpoint *endpoint = NULL;

	(void)state;
	fake_init(&fake);
	fake.welcome[16] ^= 1;
	fake_start(&fake);
	assert_int_equal(connect_to(&fake, &endpoint), QMLA_ERR_PEER_RESTARTED);
	fake_close(&fake);
	close(fake.listen_fd);
}

/* One read (or write) against one hand-made answer; returns the op's status. */
static qmla_status_t meet(struct fake *fake, enum qmt_access access, bool *alive)
{
	uint8_t local[SIZE + 8];
	struct qmt_endpoint *endpoint = NULL;
	struct qmt_op op = {.access = access,
			    .remote = &fake->handle,
			    .local = local,
			    .length = SIZE,
			    .deadline = qmc_clock_after(3 * QMC_NS_PER_S)};
	qmla_status_t status;

	memset(local, 0x5a, sizeof(local));
	fake_start(fake);
	assert_int_equal(connect_to(fake, &endpoint), QMLA_OK);
	assert_int_equal(qmt_tcp_ops.endpoint_post(endpoint, &op), QMLA_OK);
	{
		struct qmt_op *completed = NULL;

		/* Sends the request, and lets the answer come and the server go. */
		(void)qmt_tcp_ops.endpoint_wait(endpoint, qmc_clock_after(30 * QMC_NS_PER_MS),
						&completed);
		fake_close(fake);
		if (!completed)
			assert_int_equal(
				qmt_tcp_ops.endpoint_wait(endpoint, QMC_TIME_NEVER, &completed),
				QMLA_OK);
		assert_ptr_equal(completed, &op);
	}
	status = op.status;
	*alive = qmt_tcp_ops.endpoint_alive(endpoint);
	for (size_t i = SIZE; i < sizeof(local); i++)
		assert_int_equal(local[i], 0x5a);
	qmt_tcp_ops.endpoint_destroy(endpoint);
	close(fake->listen_fd);
	return status;
}

static void answer_with(struct fake *fake, struct qmt_wire_reply reply, size_t payload)
{
	fake_init(fake);
	qmt_wire_reply_encode(&reply, fake->answer);
	fake->answer_bytes = QMT_WIRE_REPLY_BYTES + payload;
}

static void good_answers_are_taken(void **state)
{
	struct qmt_wire_reply read = {.kind = QMT_WIRE_READ, .length = SIZE};
	struct qmt_wire_reply refusal = {.kind = QMT_WIRE_READ, .status = QMLA_ERR_STALE};
	struct fake fake;
	bool alive;

	(void)state;
	answer_with(&fake, read, SIZE);
	assert_int_equal(meet(&fake, QMT_READ, &alive), QMLA_OK);
	answer_with(&fake, refusal, 0);
	assert_int_equal(meet(&fake, QMT_READ, &alive), QMLA_ERR_STALE);
	assert_false(alive); /* the server hung up after its answer */
}

static void bad_answers_end_the_endpoint(void **state)
{
	static const struct {
		struct qmt_wire_reply reply;
		size_t payload;
		enum qmt_access access;
		bool early;
	} cases[] = {
		/* another id, kind or length than asked */
		{{.kind = QMT_WIRE_READ, .id = 1, .length = SIZE}, SIZE, QMT_READ, false},
		{{.kind = QMT_WIRE_WRITE, .length = SIZE}, SIZE, QMT_READ, false},
		{{.kind = QMT_WIRE_READ, .length = SIZE - 1}, SIZE - 1, QMT_READ, false},
		{{.kind = QMT_WIRE_READ, .length = SIZE + 8}, SIZE, QMT_READ, false},
		/* no reply at all */
		{{.kind = (enum qmt_wire_kind)7, .length = SIZE}, SIZE, QMT_READ, false},
		/* truncated bytes */
		{{.kind = QMT_WIRE_READ, .length = SIZE}, SIZE - 1, QMT_READ, false},
		{{.kind = QMT_WIRE_READ, .length = SIZE}, 0, QMT_READ, false},
		/* before anything was asked */
		{{.kind = QMT_WIRE_READ, .id = 99, .length = SIZE}, SIZE, QMT_READ, true},
		{{.kind = QMT_WIRE_WRITE, .id = 1, .length = SIZE}, 0, QMT_WRITE, false},
	};
	struct fake fake;
	bool alive;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		answer_with(&fake, cases[i].reply, cases[i].payload);
		fake.early = cases[i].early;
		assert_int_equal(meet(&fake, cases[i].access, &alive), QMLA_ERR_UNAVAILABLE);
		assert_false(alive);
	}
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, remember_descriptors, check_descriptors)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(bad_welcomes_are_refused),
		CASE(another_life_is_noticed),
		CASE(good_answers_are_taken),
		CASE(bad_answers_end_the_endpoint),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
