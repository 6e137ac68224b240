/* SPDX-License-Identifier: Apache-2.0 */
/* What a shm endpoint does with a server that breaks the protocol. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "owner.h"
#include "transport/shm/packet.h"
#include "transport/shm/socket.h"

#define SIZE   5000
#define REGION 65536

/* A server that a test writes by hand, in a thread: one client, one answer. */
struct fake {
	char directory[32], path[QMT_ADDRESS_TEXT_MAX];
	int listen_fd, fd;
	struct qmt_identity identity;
	struct qmt_server_address address;
	struct qmt_handle handle;
	struct qmt_wire_reply answer;
	size_t answer_bytes;
	int passed;
	pthread_t thread;
};

static bool packet(int fd, void *in, size_t size)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	size_t bytes;
	int passed = -1;

	if (poll(&pfd, 1, 5000) != 1 ||
	    qmt_packet_receive(fd, in, size, &bytes, &passed) != QMT_PACKET_OK)
		return false;
	if (passed >= 0)
		close(passed);
	return true;
}

static void *fake_main(void *argument)
{
	struct fake *fake = argument;
	struct pollfd pfd = {.fd = fake->listen_fd, .events = POLLIN};
	struct qmt_wire_welcome welcome = {.version = 1,
					   .incarnation = fake->identity.incarnation,
					   .max_length = QMT_LENGTH_MAX};
	uint8_t in[QMT_PACKET_BYTES], out[QMT_WIRE_WELCOME_BYTES];

	if (poll(&pfd, 1, 5000) != 1)
		return NULL;
	fake->fd = accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	qmt_wire_welcome_encode(&welcome, out);
	if (fake->fd < 0 || !packet(fake->fd, in, sizeof(in)) ||
	    qmt_packet_send(fake->fd, out, sizeof(out), -1) != QMT_PACKET_OK ||
	    !packet(fake->fd, in, sizeof(in)))
		return NULL;
	qmt_wire_reply_encode(&fake->answer, out);
	(void)qmt_packet_send(fake->fd, out, fake->answer_bytes, fake->passed);
	/* Until the client has seen it; its end of the read, or of the connection. */
	(void)packet(fake->fd, in, sizeof(in));
	return NULL;
}

static void fake_init(struct fake *fake, struct qmt_wire_reply answer, int passed)
{
	memset(fake, 0, sizeof(*fake));
	strcpy(fake->directory, "/tmp/qmt-test-XXXXXX");
	assert_non_null(mkdtemp(fake->directory));
	assert_int_equal(qmt_shm_socket_listen(fake->directory, &fake->listen_fd, fake->path),
			 QMLA_OK);
	assert_int_equal(qmt_identity_create(QMT_KIND_SHM, &fake->identity), QMLA_OK);
	assert_int_equal(qmt_address_encode(&fake->identity, fake->path, &fake->address), QMLA_OK);
	qmt_handle_encode(&fake->identity, 1, UINT64_C(1) << 40, &fake->handle);
	fake->answer = answer;
	fake->answer_bytes = QMT_WIRE_REPLY_BYTES;
	fake->passed = passed;
	assert_int_equal(pthread_create(&fake->thread, NULL, fake_main, fake), 0);
}

/* One read at @offset; returns its status. */
static qmla_status_t meet(struct fake *fake, uint64_t offset, uint8_t local[SIZE], bool *alive)
{
	struct qmt_endpoint *endpoint = NULL;
	struct qmt_op op = {.access = QMT_READ,
			    .remote = &fake->handle,
			    .remote_offset = offset,
			    .local = local,
			    .length = SIZE,
			    .deadline = qmc_clock_after(5 * QMC_NS_PER_S)};
	qmla_status_t status;

	assert_int_equal(qmt_shm_ops.endpoint_create(&fake->address,
						     qmc_clock_after(5 * QMC_NS_PER_S), &endpoint),
			 QMLA_OK);
	status = qmt_endpoint_run(&qmt_shm_ops, endpoint, &op, 1);
	*alive = qmt_shm_ops.endpoint_alive(endpoint);
	qmt_shm_ops.endpoint_destroy(endpoint);
	pthread_join(fake->thread, NULL);
	close(fake->fd);
	close(fake->listen_fd);
	unlink(fake->path);
	assert_int_equal(rmdir(fake->directory), 0);
	return status;
}

