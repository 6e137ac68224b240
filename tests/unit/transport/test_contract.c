/* SPDX-License-Identifier: Apache-2.0 */
/* What transport.h promises, run against each back end: argv[1] is its name. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <cmocka.h>

#include "owner.h"
#include "transport/blob.h"

#define MIB (UINT64_C(1) << 20)

static const char *transport;

static qmla_status_t run_one(struct owner *owner, struct qmt_endpoint *endpoint, struct qmt_op *op)
{
	return qmt_endpoint_run(owner->ops, endpoint, op, 1);
}

static uint64_t server_peers(struct owner *owner)
{
	struct qmt_server_stats stats = {0};

	owner->ops->server_stats(owner->server, &stats);
	return stats.peers;
}

static void reads_and_writes_of_all_sizes(void **state)
{
	static const uint64_t sizes[] = {1,     2,     63,      64,  65,      4095,    4096,   4097,
					 57344, 65536, 1196032, MIB, MIB + 1, 3 * MIB, 8 * MIB};
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t *sent = malloc(8 * MIB), *got = malloc(8 * MIB + 1);
	uint64_t moved = 0;
	struct qmt_server_stats stats;

	(void)state;
	owner_start(&owner, transport, 9 * MIB);
	endpoint = owner_connect(&owner);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t offset = 9 * MIB - sizes[i] - (i % 3);
		struct qmt_op op = owner_op(&owner, QMT_WRITE, offset, sent, sizes[i]);

		fill_pattern(sent, sizes[i], i);
		assert_int_equal(run_one(&owner, endpoint, &op), QMLA_OK);
		assert_memory_equal((uint8_t *)owner.memory.base + offset, sent, sizes[i]);
		op = owner_op(&owner, QMT_READ, offset, got, sizes[i]);
		got[sizes[i]] = 0xa5;
		assert_int_equal(run_one(&owner, endpoint, &op), QMLA_OK);
		assert_memory_equal(got, sent, sizes[i]);
		assert_int_equal(got[sizes[i]], 0xa5);
		moved += sizes[i];
	}
	assert_true(owner_settles(&owner, 2000));
	/* Of one-sided reads the server hears later, and all at the end. */
	if (owner.ops->one_sided) {
		owner.ops->endpoint_destroy(endpoint);
		endpoint = NULL;
		for (int i = 0; i < 2000 && server_peers(&owner) > 0; i++)
			sleep_ms(1);
	}
	stats = (struct qmt_server_stats){0};
	owner.ops->server_stats(owner.server, &stats);
	assert_int_equal(stats.reads, sizeof(sizes) / sizeof(sizes[0]));
	assert_int_equal(stats.writes, sizeof(sizes) / sizeof(sizes[0]));
	assert_int_equal(stats.bytes_read, moved);
	assert_int_equal(stats.bytes_written, moved);
	assert_int_equal(stats.denied, 0);
	assert_int_equal(stats.peers, owner.ops->one_sided ? 0 : 1);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(sent);
	free(got);
}

static void thousands_of_pipelined_operations(void **state)
{
	enum { COUNT = 4000, SIZE = 3000 };
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op *ops = calloc(COUNT, sizeof(*ops));
	uint8_t *local = malloc((size_t)COUNT * SIZE);
	struct owner now;

	(void)state;
	owner_start(&owner, transport, (uint64_t)COUNT * SIZE);
	endpoint = owner_connect(&owner);
	fill_pattern(owner.memory.base, (size_t)COUNT * SIZE, 5);
	/* Every fourth is a write of the block's own index. */
	for (uint64_t i = 0; i < COUNT; i++) {
		uint64_t block = (i * 7919) % COUNT;

		ops[i] = owner_op(&owner, i % 4 ? QMT_READ : QMT_WRITE, block * SIZE,
				  local + i * SIZE, SIZE);
		if (i % 4 == 0)
			memset(local + i * SIZE, (int)(i % 251), SIZE);
	}
	assert_int_equal(qmt_endpoint_run(owner.ops, endpoint, ops, COUNT), QMLA_OK);
	for (uint64_t i = 0; i < COUNT; i++)
		assert_memory_equal(local + i * SIZE,
				    (uint8_t *)owner.memory.base + (i * 7919) % COUNT * SIZE, SIZE);
	assert_true(owner_settles(&owner, 2000));
	now = owner_snapshot(&owner);
	assert_int_equal(now.finished_ok, owner.ops->one_sided ? COUNT / 4 : COUNT);
	assert_int_equal(now.finished_failed, 0);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(ops);
	free(local);
}

