/* SPDX-License-Identifier: Apache-2.0 */
/* What a shm server does with peers that break the protocol, and what they can reach. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "owner.h"
#include "transport/queue.h"
#include "transport/shm/memory.h"
#include "transport/shm/packet.h"
#include "transport/shm/socket.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define MIB  (UINT64_C(1) << 20)
#define IDLE (300 * QMC_NS_PER_MS)

static bool packet_comes(int fd, int ms)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};

	return poll(&pfd, 1, ms) == 1;
}

/* A connection that has said nothing. */
static int raw_connect(const struct owner *owner, struct qmt_identity *identity)
{
	char path[QMT_ADDRESS_TEXT_MAX];
	int fd = -1;

	assert_int_equal(qmt_address_decode(&owner->address, QMT_KIND_SHM, identity, path),
			 QMLA_OK);
	assert_int_equal(qmt_shm_socket_connect(path, qmc_clock_after(5 * QMC_NS_PER_S), &fd),
			 QMLA_OK);
	return fd;
}

static int raw_peer(const struct owner *owner)
{
	struct qmt_wire_hello hello = {.version_min = 1, .version_max = 1};
	uint8_t out[QMT_WIRE_HELLO_BYTES], in[QMT_WIRE_WELCOME_BYTES];
	struct qmt_wire_welcome welcome;
	struct qmt_identity identity;
	int fd = raw_connect(owner, &identity), passed = -1;
	size_t bytes = 0;

	hello.incarnation = identity.incarnation;
	memcpy(hello.cookie, identity.cookie, QMT_COOKIE_BYTES);
	qmt_wire_hello_encode(&hello, out);
	assert_int_equal(qmt_packet_send(fd, out, sizeof(out), -1), QMT_PACKET_OK);
	assert_true(packet_comes(fd, 5000));
	assert_int_equal(qmt_packet_receive(fd, in, sizeof(in), &bytes, &passed), QMT_PACKET_OK);
	assert_int_equal(qmt_wire_welcome_decode(in, &welcome), QMLA_OK);
	assert_int_equal(welcome.status, QMLA_OK);
	return fd;
}

static struct qmt_wire_request request_of(enum qmt_wire_kind kind, uint64_t id, uint64_t offset,
					  uint64_t length)
{
	struct qmt_wire_request request = {
		.kind = kind, .id = id, .region = OWNER_REGION, .offset = offset, .length = length};

	memset(request.capability, 1, sizeof(request.capability));
	if (kind == QMT_WIRE_DONE || kind == QMT_WIRE_STAGE)
		request.region = 0;
	return request;
}

static void raw_send(int fd, const struct qmt_wire_request *list, size_t count, int passed)
{
	uint8_t out[QMT_PACKET_BYTES];

	for (size_t i = 0; i < count; i++)
		qmt_wire_request_encode(&list[i], out + i * QMT_WIRE_REQUEST_BYTES);
	assert_int_equal(qmt_packet_send(fd, out, count * QMT_WIRE_REQUEST_BYTES, passed),
			 QMT_PACKET_OK);
}

static struct qmt_wire_reply raw_reply(int fd, int *passed)
{
	uint8_t in[QMT_PACKET_MESSAGES * QMT_WIRE_REPLY_BYTES];
	struct qmt_wire_reply replies[QMT_PACKET_MESSAGES];
	size_t bytes = 0, count = 0;

	assert_true(packet_comes(fd, 5000));
	assert_int_equal(qmt_packet_receive(fd, in, sizeof(in), &bytes, passed), QMT_PACKET_OK);
	assert_int_equal(qmt_packet_replies(in, bytes, *passed >= 0, replies, &count), QMLA_OK);
	assert_int_equal(count, 1);
	return replies[0];
}

