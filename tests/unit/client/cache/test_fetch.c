/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/log.h"
#include "tests/unit/client/cache/fixture.h"

static int setup_one(void **state)
{
	*state = fixture_create(1);
	return 0;
}

static int setup_three(void **state)
{
	*state = fixture_create(3);
	return 0;
}

static int teardown(void **state)
{
	fixture_destroy(*state);
	return 0;
}

static void test_round_trip(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[20];
	qmla_fetch_stats_t stats;

	fixture_publish(f, 20);
	assert_int_equal(fixture_fetch(f, 20, 3000, statuses, &stats), 20);
	for (size_t i = 0; i < 20; i++)
		assert_int_equal(statuses[i], QMLA_OK);
	assert_int_equal(stats.bytes, 20 * f->bytes.block_bytes);
	assert_int_equal(stats.nodes, 1);
	assert_int_equal(stats.corrupt, 0);
	/* 16 keys to a batch: two leases, both given back. */
	assert_int_equal(atomic_load(&f->nodes[0]->counts.leases), 2);
	assert_true(fixture_reaches(&f->nodes[0]->counts.releases, 2));
}

static void test_three_nodes_share(void **state)
{
	struct fixture *f = *state;
	qmla_fetch_stats_t stats;
	size_t prefix;

	fixture_publish(f, 40);
	for (size_t n = 0; n < 3; n++)
		assert_in_range(fake_node_blocks(f->nodes[n]), 4, 30);
	assert_int_equal(fake_node_blocks(f->nodes[0]) + fake_node_blocks(f->nodes[1]) +
				 fake_node_blocks(f->nodes[2]),
			 40);
	assert_int_equal(fixture_fetch(f, 40, 3000, NULL, &stats), 40);
	assert_int_equal(stats.nodes, 3);
	assert_int_equal(qmla_client_lookup(f->client, f->keys, 40, 1000, &prefix), QMLA_OK);
	assert_int_equal(prefix, 40);
}

static void test_nothing_there(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[8];
	size_t prefix = 9;

	assert_int_equal(fixture_fetch(f, 8, 1000, statuses, NULL), 0);
	assert_int_equal(statuses[0], QMLA_ERR_NOT_FOUND);
	assert_int_equal(qmla_client_lookup(f->client, f->keys, 8, 1000, &prefix), QMLA_OK);
	assert_int_equal(prefix, 0);
	assert_int_equal(qmla_client_lookup(f->client, f->keys, 0, 1000, &prefix), QMLA_OK);
	assert_int_equal(prefix, 0);
	assert_int_equal(fixture_fetch(f, 0, 1000, NULL, NULL), 0);
}

/* A hole ends the run, and nothing behind it is moved. */
static void test_hole(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[12];
	qmla_fetch_stats_t stats;
	size_t prefix;

	fixture_publish(f, 12);
	fake_node_remove(f->nodes[fixture_holder(f, 5)], &f->keys[5]);
	assert_int_equal(fixture_fetch(f, 12, 2000, statuses, &stats), 5);
	assert_int_equal(stats.bytes, 5 * f->bytes.block_bytes);
	assert_int_equal(statuses[4], QMLA_OK);
	assert_int_equal(statuses[5], QMLA_ERR_NOT_FOUND);
	assert_int_not_equal(statuses[6], QMLA_OK);
	assert_int_equal(qmla_client_lookup(f->client, f->keys, 12, 1000, &prefix), QMLA_OK);
	assert_int_equal(prefix, 5);
	assert_int_equal(qmla_client_probe(f->client, f->keys, 12, 1000, statuses), QMLA_OK);
	for (size_t i = 0; i < 12; i++)
		assert_int_equal(statuses[i], i == 5 ? QMLA_ERR_NOT_FOUND : QMLA_OK);
}

/* The page was changed after the writer sealed it: found, reported, dropped, and published anew. */
static void test_flipped_bit(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[10];
	qmla_fetch_stats_t stats;
	int holder;

	fixture_publish(f, 10);
	holder = fixture_holder(f, 3);
	fake_node_block(f->nodes[holder], &f->keys[3])[f->bytes.header_bytes + 777] ^= 0x10;
	assert_int_equal(fixture_fetch(f, 10, 2000, statuses, &stats), 3);
	assert_int_equal(statuses[3], QMLA_ERR_CORRUPT);
	assert_int_equal(stats.corrupt, 1);
	assert_int_equal(atomic_load(&f->nodes[holder]->counts.reports), 1);
	assert_int_equal(fixture_holder(f, 3), -1);
	assert_int_equal(qmla_client_publish(f->client, f->keys, 10,
					     (const void *const *)f->written, 2000, statuses),
			 QMLA_OK);
	assert_int_equal(statuses[3], QMLA_OK);
	assert_int_equal(statuses[4], QMLA_ERR_ALREADY_EXISTS);
	assert_int_equal(fixture_fetch(f, 10, 2000, NULL, NULL), 10);
}