/* Also through a staging buffer that has to grow and to wrap. */
static void large_and_small_operations_mix(void **state)
{
	static const uint64_t sizes[] = {MIB,     3 * MIB, 7,       12 * MIB, MIB,   1,
					 5 * MIB, 9 * MIB, 4 * MIB, 4 * MIB,  65537, 20 * MIB};
	enum { COUNT = 2 * sizeof(sizes) / sizeof(sizes[0]) };
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op ops[COUNT];
	uint8_t *sent = malloc(64 * MIB), *got = calloc(1, 64 * MIB);
	uint64_t at = 0;

	(void)state;
	owner_start(&owner, transport, 64 * MIB);
	endpoint = owner_connect(&owner);
	fill_pattern(sent, 64 * MIB, 12);
	/* Every range is written and, in the order of posting, read back. */
	for (size_t i = 0; i < COUNT; i += 2) {
		ops[i] = owner_op(&owner, QMT_WRITE, at, sent + at, sizes[i / 2]);
		ops[i + 1] = owner_op(&owner, QMT_READ, at, got + at, sizes[i / 2]);
		at += sizes[i / 2];
	}
	assert_int_equal(qmt_endpoint_run(owner.ops, endpoint, ops, COUNT), QMLA_OK);
	assert_memory_equal(owner.memory.base, sent, at);
	assert_memory_equal(got, sent, at);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(sent);
	free(got);
}

static atomic_uint alarms;

static void count_alarm(int number)
{
	(void)number;
	atomic_fetch_add(&alarms, 1);
}

/* Signals interrupt system calls, also such as do not wait; no operation may notice. */
static void signals_do_no_harm(void **state)
{
	struct sigaction action = {.sa_handler = count_alarm}, old;
	struct itimerval often = {.it_interval = {0, 200}, .it_value = {0, 200}}, never = {0};
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t *local = malloc(MIB);
	unsigned failed = 0;

	(void)state;
	owner_start(&owner, transport, MIB);
	endpoint = owner_connect(&owner);
	assert_int_equal(sigaction(SIGALRM, &action, &old), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
	for (int i = 0; i < 3000 || (atomic_load(&alarms) < 200 && i < 100000); i++) {
		struct qmt_op op = owner_op(&owner, i % 3 ? QMT_READ : QMT_WRITE, 0, local, 30000);

		failed += run_one(&owner, endpoint, &op) != QMLA_OK;
		failed += !owner.ops->endpoint_alive(endpoint);
	}
	assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
	assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
	assert_int_equal(failed, 0);
	assert_true(atomic_load(&alarms) > 0);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
}

/* No timer, no polling: connected peers that are silent cost nothing. */
static void an_idle_server_uses_no_processor(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoints[20];
	struct rusage before, after;
	int64_t used_us;
	uint8_t byte;

	(void)state;
	owner_start(&owner, transport, MIB);
	for (size_t i = 0; i < 20; i++) {
		struct qmt_op op = owner_op(&owner, QMT_READ, 0, &byte, 1);

		endpoints[i] = owner_connect(&owner);
		assert_int_equal(run_one(&owner, endpoints[i], &op), QMLA_OK);
	}
	assert_true(owner_settles(&owner, 2000));
	sleep_ms(50);
	assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
	sleep_ms(1000);
	assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
	used_us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000 +
		  (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 +
		  after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec -
		  before.ru_stime.tv_usec;
	/* One per cent of a core; and of wake-ups, at most the main thread's own. */
	assert_true(used_us < 10000);
	assert_in_range(after.ru_nvcsw - before.ru_nvcsw, 0, 20);
	for (size_t i = 0; i < 20; i++)
		owner.ops->endpoint_destroy(endpoints[i]);
	owner_stop(&owner);
}

static void bad_arguments_are_not_taken(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op *completed = (struct qmt_op *)1;
	struct qmt_handle other;
	uint8_t byte;
	struct qmt_op op;

	(void)state;
	owner_start(&owner, transport, MIB);
	endpoint = owner_connect(&owner);
	op = owner_op(&owner, QMT_READ, 0, &byte, 0);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_ERR_INVALID_ARGUMENT);
	op = owner_op(&owner, QMT_READ, MIB, &byte, 1);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_ERR_INVALID_ARGUMENT);
	op = owner_op(&owner, QMT_READ, 1, &byte, MIB);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_ERR_INVALID_ARGUMENT);
	op = owner_op(&owner, QMT_READ, UINT64_MAX, &byte, 2);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_ERR_INVALID_ARGUMENT);
	op = owner_op(&owner, QMT_READ, 0, NULL, 1);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_ERR_INVALID_ARGUMENT);
	op = owner_op(&owner, QMT_READ, 0, &byte, UINT64_C(1) << 40);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_ERR_TOO_LARGE);
	op = owner_op(&owner, QMT_READ, 0, &byte, 1);
	op.access = (enum qmt_access)3;
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_ERR_INVALID_ARGUMENT);
	op = owner_op(&owner, QMT_READ, 0, &byte, 1);
	other = owner.handle;
	other.bytes[8] ^= 1; /* the incarnation */
	op.remote = &other;
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_ERR_PEER_RESTARTED);
	other = owner.handle;
	other.length--;
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_ERR_FORMAT);

	assert_int_equal(owner.ops->endpoint_wait(endpoint, QMC_TIME_NEVER, &completed), QMLA_OK);
	assert_null(completed);
	assert_true(owner.ops->endpoint_alive(endpoint));
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