/* Sends one request and takes its reply; a descriptor that comes along is closed. */
static qmla_status_t raw_ask(int fd, const struct qmt_wire_request *request)
{
	struct qmt_wire_reply reply;
	int passed = -1;

	raw_send(fd, request, 1, -1);
	reply = raw_reply(fd, &passed);
	if (passed >= 0)
		close(passed);
	return reply.status;
}

static bool is_dropped(int fd, int ms)
{
	struct pollfd pfd = {.fd = fd, .events = POLLRDHUP};

	return poll(&pfd, 1, ms) == 1;
}

static int memfd_of(uint64_t bytes, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

/* Everything a peer may try with the descriptor of a region. */
static void assert_read_only(int fd, uint64_t bytes)
{
	char path[40];
	int again;

	assert_ptr_equal(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	/* A memfd's mode lets anyone open it again for writing: the seals must hold there. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again < 0)
		return;
	assert_ptr_equal(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0),
			 MAP_FAILED);
	assert_int_equal(pwrite(again, "x", 1, 0), -1);
	assert_int_equal(ftruncate(again, 0), -1);
	assert_int_equal(ftruncate(again, (off_t)(2 * bytes)), -1);
	assert_int_equal(fallocate(again, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
	assert_int_equal(fcntl(again, F_ADD_SEALS, F_SEAL_WRITE), -1);
	close(again);
}

static void a_region_comes_read_only_and_only_with_a_grant(void **state)
{
	struct qmt_wire_request read = request_of(QMT_WIRE_READ, 1, 4096, 100);
	struct qmt_wire_request done = request_of(QMT_WIRE_DONE, 1, 0, 0);
	struct owner owner;
	struct qmt_wire_reply reply;
	uint8_t *view;
	int fd, passed = -1;

	(void)state;
	owner_start(&owner, "shm", MIB);
	fill_pattern(owner.memory.base, MIB, 1);
	fd = raw_peer(&owner);
	owner.policy = QMLA_ERR_PERMISSION;
	raw_send(fd, &read, 1, -1);
	reply = raw_reply(fd, &passed);
	assert_int_equal(reply.status, QMLA_ERR_PERMISSION);
	assert_int_equal(passed, -1);

	owner.policy = QMLA_OK;
	raw_send(fd, &read, 1, -1);
	reply = raw_reply(fd, &passed);
	assert_int_equal(reply.status, QMLA_OK);
	assert_int_equal(reply.region_bytes, MIB);
	assert_true(passed >= 0);
	assert_read_only(passed, MIB);
	view = mmap(NULL, MIB, PROT_READ, MAP_SHARED, passed, 0);
	assert_ptr_not_equal(view, MAP_FAILED);
	assert_memory_equal(view, owner.memory.base, MIB);
	assert_int_equal(mprotect(view, MIB, PROT_READ | PROT_WRITE), -1);
	/* The owner goes on writing. */
	((uint8_t *)owner.memory.base)[5] = 0x3c;
	assert_int_equal(view[5], 0x3c);
	munmap(view, MIB);
	close(passed);

	assert_int_equal(owner_in_flight(&owner), 1);
	raw_send(fd, &done, 1, -1);
	assert_true(owner_settles(&owner, 5000));
	assert_int_equal(owner_snapshot(&owner).finished_ok, 1);
	/* A second grant of the same region brings no second descriptor. */
	read.id = 2;
	raw_send(fd, &read, 1, -1);
	reply = raw_reply(fd, &passed);
	assert_int_equal(reply.region_bytes, 0);
	assert_int_equal(passed, -1);
	close(fd);
	owner_stop(&owner);
}

static void writes_come_from_a_sealed_staging_buffer(void **state)
{
	struct qmt_wire_request stage = request_of(QMT_WIRE_STAGE, 0, 0, 65536);
	struct qmt_wire_request write = request_of(QMT_WIRE_WRITE, 1, 1000, 5000);
	struct owner owner;
	uint8_t bytes[5000];
	int fd, staging = memfd_of(65536, F_SEAL_SHRINK);

	(void)state;
	owner_start(&owner, "shm", MIB);
	fd = raw_peer(&owner);
	fill_pattern(bytes, sizeof(bytes), 4);
	assert_int_equal(pwrite(staging, bytes, sizeof(bytes), 60536), sizeof(bytes));
	raw_send(fd, &stage, 1, staging);
	write.staging = 60536;
	assert_int_equal(raw_ask(fd, &write), QMLA_OK);
	assert_memory_equal((uint8_t *)owner.memory.base + 1000, bytes, sizeof(bytes));
	/* A hole where the bytes should be reads as zeros and harms nobody. */
	assert_int_equal(fallocate(staging, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 65536),
			 0);
	assert_int_equal(raw_ask(fd, &write), QMLA_OK);
	assert_int_equal(((uint8_t *)owner.memory.base)[1000], 0);
	close(staging);
	close(fd);
	owner_stop(&owner);
}

/* Each row: the staging buffer that a client offers. */
static void unsafe_staging_buffers_are_refused(void **state)
{
	struct qmt_wire_request stage = request_of(QMT_WIRE_STAGE, 0, 0, 65536);
	struct owner owner;
	int offers[5], ends[2];
	FILE *file = tmpfile();

	(void)state;
	owner_start(&owner, "shm", MIB);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_non_null(file);
	assert_int_equal(ftruncate(fileno(file), 65536), 0);
	offers[0] = memfd_of(65536, 0);             /* may be truncated: SIGBUS */
	offers[1] = memfd_of(65536, F_SEAL_GROW);   /* the wrong seal */
	offers[2] = memfd_of(65535, F_SEAL_SHRINK); /* smaller than it says */
	offers[3] = ends[0];                        /* reading it would block */
	offers[4] = fileno(file);                   /* no memfd */
	for (size_t i = 0; i < 5; i++) {
		int fd = raw_peer(&owner);

		raw_send(fd, &stage, 1, offers[i]);
		/* A client that shrinks its buffer after the check: the first one. */
		if (i == 0)
			assert_int_equal(ftruncate(offers[i], 0), 0);
		assert_true(is_dropped(fd, 5000));
		close(fd);
	}
	for (size_t i = 0; i < 3; i++)
		close(offers[i]);
	close(ends[0]);
	close(ends[1]);
	fclose(file);
	owner_stop(&owner);
}

static void protocol_errors_drop_the_connection(void **state)
{
	static const struct {
		enum qmt_wire_kind kind;
		uint64_t id, length, staging;
	} cases[] = {
		{QMT_WIRE_DONE, 0, 0, 0},          /* holds nothing */
		{QMT_WIRE_WRITE, 0, 10, 0},        /* has no staging buffer */
		{QMT_WIRE_STAGE, 0, 4096, 0},      /* without a descriptor */
		{QMT_WIRE_READ, 0, 0, 0},          /* of nothing */
		{QMT_WIRE_READ, 0, UINT64_MAX, 0}, /* of everything */
		{(enum qmt_wire_kind)77, 0, 1, 0},
	};
	struct owner owner;

	(void)state;
	owner_start(&owner, "shm", MIB);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct qmt_wire_request request =
			request_of(cases[i].kind, cases[i].id, 0, cases[i].length);
		int fd = raw_peer(&owner);

		request.staging = cases[i].staging;
		raw_send(fd, &request, 1, -1);
		assert_true(is_dropped(fd, 5000));
		close(fd);
	}
	assert_int_equal(owner_snapshot(&owner).asked, 0);
	owner_stop(&owner);
}

static void bytes_outside_the_staging_buffer_drop_the_connection(void **state)
{
	static const uint64_t cases[][2] = {
		{65537, 0}, {1, 65536}, {4096, 61441}, {16, UINT64_MAX - 8}, {16, UINT64_MAX - 15}};
	struct qmt_wire_request stage = request_of(QMT_WIRE_STAGE, 0, 0, 65536);
	struct owner owner;
	int staging = memfd_of(65536, F_SEAL_SHRINK);

	(void)state;
	owner_start(&owner, "shm", MIB);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct qmt_wire_request write = request_of(QMT_WIRE_WRITE, 0, 0, cases[i][0]);
		int fd = raw_peer(&owner);

		raw_send(fd, &stage, 1, staging);
		write.staging = cases[i][1];
		raw_send(fd, &write, 1, -1);
		assert_true(is_dropped(fd, 5000));
		close(fd);
	}
	assert_int_equal(owner_snapshot(&owner).asked, 0);
	close(staging);
	owner_stop(&owner);
}

