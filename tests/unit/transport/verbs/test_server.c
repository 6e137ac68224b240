/* SPDX-License-Identifier: Apache-2.0 */
/* What peers can and cannot do to a verbs server, over fake verbs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "rig.h"

#define SECOND QMC_NS_PER_S

static uint64_t base_of(const struct owner *owner)
{
	return (uint64_t)(uintptr_t)owner->memory.base;
}

/* ---- late and rogue writers ---- */

/* sglang #24527, PR #39229: a write of an aborted request landed in the next one's pages. */
static void a_writer_whose_ticket_ended_cannot_write_any_more(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t *local = malloc(MIB), *next = malloc(MIB);
	struct qmt_op op, *done = NULL;
	qmc_time_t begin;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	memset(local, 0xbb, MIB);
	op = owner_op(&owner, QMT_WRITE, 0, local, MIB);
	/* The window is open and the write is on its way: it stands still in the device. */
	fake_hold(IBV_WR_RDMA_WRITE);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_OK);
	for (int i = 0; i < 2000 && rig_inside(endpoint)->extras[0].stage != STAGE_WRITING &&
			rig_inside(endpoint)->extras[0].stage != STAGE_FINISHING;
	     i++) {
		assert_int_equal(
			owner.ops->endpoint_wait(endpoint, qmc_clock_after(QMC_NS_PER_MS), &done),
			QMLA_ERR_DEADLINE);
	}
	assert_int_equal(owner_in_flight(&owner), 1);
	begin = qmc_clock_now();
	assert_int_equal(owner.ops->server_fence(owner.server, op.capability), QMLA_OK);
	assert_true(qmc_clock_now() - begin < SECOND); /* no peer can delay it */
	assert_int_equal(owner_in_flight(&owner), 0);
	assert_int_equal(owner_snapshot(&owner).last_finished, QMLA_ERR_PERMISSION);
	/* The slot's next user; then the late write is let go. */
	fill_pattern(owner.memory.base, MIB, 5);
	memcpy(next, owner.memory.base, MIB);
	fake_hold(-1);
	assert_int_equal(owner.ops->endpoint_wait(endpoint, qmc_clock_after(5 * SECOND), &done),
			 QMLA_OK);
	assert_ptr_equal(done, &op);
	assert_int_not_equal(op.status, QMLA_OK);
	assert_memory_equal(owner.memory.base, next, MIB);
	owner.ops->endpoint_destroy(endpoint);
	/* Another ticket's writer is served at once. */
	endpoint = owner_connect(&owner);
	op = owner_op(&owner, QMT_WRITE, 0, local, MIB);
	memset(op.capability, 2, sizeof(op.capability));
	assert_int_equal(qmt_endpoint_run(owner.ops, endpoint, &op, 1), QMLA_OK);
	assert_memory_equal(owner.memory.base, local, MIB);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
	free(next);
}

/* Stale handles: the key of a write that is over. */
static void a_window_is_dead_once_its_write_is_done(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t local[4096] = {1}, before[4096];
	uint32_t rkey;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(rig_run(&owner, endpoint, QMT_WRITE, 0, local, 4096), QMLA_OK);
	rkey = rig_inside(endpoint)->extras[0].rkeys[0];
	assert_int_not_equal(rkey, 0);
	memcpy(before, owner.memory.base, sizeof(before));
	assert_int_equal(rig_rogue_write(endpoint, base_of(&owner), rkey, "late", 4),
			 IBV_WC_REM_ACCESS_ERR);
	assert_memory_equal(owner.memory.base, before, sizeof(before));
	owner.ops->endpoint_destroy(endpoint);
	assert_true(rig_has_peers(&owner, 0));
	owner_stop(&owner);
}

