/* SPDX-License-Identifier: Apache-2.0 */
/* What a tcp server does with peers that break the protocol, stall or come in crowds. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/address.h"
#include "owner.h"
#include "transport/wire.h"

#define MIB  (UINT64_C(1) << 20)
#define IDLE (300 * QMC_NS_PER_MS)

/* A connection to the server's port, with nothing said. */
static int raw_connect(const struct owner *owner)
{
	char text[QMT_ADDRESS_TEXT_MAX];
	struct qmt_identity identity;
	struct qmc_address address;
	int fd = -1;

	assert_int_equal(qmt_address_decode(&owner->address, QMT_KIND_TCP, &identity, text),
			 QMLA_OK);
	assert_int_equal(qmc_address_parse(text, &address), QMLA_OK);
	assert_int_equal(qmc_tcp_connect(&address, qmc_clock_after(5 * QMC_NS_PER_S), &fd),
			 QMLA_OK);
	return fd;
}

static struct qmt_wire_hello hello_of(const struct owner *owner)
{
	struct qmt_wire_hello hello = {.version_min = 1, .version_max = 1};
	char text[QMT_ADDRESS_TEXT_MAX];
	struct qmt_identity identity;

	assert_int_equal(qmt_address_decode(&owner->address, QMT_KIND_TCP, &identity, text),
			 QMLA_OK);
	hello.incarnation = identity.incarnation;
	memcpy(hello.cookie, identity.cookie, QMT_COOKIE_BYTES);
	return hello;
}

static qmla_status_t say_hello(int fd, const struct qmt_wire_hello *hello)
{
	uint8_t out[QMT_WIRE_HELLO_BYTES], in[QMT_WIRE_WELCOME_BYTES];
	struct qmt_wire_welcome welcome;

	qmt_wire_hello_encode(hello, out);
	assert_true(tell(fd, out, sizeof(out)));
	assert_true(hear(fd, in, sizeof(in)));
	assert_int_equal(qmt_wire_welcome_decode(in, &welcome), QMLA_OK);
	return welcome.status;
}

static int raw_peer(const struct owner *owner)
{
	struct qmt_wire_hello hello = hello_of(owner);
	int fd = raw_connect(owner);

	assert_int_equal(say_hello(fd, &hello), QMLA_OK);
	return fd;
}

static void raw_ask(int fd, enum qmt_wire_kind kind, uint64_t offset, uint64_t length)
{
	struct qmt_wire_request request = {
		.kind = kind, .id = 5, .region = OWNER_REGION, .offset = offset, .length = length};
	uint8_t out[QMT_WIRE_REQUEST_BYTES];

	memset(request.capability, 1, sizeof(request.capability));
	qmt_wire_request_encode(&request, out);
	assert_true(tell(fd, out, sizeof(out)));
}

static qmla_status_t raw_reply(int fd)
{
	uint8_t in[QMT_WIRE_REPLY_BYTES];
	struct qmt_wire_reply reply;

	assert_true(hear(fd, in, sizeof(in)));
	assert_int_equal(qmt_wire_reply_decode(in, QMT_KIND_TCP, &reply), QMLA_OK);
	assert_int_equal(reply.id, 5);
	return reply.status;
}

/* True when the server closes the connection within @ms; what it sent is thrown away. */
static bool is_dropped(int fd, int ms)
{
	qmc_time_t deadline = qmc_clock_after(ms * QMC_NS_PER_MS);
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	uint8_t sink[65536];

	while (poll(&pfd, 1, qmc_clock_left_ms(deadline)) == 1) {
		if (recv(fd, sink, sizeof(sink), 0) <= 0)
			return true;
	}
	return false;
}

/* The server still serves. */
static void assert_serving(struct owner *owner)
{
	struct qmt_endpoint *endpoint = owner_connect(owner);
	uint8_t byte = 0;
	struct qmt_op op = owner_op(owner, QMT_READ, 0, &byte, 1);

	memset(op.capability, 3, sizeof(op.capability)); /* not the one that tests fence */
	assert_int_equal(qmt_endpoint_run(owner->ops, endpoint, &op, 1), QMLA_OK);
	owner->ops->endpoint_destroy(endpoint);
}