/* Every answer that does not hold together is a miss, never bytes, never a crash. */
static void check_miss(struct fixture *f, qmla_status_t expected)
{
	qmla_status_t statuses[6];
	qmc_time_t begin = qmc_clock_now();

	assert_int_equal(fixture_fetch(f, 6, 2000, statuses, NULL), 0);
	assert_int_equal(statuses[0], expected);
	assert_true(qmc_clock_now() - begin < 2 * QMC_NS_PER_S);
}

static void test_bent_answers(void **state)
{
	struct fixture *f = *state;
	struct fake_faults *faults = &f->nodes[0]->faults;

	fixture_publish(f, 6);
	atomic_store(&faults->short_answer, true);
	check_miss(f, QMLA_ERR_FORMAT);
	atomic_store(&faults->short_answer, false);
	atomic_store(&faults->outside_pool, true);
	check_miss(f, QMLA_ERR_FORMAT);
	atomic_store(&faults->outside_pool, false);
	atomic_store(&faults->wrong_length, true);
	check_miss(f, QMLA_ERR_FORMAT);
	atomic_store(&faults->wrong_length, false);
	atomic_store(&faults->no_capability, true);
	check_miss(f, QMLA_ERR_FORMAT);
	atomic_store(&faults->no_capability, false);
	atomic_store(&faults->unknown_code, true);
	check_miss(f, QMLA_ERR_INTERNAL);
	atomic_store(&faults->unknown_code, false);
	atomic_store(&faults->other_incarnation, true);
	check_miss(f, QMLA_ERR_PEER_RESTARTED);
	atomic_store(&faults->other_incarnation, false);
	atomic_store(&faults->deny_reads, true);
	check_miss(f, QMLA_ERR_PERMISSION);
	atomic_store(&faults->deny_reads, false);
	assert_int_equal(fixture_fetch(f, 6, 2000, NULL, NULL), 6);
}

/* A slot that was given to someone else, as its generation tells. */
static void test_wrong_generation(void **state)
{
	struct fixture *f = *state;

	fixture_publish(f, 6);
	atomic_store(&f->nodes[0]->faults.generation_shift, 1);
	check_miss(f, QMLA_ERR_STALE);
	atomic_store(&f->nodes[0]->faults.generation_shift, 0);
	assert_int_equal(fixture_fetch(f, 6, 2000, NULL, NULL), 6);
}

/* Whole and sealed, but not the bytes that were committed. */
static void test_wrong_digest(void **state)
{
	struct fixture *f = *state;

	fixture_publish(f, 6);
	atomic_store(&f->nodes[0]->faults.other_digest, true);
	check_miss(f, QMLA_ERR_CORRUPT);
	assert_true(atomic_load(&f->nodes[0]->counts.reports) >= 1);
}

static void test_other_blocks_bytes(void **state)
{
	struct fixture *f = *state;
	uint8_t *a, *b;

	fixture_publish(f, 2);
	a = fake_node_block(f->nodes[0], &f->keys[0]);
	b = fake_node_block(f->nodes[0], &f->keys[1]);
	memcpy(a, b, f->bytes.block_bytes);
	check_miss(f, QMLA_ERR_STALE);
}

/* Leases of 500 ms, reads of 100 ms each: renewals carry the transfer through. */
static void test_lease_renewed(void **state)
{
	struct fixture *f = *state;
	qmla_fetch_stats_t stats;

	fixture_publish(f, 16);
	atomic_store(&f->nodes[0]->faults.lease_ms, 500);
	atomic_store(&f->nodes[0]->faults.read_delay_ns, 100 * QMC_NS_PER_MS);
	assert_int_equal(fixture_fetch(f, 16, 5000, NULL, &stats), 16);
	assert_true(stats.renewals >= 2);
}

/* The node refuses to renew: what arrives after the lease's end is thrown away. */
static void test_transfer_outlives_lease(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[16];
	size_t prefix;

	fixture_publish(f, 16);
	atomic_store(&f->nodes[0]->faults.lease_ms, 200);
	atomic_store(&f->nodes[0]->faults.refuse_renewal, true);
	atomic_store(&f->nodes[0]->faults.read_delay_ns, 40 * QMC_NS_PER_MS);
	prefix = fixture_fetch(f, 16, 5000, statuses, NULL);
	assert_in_range(prefix, 0, 6);
	assert_int_equal(statuses[prefix], QMLA_ERR_LEASE_EXPIRED);
}