static void the_pools_key_allows_no_write(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t before[16];

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	memcpy(before, owner.memory.base, sizeof(before));
	assert_int_equal(rig_rogue_write(endpoint, base_of(&owner),
					 rig_inside(endpoint)->rails[0].rkeys[0], "bad", 3),
			 IBV_WC_REM_ACCESS_ERR);
	assert_memory_equal(owner.memory.base, before, sizeof(before));
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

/* Holds a write where its window is open; its key. */
static uint32_t open_window(struct owner *owner, struct qmt_endpoint *endpoint, struct qmt_op *op)
{
	struct qmt_op *done = NULL;

	fake_hold(IBV_WR_RDMA_WRITE);
	assert_int_equal(owner->ops->endpoint_post(endpoint, op), QMLA_OK);
	for (int i = 0; i < 2000 && rig_inside(endpoint)->extras[0].rkeys[0] == 0; i++)
		assert_int_equal(
			owner->ops->endpoint_wait(endpoint, qmc_clock_after(QMC_NS_PER_MS), &done),
			QMLA_ERR_DEADLINE);
	return rig_inside(endpoint)->extras[0].rkeys[0];
}

static void a_window_serves_its_own_writer_only(void **state)
{
	struct owner owner;
	struct qmt_endpoint *writer, *thief;
	uint8_t local[100] = {7}, before[200];
	struct qmt_op op, *done = NULL;
	uint32_t rkey;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	writer = owner_connect(&owner);
	thief = owner_connect(&owner);
	memcpy(before, owner.memory.base, sizeof(before));
	op = owner_op(&owner, QMT_WRITE, 0, local, 100);
	rkey = open_window(&owner, writer, &op);
	fake_hold(IBV_WR_ATOMIC_CMP_AND_SWP); /* nothing that is used here */
	assert_int_equal(owner.ops->endpoint_wait(writer, qmc_clock_after(SECOND), &done), QMLA_OK);
	assert_int_equal(op.status, QMLA_OK);
	/* Again, this time used while it is open. */
	op = owner_op(&owner, QMT_WRITE, 0, local, 100);
	memset(rig_inside(writer)->extras, 0, sizeof(rig_inside(writer)->extras));
	fake_hold(IBV_WR_LOCAL_INV);
	assert_int_equal(owner.ops->endpoint_post(writer, &op), QMLA_OK);
	for (int i = 0; i < 200 && rig_inside(writer)->extras[1].rkeys[0] == 0; i++)
		(void)owner.ops->endpoint_wait(writer, qmc_clock_after(QMC_NS_PER_MS), &done);
	rkey = rig_inside(writer)->extras[1].rkeys[0];
	assert_int_not_equal(rkey, 0);
	assert_int_equal(rig_rogue_write(thief, base_of(&owner), rkey, "mine", 4),
			 IBV_WC_REM_ACCESS_ERR);
	assert_memory_equal(owner.memory.base, local, 100);
	fake_hold(-1);
	owner.ops->endpoint_destroy(thief);
	owner.ops->endpoint_destroy(writer);
	owner_stop(&owner);
}

static void a_window_covers_its_own_range_only(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t local[100] = {7}, before[200];
	struct qmt_op op;
	uint32_t rkey;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	memcpy(before, (uint8_t *)owner.memory.base + 100, 100);
	op = owner_op(&owner, QMT_WRITE, 0, local, 100);
	rkey = open_window(&owner, endpoint, &op);
	assert_int_not_equal(rkey, 0);
	fake_hold(IBV_WR_LOCAL_INV);
	assert_int_equal(rig_rogue_write(endpoint, base_of(&owner) + 99, rkey, "xx", 2),
			 IBV_WC_REM_ACCESS_ERR);
	assert_memory_equal((uint8_t *)owner.memory.base + 100, before, 100);
	fake_hold(-1);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

/* ---- other pools ---- */

static void another_pools_key_is_of_no_use(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_memory other = {.bytes = MIB, .fd = -1};
	struct qmt_handle handle;
	struct qmt_offer offer, answer;
	struct qmt_endpoint *second = NULL;
	struct qmt_op op;
	uint8_t local[64] = {0};

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	other.base = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(other.base, 0x55, MIB);
	assert_int_equal(
		owner.ops->server_register(owner.server, &other, OWNER_REGION + 1, &handle),
		QMLA_OK);
	/* One that may read the other pool tells its key to one that may not. */
	assert_int_equal(owner.ops->endpoint_offer(&owner.address, &second, &offer), QMLA_OK);
	assert_int_equal(owner.ops->server_answer(owner.server, OWNER_REGION + 1, &offer, &answer),
			 QMLA_OK);
	assert_int_equal(owner.ops->endpoint_complete(second, &answer, qmc_clock_after(SECOND)),
			 QMLA_OK);
	endpoint = owner_connect(&owner);
	op = owner_op(&owner, QMT_READ, 0, local, sizeof(local));
	op.remote = &handle;
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qmt_endpoint_run(owner.ops, second, &op, 1), QMLA_OK);
	assert_int_equal(local[0], 0x55);
	memset(local, 0, sizeof(local));
	rig_inside(endpoint)->rails[0].rkeys[0] = rig_inside(second)->rails[0].rkeys[0];
	rig_inside(endpoint)->answer.base = rig_inside(second)->answer.base;
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 0, local, sizeof(local)),
			 QMLA_ERR_UNAVAILABLE);
	assert_int_equal(local[0], 0);
	owner.ops->endpoint_destroy(endpoint);
	/* Nor does a message get one at it: the region is not this connection's. */
	endpoint = owner_connect(&owner);
	rig_inside(endpoint)->answer.region = OWNER_REGION + 1;
	op = owner_op(&owner, QMT_WRITE, 0, local, sizeof(local));
	op.remote = &handle;
	assert_int_equal(qmt_endpoint_run(owner.ops, endpoint, &op, 1), QMLA_ERR_NOT_FOUND);
	owner.ops->endpoint_destroy(endpoint);
	owner.ops->endpoint_destroy(second);
	owner_stop(&owner);
	munmap(other.base, MIB);
}

