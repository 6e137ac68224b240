/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "client/worker/pool.h"
#include "common/log.h"

#define BLOCK 1000 /* rounded up to 1024 */

static struct qmw_pool *make(uint32_t slots, bool keep)
{
	struct qmw_pool_config config = {
		.block_bytes = BLOCK, .bytes = slots * 1024ull + 100, .keep_unused = keep};
	struct qmw_pool *pool = NULL;

	assert_int_equal(qmw_pool_create(&config, &pool), QMLA_OK);
	assert_int_equal(qmw_pool_slots(pool), slots);
	return pool;
}

static qmla_key_t key(uint8_t n)
{
	qmla_key_t k = {{n, 7}};

	return k;
}

static qmla_status_t admit(struct qmw_pool *pool, const qmla_key_t *keys, uint32_t key_count,
			   uint32_t blocks, uint32_t *slots, uint32_t *hits,
			   struct qmw_pool_grant *grant)
{
	struct qmw_pool_need need = {.keys = keys,
				     .key_count = key_count,
				     .blocks = blocks,
				     .deadline = qmc_clock_after(20 * QMC_NS_PER_MS)};

	return qmw_pool_admit(pool, &need, slots, hits, grant);
}

/* Runs one request of blocks keyed first … first+count-1 to its end. */
static void run_request(struct qmw_pool *pool, uint8_t first, uint32_t count, uint32_t want_hits)
{
	qmla_key_t keys[16] = {0};
	uint32_t slots[16], hits = 99;
	struct qmw_pool_grant grant;

	for (uint32_t i = 0; i < count; i++)
		keys[i] = key((uint8_t)(first + i));
	assert_int_equal(admit(pool, keys, count, count, slots, &hits, &grant), QMLA_OK);
	assert_int_equal(hits, want_hits);
	for (uint32_t i = hits; i < count; i++) {
		slots[i] = qmw_pool_take(pool, &grant);
		slots[i] = qmw_pool_bind(pool, &keys[i], slots[i]);
	}
	qmw_pool_drop_all(pool, slots, count);
	qmw_pool_forgo(pool, &grant);
}

static void test_too_small_is_refused(void **state)
{
	struct qmw_pool_config config = {.block_bytes = BLOCK, .bytes = 1023};
	struct qmw_pool *pool = NULL;

	(void)state;
	assert_int_equal(qmw_pool_create(&config, &pool), QMLA_ERR_INVALID_ARGUMENT);
	assert_null(pool);
}

static void test_blocks_are_aligned_and_apart(void **state)
{
	struct qmw_pool *pool = make(3, true);
	struct qmk_pool kernel = qmw_pool_kernel(pool);

	(void)state;
	assert_int_equal(kernel.stride, 1024);
	for (uint32_t i = 0; i < 3; i++) {
		uint8_t *block = qmw_pool_block(pool, i);

		assert_int_equal((uintptr_t)block % 128, 0);
		assert_ptr_equal(block, (uint8_t *)kernel.base + i * 1024);
		memset(block, 0xA5, BLOCK);
	}
	qmw_pool_destroy(pool);
}

static void test_second_request_shares_the_prefix(void **state)
{
	struct qmw_pool *pool = make(8, true);
	struct qmw_pool_stats stats;

	(void)state;
	run_request(pool, 1, 4, 0);
	run_request(pool, 1, 4, 4);
	qmw_pool_read_stats(pool, &stats);
	assert_int_equal(stats.held, 0);
	assert_int_equal(stats.cached, 4);
	assert_int_equal(stats.granted, 0);
	assert_int_equal(stats.hits, 4);
	qmw_pool_destroy(pool);
}

static void test_nothing_is_kept_when_told_so(void **state)
{
	struct qmw_pool *pool = make(8, false);

	(void)state;
	run_request(pool, 1, 4, 0);
	run_request(pool, 1, 4, 0);
	qmw_pool_destroy(pool);
}

static void test_a_hole_ends_the_run(void **state)
{
	struct qmw_pool *pool = make(8, true);
	qmla_key_t keys[3] = {key(1), key(50), key(2)};
	uint32_t slots[3], hits;
	struct qmw_pool_grant grant;

	(void)state;
	run_request(pool, 1, 2, 0);
	assert_int_equal(admit(pool, keys, 3, 3, slots, &hits, &grant), QMLA_OK);
	assert_int_equal(hits, 1);
	assert_int_equal(grant.left, 2);
	qmw_pool_drop_all(pool, slots, hits);
	qmw_pool_forgo(pool, &grant);
	qmw_pool_destroy(pool);
}

