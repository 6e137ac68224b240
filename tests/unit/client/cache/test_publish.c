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
#include "kernels/block.h"
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

static qmla_status_t publish(struct fixture *f, size_t count, uint32_t timeout_ms,
			     qmla_status_t *statuses)
{
	return qmla_client_publish(f->client, f->keys, count, (const void *const *)f->written,
				   timeout_ms, statuses);
}

/* The caller's memory is not written; the node's copy carries the slot's generation. */
static void test_header_carries_generation(void **state)
{
	struct fixture *f = *state;
	struct qmk_block_info info = {.generation = 0};
	uint8_t *before = malloc(f->bytes.block_bytes);
	const uint8_t *stored;

	assert_non_null(before);
	memcpy(before, f->written[0], f->bytes.block_bytes);
	fixture_publish(f, 1);
	assert_memory_equal(before, f->written[0], f->bytes.block_bytes);
	stored = fake_node_block(f->nodes[0], &f->keys[0]);
	memcpy(info.key, f->keys[0].bytes, sizeof(info.key));
	memcpy(info.identity, f->identity.bytes, sizeof(info.identity));
	info.generation = 1; /* the slot's first */
	assert_int_equal(qmk_block_check(&f->bytes, &info, stored), QMLA_OK);
	info.generation = 2;
	assert_int_equal(qmk_block_check(&f->bytes, &info, stored), QMLA_ERR_STALE);
	free(before);
}

static void test_twice(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[30];

	fixture_publish(f, 20);
	assert_int_equal(publish(f, 30, 3000, statuses), QMLA_OK);
	for (size_t i = 0; i < 30; i++)
		assert_int_equal(statuses[i], i < 20 ? QMLA_ERR_ALREADY_EXISTS : QMLA_OK);
	assert_int_equal(publish(f, 0, 3000, NULL), QMLA_OK);
}

static void test_duplicate_in_batch(void **state)
{
	struct fixture *f = *state;
	qmla_key_t keys[3] = {f->keys[0], f->keys[0], f->keys[1]};
	const void *blocks[3] = {f->written[0], f->written[0], f->written[1]};
	qmla_status_t statuses[3];

	assert_int_equal(qmla_client_publish(f->client, keys, 3, blocks, 2000, statuses), QMLA_OK);
	assert_int_equal(statuses[0], QMLA_OK);
	assert_int_equal(statuses[1], QMLA_ERR_ALREADY_EXISTS);
	assert_int_equal(statuses[2], QMLA_OK);
	assert_int_equal(fake_node_blocks(f->nodes[0]), 2);
}

/* Full for a moment: the hint is followed, nothing is lost. */
static void test_full_for_a_moment(void **state)
{
	struct fixture *f = *state;

	atomic_store(&f->nodes[0]->faults.full_times, 3);
	fixture_publish(f, 8);
	assert_true(atomic_load(&f->nodes[0]->counts.reserves) >= 4);
}