/* A handle that lies gets past the endpoint's own check: the server must refuse. */
static void the_server_checks_ranges_and_regions(void **state)
{
	static const struct {
		uint64_t region, offset, length;
		qmla_status_t status;
	} cases[] = {
		{OWNER_REGION, MIB - 1, 2, QMLA_ERR_INVALID_ARGUMENT},
		{OWNER_REGION, MIB, 1, QMLA_ERR_INVALID_ARGUMENT},
		{OWNER_REGION, 0, MIB + 1, QMLA_ERR_INVALID_ARGUMENT},
		{OWNER_REGION, UINT64_MAX - 8, 8, QMLA_ERR_INVALID_ARGUMENT},
		{OWNER_REGION + 1, 0, 16, QMLA_ERR_NOT_FOUND},
		{UINT64_MAX, 0, 16, QMLA_ERR_NOT_FOUND},
	};
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t *local = calloc(1, 2 * MIB);
	struct qmt_server_stats stats = {0};
	struct qmt_identity identity = {0};
	struct qmt_remote_region region;

	(void)state;
	owner_start(&owner, transport, MIB);
	endpoint = owner_connect(&owner);
	assert_int_equal(qmt_handle_decode(&owner.handle, &region), QMLA_OK);
	identity.kind = region.kind;
	identity.incarnation = region.incarnation;
	for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
		size_t c = i / 2;
		struct qmt_handle lie;
		struct qmt_op op = owner_op(&owner, i % 2 ? QMT_READ : QMT_WRITE, cases[c].offset,
					    local, cases[c].length);

		qmt_handle_encode(&identity, cases[c].region, UINT64_MAX, &lie);
		op.remote = &lie;
		assert_int_equal(run_one(&owner, endpoint, &op), cases[c].status);
	}
	assert_int_equal(owner_snapshot(&owner).asked, 0);
	owner.ops->server_stats(owner.server, &stats);
	/* Where the endpoint was told the region's size it does not believe the handle. */
	if (!owner.ops->one_sided)
		assert_int_equal(stats.denied, 2 * sizeof(cases) / sizeof(cases[0]));
	/* The connection still works. */
	{
		struct qmt_op op = owner_op(&owner, QMT_READ, 0, local, MIB);

		assert_int_equal(run_one(&owner, endpoint, &op), QMLA_OK);
	}
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
}