static void a_pool_that_changes_hands_is_closed_to_its_readers(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t local[64] = {0};

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 0, local, sizeof(local)), QMLA_OK);
	owner.ops->server_revoke(owner.server, OWNER_REGION + 1); /* none of its business */
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 0, local, sizeof(local)), QMLA_OK);
	owner.ops->server_revoke(owner.server, OWNER_REGION);
	memset(owner.memory.base, 0x99, MIB);
	memset(local, 0, sizeof(local));
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 0, local, sizeof(local)),
			 QMLA_ERR_UNAVAILABLE);
	assert_int_equal(local[0], 0);
	owner.ops->endpoint_destroy(endpoint);
	assert_true(rig_has_peers(&owner, 0));
	endpoint = owner_connect(&owner);
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 0, local, sizeof(local)), QMLA_OK);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

/* ---- bounds ---- */

/* Mooncake #1845: more than 20,000 queue pairs on a NIC while peers came and went. */
static void queue_pairs_are_bounded_whatever_peers_do(void **state)
{
	struct owner owner;
	struct qmt_server_stats stats = {0};
	unsigned refused = 0;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 8, 200 * QMC_NS_PER_MS);
	for (int i = 0; i < 100; i++) {
		struct qmt_endpoint *endpoint = NULL;
		struct qmt_offer offer, answer;

		/* Asks, takes the answer, and is never seen again. */
		assert_int_equal(owner.ops->endpoint_offer(&owner.address, &endpoint, &offer),
				 QMLA_OK);
		refused += owner.ops->server_answer(owner.server, OWNER_REGION, &offer, &answer) ==
			   QMLA_ERR_RESOURCE_EXHAUSTED;
		owner.ops->endpoint_destroy(endpoint);
		owner.ops->server_stats(owner.server, &stats);
		assert_in_range(stats.peers, 0, 8);
		assert_in_range(fake_qps(), 0, 8);
	}
	assert_true(refused > 50);
	assert_true(rig_has_peers(&owner, 0)); /* reclaimed by time */
	assert_int_equal(fake_qps(), 0);
	owner.ops->endpoint_destroy(owner_connect(&owner));
	owner_stop(&owner);
}