/* A lookup that took as long as its lease: the client counts from before it asked. */
static void test_answer_older_than_lease(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[4];

	fixture_publish(f, 4);
	atomic_store(&f->nodes[0]->faults.lease_ms, 100);
	atomic_store(&f->nodes[0]->faults.lookup_delay_ns, 150 * QMC_NS_PER_MS);
	assert_int_equal(fixture_fetch(f, 4, 2000, statuses, NULL), 0);
	assert_int_equal(statuses[0], QMLA_ERR_LEASE_EXPIRED);
}

/* A node that stops sending in the middle costs one bounded miss and is left out. */
static void test_stalled_reads(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[6];
	qmc_time_t begin;

	fixture_publish(f, 6);
	atomic_store(&f->nodes[0]->faults.read_delay_ns, 1200 * QMC_NS_PER_MS);
	begin = qmc_clock_now();
	assert_int_equal(fixture_fetch(f, 6, 3000, statuses, NULL), 0);
	assert_int_equal(statuses[0], QMLA_ERR_DEADLINE);
	assert_in_range(qmc_clock_now() - begin, 400 * QMC_NS_PER_MS, 1150 * QMC_NS_PER_MS);
	begin = qmc_clock_now();
	assert_int_equal(fixture_fetch(f, 6, 3000, statuses, NULL), 0);
	assert_true(qmc_clock_now() - begin < 390 * QMC_NS_PER_MS);
	atomic_store(&f->nodes[0]->faults.read_delay_ns, 0);
	for (int i = 0; i < 100 && fixture_fetch(f, 6, 1000, NULL, NULL) < 6; i++)
		qmc_clock_sleep_until(qmc_clock_after(20 * QMC_NS_PER_MS));
	assert_int_equal(fixture_fetch(f, 6, 1000, NULL, NULL), 6);
}

static void test_timeout_is_kept(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[6];
	qmc_time_t begin;

	fixture_publish(f, 6);
	atomic_store(&f->nodes[0]->faults.lookup_delay_ns, 900 * QMC_NS_PER_MS);
	begin = qmc_clock_now();
	assert_int_equal(fixture_fetch(f, 6, 60, statuses, NULL), 0);
	assert_int_equal(statuses[0], QMLA_ERR_DEADLINE);
	assert_true(qmc_clock_now() - begin < 800 * QMC_NS_PER_MS);
	assert_int_equal(fixture_fetch(f, 6, 0, statuses, NULL), 0);
	/* Two short ones do not condemn the node. */
	atomic_store(&f->nodes[0]->faults.lookup_delay_ns, 0);
	assert_int_equal(fixture_fetch(f, 6, 2000, NULL, NULL), 6);
}

/* With two copies, a bad one is made good by the other. */
static void test_replica_helps(void **state)
{
	struct fixture *f = *state;
	qmla_fetch_stats_t stats;

	f->config.replicas = 2;
	fixture_reopen(f);
	fixture_publish(f, 20);
	for (size_t i = 0; i < 20; i += 3) {
		int holder = fixture_holder(f, i);

		fake_node_block(f->nodes[holder], &f->keys[i])[f->bytes.block_bytes - 1] ^= 1;
	}
	assert_int_equal(fixture_fetch(f, 20, 3000, NULL, &stats), 20);
	assert_in_range(stats.corrupt, 1, 7);
}

/* A node dies: with two copies nothing is lost. */
static void test_replica_outlives_node(void **state)
{
	struct fixture *f = *state;

	f->config.replicas = 2;
	fixture_reopen(f);
	fixture_publish(f, 20);
	fake_node_stop(f->nodes[1]);
	f->nodes[1] = NULL;
	assert_int_equal(fixture_fetch(f, 20, 3000, NULL, NULL), 20);
	assert_int_equal(fixture_fetch(f, 20, 3000, NULL, NULL), 20);
}

/* One of three dies: a miss for its keys, no error, and no waiting from then on. */
static void test_node_dies(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[20];
	qmc_time_t begin;
	size_t first = 0;

	fixture_publish(f, 20);
	while (fixture_holder(f, first) != 2)
		first++;
	fake_node_stop(f->nodes[2]);
	f->nodes[2] = NULL;
	begin = qmc_clock_now();
	assert_int_equal(fixture_fetch(f, 20, 3000, statuses, NULL), first);
	assert_int_equal(statuses[first], QMLA_ERR_UNAVAILABLE);
	assert_true(qmc_clock_now() - begin < QMC_NS_PER_S);
	begin = qmc_clock_now();
	assert_int_equal(fixture_fetch(f, 20, 3000, statuses, NULL), first);
	assert_int_equal(statuses[first], QMLA_ERR_UNAVAILABLE);
	assert_true(qmc_clock_now() - begin < 280 * QMC_NS_PER_MS);
	/* What it held goes to the next in rank, and is found there. */
	assert_int_equal(qmla_client_publish(f->client, f->keys, 20,
					     (const void *const *)f->written, 2000, NULL),
			 QMLA_OK);
	assert_int_equal(fixture_fetch(f, 20, 3000, NULL, NULL), 20);
}