static void what_authorize_denies_moves_nothing(void **state)
{
	enum { SIZE = 300000 };
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t *local = malloc(SIZE), *before = malloc(SIZE);
	struct qmt_op ops[3];

	(void)state;
	owner_start(&owner, transport, MIB);
	endpoint = owner_connect(&owner);
	owner.check_capability = true;
	memset(owner.capability, 9, sizeof(owner.capability));
	fill_pattern(owner.memory.base, SIZE, 1);
	memcpy(before, owner.memory.base, SIZE);
	memset(local, 0x55, SIZE);
	/* Nobody is asked about a one-sided read. */
	ops[0] = owner_op(&owner, owner.ops->one_sided ? QMT_WRITE : QMT_READ, 0, local, SIZE);
	ops[1] = owner_op(&owner, QMT_WRITE, 0, local, SIZE);
	ops[2] = owner_op(&owner, QMT_READ, 0, local, 1);
	memset(ops[2].capability, 9, sizeof(ops[2].capability));
	assert_int_equal(qmt_endpoint_run(owner.ops, endpoint, ops, 3), QMLA_ERR_PERMISSION);
	assert_int_equal(ops[0].status, QMLA_ERR_PERMISSION);
	assert_int_equal(ops[1].status, QMLA_ERR_PERMISSION);
	assert_int_equal(ops[2].status, QMLA_OK);
	assert_memory_equal(owner.memory.base, before, SIZE);
	for (size_t i = 1; i < SIZE; i++)
		assert_int_equal(local[i], 0x55);
	assert_true(owner_settles(&owner, 2000));
	assert_int_equal(owner_snapshot(&owner).allowed, owner.ops->one_sided ? 0 : 1);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
	free(before);
}

static void wrong_cookie_or_life_is_refused(void **state)
{
	struct owner owner;
	struct qmt_server_address address;
	struct qmt_endpoint *endpoint = NULL;
	qmc_time_t soon = qmc_clock_after(5 * QMC_NS_PER_S);

	(void)state;
	owner_start(&owner, transport, MIB);
	address = owner.address;
	address.bytes[16] ^= 1;
	assert_int_equal(owner_try(&owner, &address, soon, &endpoint), QMLA_ERR_PERMISSION);
	address = owner.address;
	address.bytes[8] ^= 1;
	assert_int_equal(owner_try(&owner, &address, soon, &endpoint), QMLA_ERR_PEER_RESTARTED);
	address = owner.address;
	address.bytes[0] ^= 1;
	assert_int_equal(owner_try(&owner, &address, soon, &endpoint), QMLA_ERR_FORMAT);
	address = owner.address;
	address.bytes[5] ^= 3; /* the other back end's */
	assert_int_equal(owner_try(&owner, &address, soon, &endpoint), QMLA_ERR_UNSUPPORTED);
	assert_null(endpoint);
	owner_stop(&owner);
}

static void wait_may_time_out_and_go_on(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op op, *completed = NULL;
	uint8_t *local = malloc(8 * MIB);
	qmla_status_t status;
	int tries = 0;

	(void)state;
	owner_start(&owner, transport, 8 * MIB);
	endpoint = owner_connect(&owner);
	op = owner_op(&owner, QMT_READ, 0, local, 8 * MIB);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_OK);
	/* A deadline that has passed still moves what can be moved. */
	while ((status = owner.ops->endpoint_wait(endpoint, 0, &completed)) == QMLA_ERR_DEADLINE) {
		assert_null(completed);
		assert_true(tries++ < 5000);
		sleep_ms(1);
	}
	assert_int_equal(status, QMLA_OK);
	assert_ptr_equal(completed, &op);
	assert_int_equal(op.status, QMLA_OK);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
}