static void send_with_two_descriptors(int fd, int passed)
{
	struct qmt_wire_request stage = request_of(QMT_WIRE_STAGE, 0, 0, 4096);
	uint8_t out[QMT_WIRE_REQUEST_BYTES];
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	struct iovec iov = {out, sizeof(out)};
	struct msghdr message = {.msg_iov = &iov,
				 .msg_iovlen = 1,
				 .msg_control = control.bytes,
				 .msg_controllen = sizeof(control.bytes)};
	int fds[2] = {passed, passed};
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	qmt_wire_request_encode(&stage, out);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(head), fds, sizeof(fds));
	assert_int_equal(sendmsg(fd, &message, MSG_NOSIGNAL), sizeof(out));
}

/* Descriptors that come where none belongs are closed, not collected. */
static void unwanted_descriptors_do_not_pile_up(void **state)
{
	struct qmt_wire_request read = request_of(QMT_WIRE_READ, 0, 0, 10);
	struct qmt_wire_request twice[2] = {request_of(QMT_WIRE_STAGE, 0, 0, 4096),
					    request_of(QMT_WIRE_STAGE, 0, 0, 4096)};
	struct owner owner;
	struct qmt_identity identity;
	int memory = memfd_of(4096, F_SEAL_SHRINK);
	unsigned before, now;

	(void)state;
	owner_start(&owner, "shm", MIB);
	before = open_descriptors();
	for (size_t i = 0; i < 40; i++) {
		int fd = i % 4 == 3 ? raw_connect(&owner, &identity) : raw_peer(&owner);

		if (i % 4 == 0)
			raw_send(fd, &read, 1, memory);
		else if (i % 4 == 1)
			raw_send(fd, twice, 2, memory);
		else if (i % 4 == 2)
			send_with_two_descriptors(fd, memory);
		else
			raw_send(fd, &twice[0], 1, memory); /* instead of a handshake */
		assert_true(is_dropped(fd, 5000));
		close(fd);
	}
	for (int i = 0; i < 1000 && (now = open_descriptors()) != before; i++)
		sleep_ms(1);
	assert_int_equal(now, before);
	close(memory);
	owner_stop(&owner);
}