static void test_ends_of_prefixes_go_first_and_the_oldest_of_them(void **state)
{
	struct qmw_pool *pool = make(4, true);

	(void)state;
	run_request(pool, 1, 2, 0);  /* 1 2 */
	run_request(pool, 11, 2, 0); /* 11 12 */
	run_request(pool, 21, 1, 0); /* takes the place of 2, the oldest end */
	run_request(pool, 1, 1, 1);  /* so 1 is there still */
	run_request(pool, 11, 2, 2);
	qmw_pool_destroy(pool);
}

static void test_larger_than_the_pool_is_too_large(void **state)
{
	struct qmw_pool *pool = make(4, true);
	uint32_t hits;
	struct qmw_pool_grant grant;

	(void)state;
	assert_int_equal(admit(pool, NULL, 0, 5, NULL, &hits, &grant), QMLA_ERR_TOO_LARGE);
	qmw_pool_destroy(pool);
}

static void test_full_pool_refuses_at_the_deadline(void **state)
{
	struct qmw_pool *pool = make(4, true);
	uint32_t hits;
	struct qmw_pool_grant first, second;
	qmc_time_t start = qmc_clock_now();

	(void)state;
	assert_int_equal(admit(pool, NULL, 0, 3, NULL, &hits, &first), QMLA_OK);
	assert_int_equal(admit(pool, NULL, 0, 2, NULL, &hits, &second),
			 QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_true(qmc_clock_now() - start < QMC_NS_PER_S);
	assert_int_equal(admit(pool, NULL, 0, 1, NULL, &hits, &second), QMLA_OK);
	qmw_pool_forgo(pool, &first);
	qmw_pool_forgo(pool, &second);
	qmw_pool_destroy(pool);
}

/* Hits that no one holds are room too, and must not be promised twice. */
static void test_idle_hits_count_against_room(void **state)
{
	struct qmw_pool *pool = make(4, true);
	qmla_key_t keys[4] = {key(1), key(2), key(3), key(4)};
	uint32_t slots[4], hits;
	struct qmw_pool_grant big, grant;

	(void)state;
	run_request(pool, 1, 4, 0);
	assert_int_equal(admit(pool, NULL, 0, 2, NULL, &hits, &big), QMLA_OK);
	assert_int_equal(admit(pool, keys, 3, 3, slots, &hits, &grant),
			 QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(admit(pool, keys, 2, 2, slots, &hits, &grant), QMLA_OK);
	assert_int_equal(hits, 2);
	(void)qmw_pool_take(pool, &big);
	(void)qmw_pool_take(pool, &big);
	assert_int_equal(big.left, 0);
	qmw_pool_destroy(pool);
}

static void test_bind_joins_equal_blocks(void **state)
{
	struct qmw_pool *pool = make(4, true);
	struct qmw_pool_stats stats;
	struct qmw_pool_grant a, b;
	qmla_key_t k = key(9);
	uint32_t hits, one, two;

	(void)state;
	assert_int_equal(admit(pool, NULL, 0, 1, NULL, &hits, &a), QMLA_OK);
	assert_int_equal(admit(pool, NULL, 0, 1, NULL, &hits, &b), QMLA_OK);
	one = qmw_pool_take(pool, &a);
	two = qmw_pool_take(pool, &b);
	assert_int_not_equal(one, two);
	assert_int_equal(qmw_pool_bind(pool, &k, one), one);
	assert_int_equal(qmw_pool_bind(pool, &k, two), one);
	qmw_pool_read_stats(pool, &stats);
	assert_int_equal(stats.held, 1);
	qmw_pool_drop(pool, one);
	qmw_pool_read_stats(pool, &stats);
	assert_int_equal(stats.held, 1); /* the other holder */
	qmw_pool_drop(pool, one);
	qmw_pool_read_stats(pool, &stats);
	assert_int_equal(stats.held, 0);
	assert_int_equal(stats.cached, 1);
	qmw_pool_destroy(pool);
}

static void test_untake_gives_the_right_back(void **state)
{
	struct qmw_pool *pool = make(1, true);
	struct qmw_pool_grant grant, other;
	uint32_t hits, slot;

	(void)state;
	assert_int_equal(admit(pool, NULL, 0, 1, NULL, &hits, &grant), QMLA_OK);
	slot = qmw_pool_take(pool, &grant);
	qmw_pool_untake(pool, &grant, slot);
	assert_int_equal(grant.left, 1);
	assert_int_equal(admit(pool, NULL, 0, 1, NULL, &hits, &other), QMLA_ERR_RESOURCE_EXHAUSTED);
	qmw_pool_forgo(pool, &grant);
	assert_int_equal(admit(pool, NULL, 0, 1, NULL, &hits, &other), QMLA_OK);
	qmw_pool_destroy(pool);
}

/* What another request bound meanwhile takes the place of granted slots. */
static void test_extend_takes_what_came(void **state)
{
	struct qmw_pool *pool = make(6, true);
	qmla_key_t keys[3] = {key(1), key(2), key(3)};
	uint32_t slots[3], hits;
	struct qmw_pool_grant grant, other;
	struct qmw_pool_stats stats;

	(void)state;
	assert_int_equal(admit(pool, keys, 3, 3, slots, &hits, &grant), QMLA_OK);
	assert_int_equal(hits, 0);
	assert_int_equal(qmw_pool_extend(pool, keys, 3, slots, &grant), 0);
	run_request(pool, 1, 2, 0);
	assert_int_equal(qmw_pool_extend(pool, keys, 3, slots, &grant), 2);
	assert_int_equal(grant.left, 1);
	qmw_pool_read_stats(pool, &stats);
	assert_int_equal(stats.held, 2);
	assert_int_equal(stats.granted, 1);
	/* Room for three more, not for four. */
	assert_int_equal(admit(pool, NULL, 0, 4, NULL, &hits, &other), QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(admit(pool, NULL, 0, 3, NULL, &hits, &other), QMLA_OK);
	qmw_pool_drop_all(pool, slots, 2);
	qmw_pool_forgo(pool, &grant);
	qmw_pool_forgo(pool, &other);
	qmw_pool_destroy(pool);
}

struct waiter {
	struct qmw_pool *pool;
	uint32_t blocks;
	_Atomic int *order;
	int place; /* in the order of admission */
	_Atomic bool cancel;
	qmla_status_t status;
	struct qmw_pool_grant grant;
};

static bool is_cancelled(void *user)
{
	struct waiter *w = user;

	return atomic_load(&w->cancel);
}

static void *wait_for_room(void *argument)
{
	struct waiter *w = argument;
	struct qmw_pool_need need = {.blocks = w->blocks,
				     .deadline = qmc_clock_after(20 * QMC_NS_PER_S),
				     .cancelled = is_cancelled,
				     .user = w};
	uint32_t hits;

	w->status = qmw_pool_admit(w->pool, &need, NULL, &hits, &w->grant);
	w->place = atomic_fetch_add(w->order, 1);
	if (w->status == QMLA_OK)
		qmw_pool_forgo(w->pool, &w->grant);
	return NULL;
}

static void await_waiting(struct qmw_pool *pool, uint32_t count)
{
	struct qmw_pool_stats stats;

	do {
		usleep(1000);
		qmw_pool_read_stats(pool, &stats);
	} while (stats.waiting != count);
}

/* A small request behind a large one must not starve it, nor the other way round. */
static void test_waiters_are_served_in_order(void **state)
{
	struct qmw_pool *pool = make(4, true);
	_Atomic int order = 0;
	struct waiter large = {.pool = pool, .blocks = 4, .order = &order};
	struct waiter small = {.pool = pool, .blocks = 1, .order = &order};
	struct qmw_pool_grant grant;
	pthread_t a, b;
	uint32_t hits;

	(void)state;
	assert_int_equal(admit(pool, NULL, 0, 2, NULL, &hits, &grant), QMLA_OK);
	pthread_create(&a, NULL, wait_for_room, &large);
	await_waiting(pool, 1);
	pthread_create(&b, NULL, wait_for_room, &small);
	await_waiting(pool, 2);
	qmw_pool_forgo(pool, &grant);
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	assert_int_equal(large.status, QMLA_OK);
	assert_int_equal(small.status, QMLA_OK);
	assert_true(large.place < small.place);
	qmw_pool_destroy(pool);
}

static void test_a_cancelled_waiter_lets_the_next_pass(void **state)
{
	struct qmw_pool *pool = make(4, true);
	_Atomic int order = 0;
	struct waiter large = {.pool = pool, .blocks = 4, .order = &order};
	struct waiter small = {.pool = pool, .blocks = 1, .order = &order};
	struct qmw_pool_grant grant;
	pthread_t a, b;
	uint32_t hits;

	(void)state;
	assert_int_equal(admit(pool, NULL, 0, 2, NULL, &hits, &grant), QMLA_OK);
	pthread_create(&a, NULL, wait_for_room, &large);
	await_waiting(pool, 1);
	pthread_create(&b, NULL, wait_for_room, &small);
	await_waiting(pool, 2);
	atomic_store(&large.cancel, true);
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	assert_int_equal(large.status, QMLA_ERR_CANCELLED);
	assert_int_equal(small.status, QMLA_OK);
	qmw_pool_forgo(pool, &grant);
	qmw_pool_destroy(pool);
}

struct stress {
	struct qmw_pool *pool;
	uint32_t seed;
	uint32_t served;
};

static void *stress_thread(void *argument)
{
	struct stress *s = argument;

	for (uint32_t round = 0; round < 400; round++) {
		uint32_t first = (s->seed = s->seed * 1664525u + 1013904223u) >> 29; /* 0 … 7 */
		uint32_t count = 1 + (s->seed >> 20) % 5;
		qmla_key_t keys[5];
		uint32_t slots[5], hits;
		struct qmw_pool_grant grant;
		struct qmw_pool_need need = {.keys = keys,
					     .key_count = count,
					     .blocks = count,
					     .deadline = qmc_clock_after(20 * QMC_NS_PER_S)};

		for (uint32_t i = 0; i < count; i++)
			keys[i] = key((uint8_t)(first * 16 + i));
		if (qmw_pool_admit(s->pool, &need, slots, &hits, &grant) != QMLA_OK)
			break;
		for (uint32_t i = hits; i < count; i++)
			slots[i] = qmw_pool_bind(s->pool, &keys[i], qmw_pool_take(s->pool, &grant));
		qmw_pool_drop_all(s->pool, slots, count);
		qmw_pool_forgo(s->pool, &grant);
		s->served++;
	}
	return NULL;
}

/* More demand than room, from many threads: everyone is served and nothing leaks. */
static void test_contention_neither_locks_up_nor_leaks(void **state)
{
	struct qmw_pool *pool = make(7, true);
	struct stress threads[6];
	pthread_t ids[6];
	struct qmw_pool_stats stats;

	(void)state;
	for (uint32_t i = 0; i < 6; i++) {
		threads[i] = (struct stress){.pool = pool, .seed = i * 77 + 1};
		pthread_create(&ids[i], NULL, stress_thread, &threads[i]);
	}
	for (uint32_t i = 0; i < 6; i++)
		pthread_join(ids[i], NULL);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(threads[i].served, 400);
	qmw_pool_read_stats(pool, &stats);
	assert_int_equal(stats.held, 0);
	assert_int_equal(stats.granted, 0);
	assert_int_equal(stats.waiting, 0);
	assert_true(stats.cached <= 7);
	qmw_pool_destroy(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_too_small_is_refused),
		cmocka_unit_test(test_blocks_are_aligned_and_apart),
		cmocka_unit_test(test_second_request_shares_the_prefix),
		cmocka_unit_test(test_nothing_is_kept_when_told_so),
		cmocka_unit_test(test_a_hole_ends_the_run),
		cmocka_unit_test(test_ends_of_prefixes_go_first_and_the_oldest_of_them),
		cmocka_unit_test(test_larger_than_the_pool_is_too_large),
		cmocka_unit_test(test_full_pool_refuses_at_the_deadline),
		cmocka_unit_test(test_idle_hits_count_against_room),
		cmocka_unit_test(test_bind_joins_equal_blocks),
		cmocka_unit_test(test_untake_gives_the_right_back),
		cmocka_unit_test(test_extend_takes_what_came),
		cmocka_unit_test(test_waiters_are_served_in_order),
		cmocka_unit_test(test_a_cancelled_waiter_lets_the_next_pass),
		cmocka_unit_test(test_contention_neither_locks_up_nor_leaks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