static void cancelled_operations_leave_memory_alone(void **state)
{
	enum { COUNT = 200 };
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op *ops = calloc(COUNT, sizeof(*ops)), *completed = NULL;
	uint8_t *local = calloc(COUNT, MIB / 4);
	unsigned cancelled = 0;

	(void)state;
	owner_start(&owner, transport, MIB);
	endpoint = owner_connect(&owner);
	memset(owner.memory.base, 0xee, MIB);
	for (size_t i = 0; i < COUNT; i++) {
		ops[i] = owner_op(&owner, QMT_READ, 0, local + i * MIB / 4, MIB / 4);
		assert_int_equal(owner.ops->endpoint_post(endpoint, &ops[i]), QMLA_OK);
	}
	/* The first brings the window onto the wire; the rest is cancelled there or queued. */
	assert_int_equal(owner.ops->endpoint_wait(endpoint, QMC_TIME_NEVER, &completed), QMLA_OK);
	assert_ptr_equal(completed, &ops[0]);
	for (size_t i = COUNT; i-- > 1;)
		owner.ops->endpoint_cancel(endpoint, &ops[i]);
	/* Cancelled again, or after completion: nothing happens. */
	owner.ops->endpoint_cancel(endpoint, &ops[5]);
	owner.ops->endpoint_cancel(endpoint, &ops[0]);
	for (size_t i = 1; i < COUNT; i++) {
		/* A device that works on the memory has to be waited for. */
		assert_int_equal(owner.ops->endpoint_wait(
					 endpoint,
					 owner.ops->one_sided ? qmc_clock_after(QMC_NS_PER_S) : 0,
					 &completed),
				 QMLA_OK);
		assert_non_null(completed);
		cancelled += completed->status == QMLA_ERR_CANCELLED;
		if (completed->status == QMLA_ERR_CANCELLED)
			memset(completed->local, 0x11, MIB / 4);
	}
	assert_true(cancelled >= COUNT - 80);
	assert_int_equal(owner.ops->endpoint_wait(endpoint, 0, &completed), QMLA_OK);
	assert_null(completed);
	/* What comes next gets through what was cancelled on the wire. */
	{
		struct qmt_op op = owner_op(&owner, QMT_READ, 0, local, MIB / 4);

		assert_int_equal(run_one(&owner, endpoint, &op), QMLA_OK);
	}
	for (size_t i = 1; i < COUNT; i++) {
		const uint8_t *p = ops[i].local;
		uint8_t expected = ops[i].status == QMLA_OK ? 0xee : 0x11;

		assert_int_equal(p[0], expected);
		assert_memory_equal(p, p + 1, MIB / 4 - 1);
	}
	assert_true(owner.ops->endpoint_alive(endpoint));
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(ops);
	free(local);
}

static void an_endpoint_may_go_with_operations_posted(void **state)
{
	enum { COUNT = 50 };
	struct owner owner;
	struct qmt_op ops[COUNT], *completed = NULL;
	uint8_t *local = malloc(COUNT * MIB / 4);

	(void)state;
	owner_start(&owner, transport, MIB);
	for (int round = 0; round < 4; round++) {
		struct qmt_endpoint *endpoint = owner_connect(&owner);

		for (size_t i = 0; i < COUNT; i++) {
			ops[i] = owner_op(&owner, (i + (size_t)round) % 3 ? QMT_READ : QMT_WRITE, 0,
					  local + i * MIB / 4, MIB / 4);
			assert_int_equal(owner.ops->endpoint_post(endpoint, &ops[i]), QMLA_OK);
		}
		for (int i = 0; i < round; i++)
			(void)owner.ops->endpoint_wait(endpoint, 0, &completed);
		owner.ops->endpoint_destroy(endpoint);
		memset(local, 0x33, COUNT * MIB / 4);
		for (size_t i = 0; i < COUNT * MIB / 4; i += 997)
			assert_int_equal(local[i], 0x33);
	}
	assert_true(owner_settles(&owner, 5000));
	owner_stop(&owner);
	free(local);
}