static void random_packets_drop_the_connection(void **state)
{
	struct owner owner;
	struct qmt_identity identity;
	uint8_t noise[2 * QMT_PACKET_BYTES];

	(void)state;
	owner_start(&owner, "shm", MIB);
	for (uint64_t seed = 0; seed < 60; seed++) {
		int fd = seed % 2 ? raw_peer(&owner) : raw_connect(&owner, &identity);
		size_t bytes = seed % 3 == 0 ? sizeof(noise) : 64 * (1 + seed % 60);

		fill_pattern(noise, sizeof(noise), seed);
		assert_int_equal(qmt_packet_send(fd, noise, bytes, -1), QMT_PACKET_OK);
		assert_true(is_dropped(fd, 5000));
		close(fd);
	}
	assert_int_equal(owner_snapshot(&owner).asked, 0);
	owner_stop(&owner);
}

static void grants_are_bounded(void **state)
{
	struct qmt_wire_request list[QMT_PACKET_MESSAGES];
	struct owner owner;
	int fd;

	(void)state;
	owner_start(&owner, "shm", MIB);
	fd = raw_peer(&owner);
	for (size_t packet = 0; packet <= QMT_WINDOW_OPS / QMT_PACKET_MESSAGES; packet++) {
		for (size_t i = 0; i < QMT_PACKET_MESSAGES; i++)
			list[i] = request_of(QMT_WIRE_READ, packet * QMT_PACKET_MESSAGES + i, 0, 1);
		raw_send(fd, list, QMT_PACKET_MESSAGES, -1);
	}
	assert_true(is_dropped(fd, 5000));
	assert_true(owner_settles(&owner, 5000));
	assert_int_equal(owner_snapshot(&owner).allowed, QMT_WINDOW_OPS);
	assert_int_equal(owner_snapshot(&owner).finished_failed, QMT_WINDOW_OPS);
	close(fd);
	owner_stop(&owner);
}