/* Full for good: the suffix is left out, the prefix stays whole, the time is kept. */
static void test_full_leaves_no_hole(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[12];
	qmc_time_t begin = qmc_clock_now();

	assert_int_equal(publish(f, 5, 2000, NULL), QMLA_OK);
	atomic_store(&f->nodes[0]->faults.full_times, 1000000);
	assert_int_equal(publish(f, 12, 700, statuses), QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_true(qmc_clock_now() - begin < 1500 * QMC_NS_PER_MS);
	for (size_t i = 0; i < 12; i++)
		assert_int_equal(statuses[i], QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(fixture_fetch(f, 12, 1000, NULL, NULL), 5);
	atomic_store(&f->nodes[0]->faults.full_times, 0);
	assert_int_equal(publish(f, 12, 2000, statuses), QMLA_OK);
	assert_int_equal(fixture_fetch(f, 12, 1000, NULL, NULL), 12);
}

/* Room for seven of a call: those seven are committed in order, the rest on a later call. */
static void test_room_for_some(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[12];

	atomic_store(&f->nodes[0]->faults.full_after, 7);
	assert_int_equal(publish(f, 12, 3000, statuses), QMLA_OK);
	assert_int_equal(fixture_fetch(f, 12, 1000, NULL, NULL), 12);
	assert_true(atomic_load(&f->nodes[0]->counts.reserves) >= 2);
}

/* What lies behind a failed block in the same window is aborted, not committed. */
static void test_tickets_behind_are_aborted(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[30];
	int victim;
	size_t first = 0, ends;

	fixture_publish(f, 1);
	victim = (fixture_holder(f, 0) + 1) % 3;
	atomic_store(&f->nodes[victim]->faults.full_times, 1000000);
	assert_int_equal(publish(f, 30, 400, statuses), QMLA_ERR_RESOURCE_EXHAUSTED);
	while (statuses[first] == QMLA_OK || statuses[first] == QMLA_ERR_ALREADY_EXISTS)
		first++;
	for (size_t i = first; i < 30; i++)
		assert_int_equal(statuses[i], QMLA_ERR_RESOURCE_EXHAUSTED);
	for (size_t i = 0; i < 30; i++)
		assert_int_equal(fixture_holder(f, i) >= 0, i < first);
	ends = fixture_fetch(f, 30, 1000, NULL, NULL);
	assert_int_equal(ends, first);
	assert_true(
		fixture_reaches(&f->nodes[3 - victim - fixture_holder(f, 0)]->counts.aborts, 1));
}

static void test_draining_node_is_passed_over(void **state)
{
	struct fixture *f = *state;

	atomic_store(&f->nodes[1]->faults.draining, true);
	fixture_publish(f, 30);
	assert_int_equal(fake_node_blocks(f->nodes[1]), 0);
	assert_int_equal(fixture_fetch(f, 30, 2000, NULL, NULL), 30);
}

static void test_all_draining(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[4];

	atomic_store(&f->nodes[0]->faults.draining, true);
	assert_int_equal(publish(f, 4, 2000, statuses), QMLA_ERR_UNAVAILABLE);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(statuses[i], QMLA_ERR_UNAVAILABLE);
}

/* A node that takes calls and never answers costs its call timeout, then the next one writes. */
static void test_silent_node(void **state)
{
	struct fixture *f = *state;
	qmc_time_t begin;

	fixture_publish(f, 3);
	atomic_store(&f->nodes[2]->faults.never_answers, true);
	begin = qmc_clock_now();
	assert_int_equal(publish(f, 30, 5000, NULL), QMLA_OK);
	assert_in_range(qmc_clock_now() - begin, 400 * QMC_NS_PER_MS, 2000 * QMC_NS_PER_MS);
	begin = qmc_clock_now();
	assert_int_equal(publish(f, 40, 5000, NULL), QMLA_OK);
	assert_true(qmc_clock_now() - begin < 400 * QMC_NS_PER_MS);
}

static void test_everyone_dead(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[10];
	qmc_time_t begin;

	for (size_t n = 0; n < 3; n++) {
		fake_node_stop(f->nodes[n]);
		f->nodes[n] = NULL;
	}
	begin = qmc_clock_now();
	assert_int_equal(publish(f, 10, 3000, statuses), QMLA_ERR_UNAVAILABLE);
	for (size_t i = 0; i < 10; i++)
		assert_int_equal(statuses[i], QMLA_ERR_UNAVAILABLE);
	assert_int_equal(publish(f, 10, 3000, statuses), QMLA_ERR_UNAVAILABLE);
	assert_true(qmc_clock_now() - begin < QMC_NS_PER_S);
}

static void test_copies(void **state)
{
	struct fixture *f = *state;
	uint32_t blocks = 0;

	f->config.replicas = 3;
	fixture_reopen(f);
	fixture_publish(f, 10);
	for (size_t n = 0; n < 3; n++)
		blocks += fake_node_blocks(f->nodes[n]);
	assert_int_equal(blocks, 30);
	/* One node full: two copies are enough for success. */
	atomic_store(&f->nodes[0]->faults.full_times, 1000000);
	assert_int_equal(publish(f, 20, 2000, NULL), QMLA_OK);
	assert_int_equal(fake_node_blocks(f->nodes[1]), 20);
}

/* Another writer holds the ticket: reported, and no reason to stop. */
static void test_busy_key(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[6];

	/* Reserve, then never commit: a writer that died in between. */
	fixture_publish(f, 1);
	fake_node_remove(f->nodes[0], &f->keys[0]);
	fake_node_reserve(f->nodes[0], &f->keys[2]);
	assert_int_equal(publish(f, 6, 2000, statuses), QMLA_OK);
	assert_int_equal(statuses[2], QMLA_ERR_BUSY);
	assert_int_equal(statuses[3], QMLA_OK);
	assert_int_equal(fixture_fetch(f, 6, 1000, NULL, NULL), 2);
}

/* The node gave an idle identity's pool away: connect anew, then go on. */
static void test_pool_given_away(void **state)
{
	struct fixture *f = *state;

	fixture_publish(f, 3);
	atomic_store(&f->nodes[0]->faults.no_pool, true);
	assert_int_equal(publish(f, 6, 2000, NULL), QMLA_OK);
	assert_int_equal(atomic_load(&f->nodes[0]->counts.connects), 2);
	atomic_store(&f->nodes[0]->faults.no_pool, true);
	assert_int_equal(fixture_fetch(f, 6, 1000, NULL, NULL), 0);
	assert_int_equal(fixture_fetch(f, 6, 1000, NULL, NULL), 6);
}

static void test_refuses_bad_blocks(void **state)
{
	struct fixture *f = *state;
	const void *swapped[2] = {f->written[1], f->written[0]};
	const void *missing[2] = {f->written[0], NULL};
	qmla_client_t *other;
	qmla_client_config_t config = f->config;

	assert_int_equal(qmla_client_publish(f->client, f->keys, 2, swapped, 1000, NULL),
			 QMLA_ERR_STALE);
	assert_int_equal(qmla_client_publish(f->client, f->keys, 2, missing, 1000, NULL),
			 QMLA_ERR_INVALID_ARGUMENT);
	config.identity.bytes[5] ^= 1;
	assert_int_equal(qmla_client_create(&config, &other), QMLA_OK);
	assert_int_equal(
		qmla_client_publish(other, f->keys, 2, (const void *const *)f->written, 1000, NULL),
		QMLA_ERR_IDENTITY_MISMATCH);
	qmla_client_destroy(other);
	config = f->config;
	config.layout.format = QMLA_FORMAT_C2R4;
	assert_int_equal(qmla_client_create(&config, &other), QMLA_OK);
	assert_int_not_equal(
		qmla_client_publish(other, f->keys, 2, (const void *const *)f->written, 1000, NULL),
		QMLA_OK);
	qmla_client_destroy(other);
	f->written[0][8] ^= 0x40;
	assert_int_not_equal(publish(f, 1, 1000, NULL), QMLA_OK);
	assert_int_equal(atomic_load(&f->nodes[0]->counts.reserves), 0);
}

int main(void)
{
#define ONE(test)   cmocka_unit_test_setup_teardown(test, setup_one, teardown)
#define THREE(test) cmocka_unit_test_setup_teardown(test, setup_three, teardown)
	const struct CMUnitTest tests[] = {
		ONE(test_header_carries_generation),
		ONE(test_twice),
		THREE(test_twice),
		ONE(test_duplicate_in_batch),
		ONE(test_full_for_a_moment),
		ONE(test_full_leaves_no_hole),
		ONE(test_room_for_some),
		THREE(test_tickets_behind_are_aborted),
		THREE(test_draining_node_is_passed_over),
		ONE(test_all_draining),
		THREE(test_silent_node),
		THREE(test_everyone_dead),
		THREE(test_copies),
		ONE(test_busy_key),
		ONE(test_pool_given_away),
		ONE(test_refuses_bad_blocks),
	};

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