/* Late before it was sent: it alone fails, and the connection lives on. */
static void an_operation_that_was_late_when_posted_fails_alone(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op ops[3];
	uint8_t bytes[3];

	(void)state;
	owner_start(&owner, transport, MIB);
	endpoint = owner_connect(&owner);
	for (size_t i = 0; i < 3; i++)
		ops[i] = owner_op(&owner, QMT_READ, i, &bytes[i], 1);
	ops[1].deadline = qmc_clock_now() - 1;
	assert_int_equal(qmt_endpoint_run(owner.ops, endpoint, ops, 3), QMLA_ERR_DEADLINE);
	assert_int_equal(ops[0].status, QMLA_OK);
	assert_int_equal(ops[1].status, QMLA_ERR_DEADLINE);
	assert_int_equal(ops[2].status, QMLA_OK);
	assert_true(owner.ops->endpoint_alive(endpoint));
	assert_int_equal(owner_snapshot(&owner).asked, owner.ops->one_sided ? 0 : 2);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

static void an_idle_endpoint_notices_that_its_server_went(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t byte;
	struct qmt_op op;

	(void)state;
	owner_start(&owner, transport, MIB);
	endpoint = owner_connect(&owner);
	assert_true(owner.ops->endpoint_alive(endpoint));
	owner_stop_server(&owner);
	for (int i = 0; i < 2000 && owner.ops->endpoint_alive(endpoint); i++)
		sleep_ms(1);
	assert_false(owner.ops->endpoint_alive(endpoint));
	op = owner_op(&owner, QMT_READ, 0, &byte, 1);
	assert_int_equal(run_one(&owner, endpoint, &op), QMLA_ERR_UNAVAILABLE);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

static void max_peers_is_kept(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoints[3], *refused = NULL;
	struct qmt_server_stats stats = {0};
	int tries = 0;

	(void)state;
	owner_start_with(&owner, transport, MIB, 3, 0);
	for (size_t i = 0; i < 3; i++)
		endpoints[i] = owner_connect(&owner);
	assert_int_equal(
		owner_try(&owner, &owner.address, qmc_clock_after(5 * QMC_NS_PER_S), &refused),
		QMLA_ERR_RESOURCE_EXHAUSTED);
	owner.ops->server_stats(owner.server, &stats);
	assert_int_equal(stats.peers, 3);
	/* One goes, one may come. */
	owner.ops->endpoint_destroy(endpoints[1]);
	do {
		sleep_ms(2);
		owner.ops->server_stats(owner.server, &stats);
	} while (stats.peers == 3 && tries++ < 1000);
	endpoints[1] = owner_connect(&owner);
	for (size_t i = 0; i < 3; i++)
		owner.ops->endpoint_destroy(endpoints[i]);
	owner_stop(&owner);
}

static void destroying_the_server_ends_everything(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op ops[4], *completed = NULL;
	uint8_t *local = malloc(64 * MIB);

	(void)state;
	/* Its reads would be over in no time; the back end's own tests hold them up. */
	if (qmt_transport_find(transport)->one_sided) {
		free(local);
		skip();
	}
	owner_start(&owner, transport, 16 * MIB);
	endpoint = owner_connect(&owner);
	for (size_t i = 0; i < 4; i++) {
		ops[i] = owner_op(&owner, QMT_READ, 0, local + i * 16 * MIB, 16 * MIB);
		assert_int_equal(owner.ops->endpoint_post(endpoint, &ops[i]), QMLA_OK);
	}
	assert_int_equal(owner.ops->endpoint_wait(endpoint, 0, &completed), QMLA_ERR_DEADLINE);
	for (int i = 0; i < 2000 && owner_in_flight(&owner) == 0; i++)
		sleep_ms(1);
	assert_true(owner_in_flight(&owner) > 0);
	owner_stop_server(&owner);
	assert_int_equal(owner_in_flight(&owner), 0);
	assert_true(owner_snapshot(&owner).finished_failed > 0);
	for (size_t i = 0; i < 4; i++) {
		assert_int_equal(owner.ops->endpoint_wait(endpoint, QMC_TIME_NEVER, &completed),
				 QMLA_OK);
		assert_non_null(completed);
	}
	assert_int_equal(ops[3].status, QMLA_ERR_UNAVAILABLE);
	assert_false(owner.ops->endpoint_alive(endpoint));
	ops[0] = owner_op(&owner, QMT_READ, 0, local, 1);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &ops[0]), QMLA_ERR_UNAVAILABLE);
	owner.ops->endpoint_destroy(endpoint);
	/* Nobody is there any more. */
	assert_int_equal(
		owner_try(&owner, &owner.address, qmc_clock_after(5 * QMC_NS_PER_S), &endpoint),
		QMLA_ERR_UNAVAILABLE);
	owner_stop(&owner);
	free(local);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, remember_descriptors, check_descriptors)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(reads_and_writes_of_all_sizes),
		CASE(thousands_of_pipelined_operations),
		CASE(large_and_small_operations_mix),
		CASE(signals_do_no_harm),
		CASE(an_idle_server_uses_no_processor),
		CASE(bad_arguments_are_not_taken),
		CASE(the_server_checks_ranges_and_regions),
		CASE(what_authorize_denies_moves_nothing),
		CASE(wrong_cookie_or_life_is_refused),
		CASE(wait_may_time_out_and_go_on),
		CASE(cancelled_operations_leave_memory_alone),
		CASE(an_endpoint_may_go_with_operations_posted),
		CASE(an_operation_that_was_late_when_posted_fails_alone),
		CASE(an_idle_endpoint_notices_that_its_server_went),
		CASE(max_peers_is_kept),
		CASE(destroying_the_server_ends_everything),
	};

	transport = argc > 1 ? argv[1] : "tcp";
	return cmocka_run_group_tests(tests, NULL, NULL);
}