static void await_in_flight(struct owner *owner)
{
	for (int i = 0; i < 5000 && owner_in_flight(owner) == 0; i++)
		sleep_ms(1);
	sleep_ms(30);
	assert_int_equal(owner_in_flight(owner), 1);
}

static void random_bytes_drop_the_connection(void **state)
{
	struct owner owner;
	uint8_t noise[4096];

	(void)state;
	owner_start(&owner, "tcp", MIB);
	for (uint64_t seed = 0; seed < 50; seed++) {
		int fd = seed % 2 ? raw_peer(&owner) : raw_connect(&owner);

		fill_pattern(noise, sizeof(noise), seed);
		(void)tell(fd, noise, sizeof(noise));
		assert_true(is_dropped(fd, 5000));
		close(fd);
	}
	assert_int_equal(owner_snapshot(&owner).asked, 0);
	assert_serving(&owner);
	owner_stop(&owner);
}

static void impossible_requests_drop_the_connection(void **state)
{
	static const struct {
		unsigned kind;
		uint64_t length;
	} cases[] = {{QMT_WIRE_READ, 0},
		     {QMT_WIRE_WRITE, 0},
		     {QMT_WIRE_READ, (UINT64_C(1) << 30) + 1},
		     {QMT_WIRE_WRITE, UINT64_MAX},
		     {QMT_WIRE_DONE, 0},
		     {QMT_WIRE_STAGE, 4096},
		     {9, 1}};
	struct owner owner;

	(void)state;
	owner_start(&owner, "tcp", MIB);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int fd = raw_peer(&owner);

		raw_ask(fd, (enum qmt_wire_kind)cases[i].kind, 0, cases[i].length);
		assert_true(is_dropped(fd, 5000));
		close(fd);
	}
	assert_int_equal(owner_snapshot(&owner).asked, 0);
	assert_serving(&owner);
	owner_stop(&owner);
}

static void truncated_messages_are_forgotten(void **state)
{
	struct owner owner;
	uint8_t out[QMT_WIRE_REQUEST_BYTES] = {QMT_WIRE_READ};

	(void)state;
	owner_start(&owner, "tcp", MIB);
	for (size_t bytes = 1; bytes < QMT_WIRE_REQUEST_BYTES; bytes += 9) {
		int fd = raw_peer(&owner);

		assert_true(tell(fd, out, bytes));
		close(fd);
		fd = raw_connect(&owner);
		assert_true(tell(fd, "QMT1", bytes < 4 ? bytes : 4));
		close(fd);
	}
	assert_serving(&owner);
	assert_int_equal(owner_snapshot(&owner).asked, 1);
	owner_stop(&owner);
}

static void a_refused_write_is_read_past(void **state)
{
	struct owner owner;
	uint8_t *bytes = malloc(MIB), *before = malloc(MIB);
	int fd;

	(void)state;
	owner_start(&owner, "tcp", MIB);
	fill_pattern(owner.memory.base, MIB, 1);
	memcpy(before, owner.memory.base, MIB);
	memset(bytes, 0xaa, MIB);
	fd = raw_peer(&owner);
	/* offset + length wraps to a small number; then one byte too many. */
	raw_ask(fd, QMT_WIRE_WRITE, UINT64_MAX - 999, 1000);
	assert_true(tell(fd, bytes, 1000));
	assert_int_equal(raw_reply(fd), QMLA_ERR_INVALID_ARGUMENT);
	raw_ask(fd, QMT_WIRE_WRITE, 1, MIB);
	assert_true(tell(fd, bytes, MIB));
	assert_int_equal(raw_reply(fd), QMLA_ERR_INVALID_ARGUMENT);
	assert_memory_equal(owner.memory.base, before, MIB);
	raw_ask(fd, QMT_WIRE_WRITE, 0, MIB);
	assert_true(tell(fd, bytes, MIB));
	assert_int_equal(raw_reply(fd), QMLA_OK);
	assert_memory_equal(owner.memory.base, bytes, MIB);
	close(fd);
	owner_stop(&owner);
	free(bytes);
	free(before);
}