static void a_grant_that_is_never_finished_is_taken_back(void **state)
{
	struct qmt_wire_request read = request_of(QMT_WIRE_READ, 0, 0, 10);
	struct owner owner;
	int fd, silent;
	struct qmt_identity identity;

	(void)state;
	owner_start_with(&owner, "shm", MIB, 0, IDLE);
	silent = raw_connect(&owner, &identity);
	fd = raw_peer(&owner);
	raw_send(fd, &read, 1, -1);
	assert_false(is_dropped(fd, 100));
	assert_int_equal(owner_in_flight(&owner), 1);
	assert_true(is_dropped(fd, 5000));
	assert_true(is_dropped(silent, 5000));
	assert_true(owner_settles(&owner, 5000));
	assert_int_equal(owner_snapshot(&owner).last_finished, QMLA_ERR_DEADLINE);
	close(fd);
	close(silent);
	/* Between messages, silence is fine. */
	fd = raw_peer(&owner);
	assert_false(is_dropped(fd, 700));
	close(fd);
	owner_stop(&owner);
}

static void register_needs_a_memfd_that_can_be_sealed(void **state)
{
	struct owner owner;
	struct qmt_handle handle;
	struct qmt_memory memory = {.base = NULL, .bytes = 4096, .fd = -1};
	int unsealable = memfd_create("test", MFD_CLOEXEC), small = memfd_of(100, 0);

	(void)state;
	owner_start(&owner, "shm", MIB);
	memory.base = owner.memory.base;
	assert_int_equal(owner.ops->server_register(owner.server, &memory, 8, &handle),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(ftruncate(unsealable, 4096), 0);
	memory.fd = unsealable;
	assert_int_equal(owner.ops->server_register(owner.server, &memory, 8, &handle),
			 QMLA_ERR_INVALID_ARGUMENT);
	memory.fd = small;
	assert_int_equal(owner.ops->server_register(owner.server, &memory, 8, &handle),
			 QMLA_ERR_INVALID_ARGUMENT);
	/* The same memory again, under another number: it is sealed already. */
	assert_int_equal(owner.ops->server_register(owner.server, &owner.memory, 8, &handle),
			 QMLA_OK);
	assert_int_equal(owner.ops->server_register(owner.server, &owner.memory, 8, &handle),
			 QMLA_ERR_ALREADY_EXISTS);
	close(unsealable);
	close(small);
	owner_stop(&owner);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, remember_descriptors, check_descriptors)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(a_region_comes_read_only_and_only_with_a_grant),
		CASE(writes_come_from_a_sealed_staging_buffer),
		CASE(unsafe_staging_buffers_are_refused),
		CASE(protocol_errors_drop_the_connection),
		CASE(bytes_outside_the_staging_buffer_drop_the_connection),
		CASE(unwanted_descriptors_do_not_pile_up),
		CASE(random_packets_drop_the_connection),
		CASE(grants_are_bounded),
		CASE(a_grant_that_is_never_finished_is_taken_back),
		CASE(register_needs_a_memfd_that_can_be_sealed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