static void the_same_offer_gets_the_same_answer(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint = NULL;
	struct qmt_offer offer, answer, again;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	assert_int_equal(owner.ops->endpoint_offer(&owner.address, &endpoint, &offer), QMLA_OK);
	assert_int_equal(owner.ops->server_answer(owner.server, OWNER_REGION, &offer, &answer),
			 QMLA_OK);
	assert_int_equal(owner.ops->server_answer(owner.server, OWNER_REGION, &offer, &again),
			 QMLA_OK);
	assert_int_equal(answer.length, again.length);
	assert_memory_equal(answer.bytes, again.bytes, answer.length);
	assert_true(rig_has_peers(&owner, 1));
	assert_int_equal(owner.ops->server_answer(owner.server, OWNER_REGION + 5, &offer, &again),
			 QMLA_ERR_NOT_FOUND);
	assert_int_equal(owner.ops->endpoint_complete(endpoint, &again, qmc_clock_after(SECOND)),
			 QMLA_OK);
	assert_int_equal(owner.ops->endpoint_complete(endpoint, &again, qmc_clock_after(SECOND)),
			 QMLA_ERR_INVALID_ARGUMENT);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

/* A peer that was killed says nothing; its device's silence to a ping does. */
static void a_peer_that_vanished_is_found_out(void **state)
{
	int server = fake_add_roce("s", 1), client = fake_add_roce("c", 2);
	struct owner owner;
	struct qmt_endpoint *endpoint;

	(void)state;
	(void)server;
	rig_use("s", "c");
	rig_start(&owner, MIB, 0, 200 * QMC_NS_PER_MS);
	endpoint = owner_connect(&owner);
	sleep_ms(500);
	assert_true(rig_has_peers(&owner, 1)); /* silent, but there */
	assert_true(owner.ops->endpoint_alive(endpoint));
	fake_set_fabric(client, 1);
	assert_true(rig_has_peers(&owner, 0));
	fake_set_fabric(client, 0);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

static void a_peer_that_stalls_inside_a_write_is_dropped(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t local[100] = {1};
	struct qmt_op op;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 300 * QMC_NS_PER_MS);
	endpoint = owner_connect(&owner);
	op = owner_op(&owner, QMT_WRITE, 0, local, 100);
	(void)open_window(&owner, endpoint, &op);
	assert_int_equal(owner_in_flight(&owner), 1);
	assert_true(owner_settles(&owner, 2000));
	assert_int_equal(owner_snapshot(&owner).last_finished, QMLA_ERR_DEADLINE);
	fake_hold(-1);
	assert_true(rig_has_peers(&owner, 0));
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

/* A peer's own words: none of them does more than end its connection. */
static void senseless_messages_end_the_connection(void **state)
{
	static const struct qmt_message messages[] = {
		{.kind = QMT_MESSAGE_GRANT},          {.kind = QMT_MESSAGE_WELCOME},
		{.kind = QMT_MESSAGE_REPLY},          {.kind = QMT_MESSAGE_HELLO},
		{.kind = QMT_MESSAGE_DONE, .id = 77},
	};
	struct owner owner;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	for (size_t i = 0; i < sizeof(messages) / sizeof(messages[0]); i++) {
		struct qmt_endpoint *endpoint = owner_connect(&owner);

		assert_true(qmt_verbs_tell(rig_inside(endpoint), &rig_inside(endpoint)->rails[0],
					   &messages[i]));
		qmt_verbs_flush(rig_inside(endpoint));
		assert_true(rig_has_peers(&owner, 0));
		owner.ops->endpoint_destroy(endpoint);
	}
	/* More writes at once than were agreed. */
	{
		struct qmt_endpoint *endpoint = owner_connect(&owner);
		const struct qmt_message greedy = {
			.kind = QMT_MESSAGE_WRITE, .region = OWNER_REGION, .length = 8};

		for (int i = 0; i < 17; i++) {
			(void)qmt_verbs_tell(rig_inside(endpoint), &rig_inside(endpoint)->rails[0],
					     &greedy);
			qmt_verbs_flush(rig_inside(endpoint));
		}
		assert_true(rig_has_peers(&owner, 0));
		owner.ops->endpoint_destroy(endpoint);
	}
	assert_int_equal(owner_in_flight(&owner), 0);
	owner_stop(&owner);
}

static void the_server_goes_while_reads_and_writes_are_under_way(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t *local = malloc(MIB);
	struct qmt_op ops[2], *done = NULL;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	ops[0] = owner_op(&owner, QMT_WRITE, 0, local, 1000);
	(void)open_window(&owner, endpoint, &ops[0]);
	ops[1] = owner_op(&owner, QMT_READ, 5000, local + 5000, 1000);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &ops[1]), QMLA_OK);
	owner_stop_server(&owner);
	assert_int_equal(owner_in_flight(&owner), 0);
	assert_int_equal(owner_snapshot(&owner).finished_failed, 1);
	fake_hold(-1);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(
			owner.ops->endpoint_wait(endpoint, qmc_clock_after(5 * SECOND), &done),
			QMLA_OK);
		assert_non_null(done);
		assert_int_equal(done->status, QMLA_ERR_UNAVAILABLE);
	}
	assert_false(owner.ops->endpoint_alive(endpoint));
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
}