static int region_of(uint64_t bytes, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	uint8_t pattern[REGION];

	assert_true(fd >= 0);
	fill_pattern(pattern, sizeof(pattern), 8);
	assert_int_equal(pwrite(fd, pattern, bytes, 0), bytes);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static const struct qmt_wire_reply grant = {
	.kind = QMT_WIRE_READ, .length = SIZE, .region_bytes = REGION};

static void a_good_grant_is_copied(void **state)
{
	struct fake fake;
	uint8_t local[SIZE], pattern[REGION];
	bool alive;
	int region = region_of(REGION, F_SEAL_SHRINK);

	(void)state;
	fake_init(&fake, grant, region);
	assert_int_equal(meet(&fake, 1234, local, &alive), QMLA_OK);
	assert_true(alive);
	fill_pattern(pattern, sizeof(pattern), 8);
	assert_memory_equal(local, pattern + 1234, SIZE);
	close(region);
}

/* A region that could shrink under the copy would kill the client with SIGBUS. */
static void unsafe_regions_are_refused(void **state)
{
	struct fake fake;
	uint8_t local[SIZE];
	bool alive;
	int offers[3] = {region_of(REGION, 0), region_of(REGION - 1, F_SEAL_SHRINK),
			 open("/dev/zero", O_RDONLY | O_CLOEXEC)};

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		fake_init(&fake, grant, offers[i]);
		assert_int_equal(meet(&fake, 0, local, &alive), QMLA_ERR_UNAVAILABLE);
		assert_false(alive);
		close(offers[i]);
	}
}

static void grants_outside_the_region_are_refused(void **state)
{
	static const uint64_t offsets[] = {REGION - SIZE + 1, REGION, UINT64_C(1) << 39};
	struct fake fake;
	uint8_t local[SIZE];
	bool alive;
	int region = region_of(REGION, F_SEAL_SHRINK);

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		fake_init(&fake, grant, region);
		assert_int_equal(meet(&fake, offsets[i], local, &alive), QMLA_ERR_UNAVAILABLE);
		assert_false(alive);
	}
	close(region);
}

static void bad_answers_end_the_endpoint(void **state)
{
	static const struct {
		struct qmt_wire_reply reply;
		size_t bytes;
		bool passes;
	} cases[] = {
		{{.kind = QMT_WIRE_READ, .length = SIZE}, QMT_WIRE_REPLY_BYTES, false},
		{{.kind = QMT_WIRE_READ, .length = SIZE, .region_bytes = REGION},
		 QMT_WIRE_REPLY_BYTES,
		 false},
		{{.kind = QMT_WIRE_READ, .length = SIZE}, QMT_WIRE_REPLY_BYTES, true},
		{{.kind = QMT_WIRE_READ, .id = 1, .length = SIZE, .region_bytes = REGION},
		 QMT_WIRE_REPLY_BYTES,
		 true},
		{{.kind = QMT_WIRE_READ, .length = SIZE - 1, .region_bytes = REGION},
		 QMT_WIRE_REPLY_BYTES,
		 true},
		{{.kind = QMT_WIRE_WRITE, .length = SIZE}, QMT_WIRE_REPLY_BYTES, false},
		{{.kind = (enum qmt_wire_kind)9, .length = SIZE}, QMT_WIRE_REPLY_BYTES, false},
		{{.kind = QMT_WIRE_READ, .length = SIZE, .region_bytes = REGION},
		 QMT_WIRE_REPLY_BYTES - 1,
		 true},
	};
	struct fake fake;
	uint8_t local[SIZE];
	bool alive;
	int region = region_of(REGION, F_SEAL_SHRINK);

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fake_init(&fake, cases[i].reply, cases[i].passes ? region : -1);
		fake.answer_bytes = cases[i].bytes;
		assert_int_equal(meet(&fake, 0, local, &alive), QMLA_ERR_UNAVAILABLE);
		assert_false(alive);
	}
	close(region);
}

static void a_server_of_another_host_is_unavailable(void **state)
{
	struct qmt_identity identity;
	struct qmt_server_address address;
	struct qmt_endpoint *endpoint = NULL;

	(void)state;
	assert_int_equal(qmt_identity_create(QMT_KIND_SHM, &identity), QMLA_OK);
	assert_int_equal(qmt_address_encode(&identity, "/nonexistent/qmt-1.sock", &address),
			 QMLA_OK);
	assert_int_equal(
		qmt_shm_ops.endpoint_create(&address, qmc_clock_after(QMC_NS_PER_S), &endpoint),
		QMLA_ERR_UNAVAILABLE);
	qmt_shm_ops.endpoint_destroy(NULL);
	qmt_shm_ops.server_destroy(NULL);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, remember_descriptors, check_descriptors)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(a_good_grant_is_copied),
		CASE(unsafe_regions_are_refused),
		CASE(grants_outside_the_region_are_refused),
		CASE(bad_answers_end_the_endpoint),
		CASE(a_server_of_another_host_is_unavailable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