static void other_versions_are_told_so(void **state)
{
	struct owner owner;
	struct qmt_wire_hello hello;
	int fd;

	(void)state;
	owner_start(&owner, "tcp", MIB);
	hello = hello_of(&owner);
	hello.version_min = hello.version_max = 2;
	fd = raw_connect(&owner);
	assert_int_equal(say_hello(fd, &hello), QMLA_ERR_UNSUPPORTED);
	assert_true(is_dropped(fd, 5000));
	close(fd);
	hello.version_min = 1;
	fd = raw_connect(&owner);
	assert_int_equal(say_hello(fd, &hello), QMLA_OK);
	close(fd);
	owner_stop(&owner);
}

static void who_stalls_inside_a_message_is_dropped(void **state)
{
	struct owner owner;
	uint8_t bytes[1000] = {QMT_WIRE_READ};
	int silent, header, payload, reader;
	qmc_time_t begin = qmc_clock_now();

	(void)state;
	owner_start_with(&owner, "tcp", 32 * MIB, 0, IDLE);
	silent = raw_connect(&owner);
	header = raw_peer(&owner);
	assert_true(tell(header, bytes, 17));
	payload = raw_peer(&owner);
	raw_ask(payload, QMT_WIRE_WRITE, 0, 100000);
	assert_true(tell(payload, bytes, sizeof(bytes)));
	reader = raw_peer(&owner);
	raw_ask(reader, QMT_WIRE_READ, 0, 32 * MIB); /* and never reads the answer */
	assert_true(is_dropped(silent, 5000));
	assert_true(is_dropped(header, 5000));
	assert_true(is_dropped(payload, 5000));
	assert_true(owner_settles(&owner, 5000));
	assert_in_range(qmc_clock_now() - begin, IDLE, 30 * IDLE);
	assert_int_equal(owner_snapshot(&owner).finished_failed, 2);
	assert_int_equal(owner_snapshot(&owner).last_finished, QMLA_ERR_DEADLINE);
	close(silent);
	close(header);
	close(payload);
	close(reader);
	owner_stop(&owner);
}

static void trickled_bytes_do_not_keep_a_message_alive(void **state)
{
	struct owner owner;
	uint8_t byte = 1;
	bool dropped = false;
	int fd;

	(void)state;
	owner_start_with(&owner, "tcp", MIB, 0, IDLE);
	fd = raw_peer(&owner);
	raw_ask(fd, QMT_WIRE_WRITE, 0, 10000);
	for (int i = 0; i < 100 && !dropped; i++) {
		(void)send(fd, &byte, 1, MSG_NOSIGNAL);
		dropped = is_dropped(fd, 30);
	}
	assert_true(dropped);
	close(fd);
	owner_stop(&owner);
}

static void silence_between_messages_is_fine(void **state)
{
	struct owner owner;
	uint8_t byte;
	int fd;

	(void)state;
	owner_start_with(&owner, "tcp", MIB, 0, 100 * QMC_NS_PER_MS);
	fd = raw_peer(&owner);
	raw_ask(fd, QMT_WIRE_READ, 0, 1);
	assert_int_equal(raw_reply(fd), QMLA_OK);
	assert_true(hear(fd, &byte, 1));
	assert_false(is_dropped(fd, 500));
	raw_ask(fd, QMT_WIRE_READ, 0, 1);
	assert_int_equal(raw_reply(fd), QMLA_OK);
	close(fd);
	owner_stop(&owner);
}