/* Linux 6.1's Soft-RoCE stands still when windows and messages are queued together. */
static void on_soft_roce_windows_and_messages_take_turns(void **state)
{
	enum { COUNT = 200, SIZE = 1000 };
	int device = fake_add_roce("rxe0", 1);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op *ops = calloc(COUNT, sizeof(*ops)), *done = NULL;
	uint8_t *local = malloc(COUNT * SIZE);

	(void)state;
	fake_get(device)->soft = true;
	rig_start(&owner, COUNT * SIZE, 0, 0);
	endpoint = owner_connect(&owner);
	fill_pattern(local, COUNT * SIZE, 77);
	for (size_t i = 0; i < COUNT; i++) {
		ops[i] = owner_op(&owner, QMT_WRITE, i * SIZE, local + i * SIZE, SIZE);
		assert_int_equal(owner.ops->endpoint_post(endpoint, &ops[i]), QMLA_OK);
	}
	/* Either kind is held up in turn, so that the other has to wait; the fake watches. */
	for (size_t i = 0, left = COUNT; left > 0; i++) {
		static const int kinds[] = {IBV_WR_SEND, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, -1};

		fake_hold(kinds[i % 4]);
		while (owner.ops->endpoint_wait(endpoint, qmc_clock_after(QMC_NS_PER_MS), &done) ==
			       QMLA_OK &&
		       done) {
			assert_int_equal(done->status, QMLA_OK);
			left--;
		}
		assert_true(i < 5000);
	}
	fake_hold(-1);
	assert_memory_equal(owner.memory.base, local, COUNT * SIZE);
	owner.policy = QMLA_ERR_PERMISSION;
	assert_int_equal(rig_run(&owner, endpoint, QMT_WRITE, 0, local, 10), QMLA_ERR_PERMISSION);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(ops);
	free(local);
}

static void it_says_what_it_serves_through(void **state)
{
	int device = fake_add_roce("nic", 1);
	char text[QMT_DESCRIPTION_MAX];
	struct owner owner;

	(void)state;
	rig_start(&owner, MIB, 0, 0);
	owner.ops->server_describe(owner.server, text);
	assert_string_equal(text, "verbs: nic port 1 gid 1 (RoCE v2 10.0.0.1); host memory; "
				  "writes by window");
	fake_get(device)->state = IBV_PORT_DOWN;
	owner.ops->server_describe(owner.server, text);
	assert_non_null(strstr(text, "DOWN"));
	owner_stop(&owner);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(a_writer_whose_ticket_ended_cannot_write_any_more),
		CASE(a_window_is_dead_once_its_write_is_done),
		CASE(the_pools_key_allows_no_write),
		CASE(a_window_serves_its_own_writer_only),
		CASE(a_window_covers_its_own_range_only),
		CASE(another_pools_key_is_of_no_use),
		CASE(a_pool_that_changes_hands_is_closed_to_its_readers),
		CASE(queue_pairs_are_bounded_whatever_peers_do),
		CASE(the_same_offer_gets_the_same_answer),
		CASE(a_peer_that_vanished_is_found_out),
		CASE(a_peer_that_stalls_inside_a_write_is_dropped),
		CASE(senseless_messages_end_the_connection),
		CASE(the_server_goes_while_reads_and_writes_are_under_way),
		CASE(on_soft_roce_windows_and_messages_take_turns),
		CASE(it_says_what_it_serves_through),
	};

	if (argc > 1) /* one of them */
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