/* The same address, another life: a miss, then everything as usual. */
static void test_node_restarts(void **state)
{
	struct fixture *f = *state;
	uint16_t port = fake_node_port(f->nodes[0]);

	fixture_publish(f, 6);
	assert_int_equal(fixture_fetch(f, 6, 2000, NULL, NULL), 6);
	fake_node_stop(f->nodes[0]);
	f->nodes[0] = fake_node_start(&f->layout, port);
	assert_int_equal(fixture_fetch(f, 6, 2000, NULL, NULL), 0);
	for (int i = 0; i < 100; i++) {
		if (qmla_client_publish(f->client, f->keys, 6, (const void *const *)f->written, 500,
					NULL) == QMLA_OK)
			break;
		qmc_clock_sleep_until(qmc_clock_after(20 * QMC_NS_PER_MS));
	}
	assert_int_equal(fixture_fetch(f, 6, 2000, NULL, NULL), 6);
}

/* Idle data connections that went away are no failure. */
static void test_registered_memory(void **state)
{
	struct fixture *f = *state;

	fixture_publish(f, 6);
	assert_int_equal(qmla_client_register_memory(f->client, f->memory,
						     2 * f->bytes.block_bytes * FIXTURE_BLOCKS),
			 QMLA_OK);
	assert_int_equal(fixture_fetch(f, 6, 2000, NULL, NULL), 6);
	assert_int_equal(qmla_client_register_memory(f->client, NULL, 4096),
			 QMLA_ERR_INVALID_ARGUMENT);
}

static void test_refuses_bad_arguments(void **state)
{
	struct fixture *f = *state;
	void *odd[1] = {f->read[0] + 1};
	void *null[1] = {NULL};
	void *good[1] = {f->read[0]};
	size_t prefix;

	assert_int_equal(qmla_client_fetch(f->client, f->keys, 1, odd, 10, &prefix, NULL, NULL),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmla_client_fetch(f->client, f->keys, 1, null, 10, &prefix, NULL, NULL),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmla_client_fetch(f->client, NULL, 1, good, 10, &prefix, NULL, NULL),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmla_client_fetch(NULL, f->keys, 1, good, 10, &prefix, NULL, NULL),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmla_client_fetch(f->client, f->keys, 1, good, 10, NULL, NULL, NULL),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmla_client_lookup(f->client, f->keys, 1, 10, NULL),
			 QMLA_ERR_INVALID_ARGUMENT);
}

static void test_connect_nonsense(void **state)
{
	struct fixture *f = *state;

	atomic_store(&f->nodes[0]->faults.connect_nonsense, true);
	fixture_reopen(f);
	check_miss(f, QMLA_ERR_UNSUPPORTED);
	atomic_store(&f->nodes[0]->faults.connect_nonsense, false);
	fixture_publish(f, 2);
	assert_int_equal(fixture_fetch(f, 2, 1000, NULL, NULL), 2);
}

int main(void)
{
#define ONE(test)   cmocka_unit_test_setup_teardown(test, setup_one, teardown)
#define THREE(test) cmocka_unit_test_setup_teardown(test, setup_three, teardown)
	const struct CMUnitTest tests[] = {
		ONE(test_round_trip),
		THREE(test_three_nodes_share),
		THREE(test_nothing_there),
		ONE(test_hole),
		THREE(test_hole),
		ONE(test_flipped_bit),
		THREE(test_flipped_bit),
		ONE(test_bent_answers),
		ONE(test_wrong_generation),
		ONE(test_wrong_digest),
		ONE(test_other_blocks_bytes),
		ONE(test_lease_renewed),
		ONE(test_transfer_outlives_lease),
		ONE(test_answer_older_than_lease),
		ONE(test_stalled_reads),
		ONE(test_timeout_is_kept),
		THREE(test_replica_helps),
		THREE(test_replica_outlives_node),
		THREE(test_node_dies),
		ONE(test_node_restarts),
		ONE(test_registered_memory),
		ONE(test_refuses_bad_arguments),
		ONE(test_connect_nonsense),
	};

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