static void a_fence_stops_a_write_and_spares_the_connection(void **state)
{
	struct owner owner;
	uint8_t *bytes = malloc(MIB);
	uint8_t capability[QMT_CAPABILITY_BYTES];
	int fd;

	(void)state;
	owner_start(&owner, "tcp", MIB);
	memset(bytes, 0xaa, MIB);
	memset(capability, 1, sizeof(capability));
	fd = raw_peer(&owner);
	raw_ask(fd, QMT_WIRE_WRITE, 0, MIB);
	assert_true(tell(fd, bytes, MIB / 2));
	await_in_flight(&owner);
	assert_int_equal(owner.ops->server_fence(owner.server, capability), QMLA_OK);
	assert_int_equal(owner_in_flight(&owner), 0);
	assert_int_equal(owner_snapshot(&owner).last_finished, QMLA_ERR_PERMISSION);
	memset(owner.memory.base, 0x77, MIB); /* the slot's next user */
	assert_true(tell(fd, bytes, MIB / 2));
	assert_int_equal(raw_reply(fd), QMLA_ERR_PERMISSION);
	for (size_t i = 0; i < MIB; i++)
		assert_int_equal(((uint8_t *)owner.memory.base)[i], 0x77);
	/* A new try with the fenced capability is refused, though authorize would allow it. */
	raw_ask(fd, QMT_WIRE_WRITE, 0, 10);
	assert_true(tell(fd, bytes, 10));
	assert_int_equal(raw_reply(fd), QMLA_ERR_PERMISSION);
	assert_int_equal(owner_snapshot(&owner).asked, 1);
	close(fd);
	owner_stop(&owner);
	free(bytes);
}

static void a_fence_inside_a_read_drops_the_connection(void **state)
{
	struct owner owner;
	uint8_t capability[QMT_CAPABILITY_BYTES];
	int fd;

	(void)state;
	owner_start(&owner, "tcp", 32 * MIB);
	memset(capability, 1, sizeof(capability));
	fd = raw_peer(&owner);
	raw_ask(fd, QMT_WIRE_READ, 0, 32 * MIB);
	await_in_flight(&owner);
	assert_int_equal(owner.ops->server_fence(owner.server, capability), QMLA_OK);
	assert_int_equal(owner_in_flight(&owner), 0);
	assert_true(is_dropped(fd, 5000));
	close(fd);
	assert_serving(&owner);
	owner_stop(&owner);
}

/* Whoever has not shaken hands cannot keep out those who do. */
static void a_silent_crowd_goes_away(void **state)
{
	enum { CROWD = 200 };
	struct owner owner;
	struct qmt_endpoint *endpoint = NULL;
	int fds[CROWD];
	qmla_status_t status = QMLA_ERR_UNAVAILABLE;

	(void)state;
	owner_start_with(&owner, "tcp", MIB, 0, IDLE);
	for (size_t i = 0; i < CROWD; i++)
		fds[i] = raw_connect(&owner);
	for (int i = 0; i < 100 && status != QMLA_OK; i++) {
		status = owner.ops->endpoint_create(&owner.address, qmc_clock_after(QMC_NS_PER_S),
						    &endpoint);
		if (status != QMLA_OK)
			sleep_ms(20);
	}
	assert_int_equal(status, QMLA_OK);
	owner.ops->endpoint_destroy(endpoint);
	for (size_t i = 0; i < CROWD; i++)
		close(fds[i]);
	owner_stop(&owner);
}

static void running_out_of_descriptors_is_survived(void **state)
{
	struct owner owner;
	struct rlimit limit, low;
	struct qmt_wire_hello hello;
	int fd, spare;

	(void)state;
	owner_start(&owner, "tcp", MIB);
	hello = hello_of(&owner);
	/* The next descriptor is over the limit, for the server too. */
	spare = fcntl(0, F_DUPFD_CLOEXEC, 0);
	close(spare);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = limit;
	low.rlim_cur = (rlim_t)spare + 1;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	fd = raw_connect(&owner);
	sleep_ms(250);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(say_hello(fd, &hello), QMLA_OK);
	close(fd);
	assert_serving(&owner);
	owner_stop(&owner);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, remember_descriptors, check_descriptors)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(random_bytes_drop_the_connection),
		CASE(impossible_requests_drop_the_connection),
		CASE(truncated_messages_are_forgotten),
		CASE(a_refused_write_is_read_past),
		CASE(other_versions_are_told_so),
		CASE(who_stalls_inside_a_message_is_dropped),
		CASE(trickled_bytes_do_not_keep_a_message_alive),
		CASE(silence_between_messages_is_fine),
		CASE(a_fence_stops_a_write_and_spares_the_connection),
		CASE(a_fence_inside_a_read_drops_the_connection),
		CASE(a_silent_crowd_goes_away),
		CASE(running_out_of_descriptors_is_survived),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
