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

#include "client/worker/publisher.h"
#include "common/log.h"
#include "kernels/block.h"

/* A node in a few lines: remembers keys in order, may be slow, full or dead. */
static struct {
	pthread_mutex_t mutex;
	qmla_key_t keys[256];
	uint32_t count, calls, bad_blocks, mixed_calls;
	_Atomic uint32_t delay_us;
	qmla_status_t answer; /* to every block */
	struct qmk_layout layout;
	qmla_identity_t identity;
} node = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool node_has(const qmla_key_t *key)
{
	for (uint32_t i = 0; i < node.count; i++) {
		if (memcmp(&node.keys[i], key, sizeof(*key)) == 0)
			return true;
	}
	return false;
}

static qmla_status_t node_put(const qmla_key_t *key, const void *block)
{
	struct qmk_block_info info = {.generation = 0};

	if (node.answer != QMLA_OK)
		return node.answer;
	memcpy(info.key, key, sizeof(info.key));
	memcpy(info.identity, &node.identity, sizeof(info.identity));
	if (qmk_block_check(&node.layout, &info, block) != QMLA_OK)
		node.bad_blocks++;
	if (node_has(key))
		return QMLA_ERR_ALREADY_EXISTS;
	node.keys[node.count++] = *key;
	return QMLA_OK;
}

qmla_status_t qmla_client_publish(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				  const void *const *blocks, uint32_t timeout_ms,
				  qmla_status_t *statuses)
{
	qmla_status_t first = QMLA_OK;

	(void)client;
	(void)timeout_ms;
	usleep(atomic_load(&node.delay_us));
	pthread_mutex_lock(&node.mutex);
	node.calls++;
	for (size_t i = 1; i < count; i++) /* the second byte of a key names its request */
		node.mixed_calls += keys[i].bytes[1] != keys[0].bytes[1];
	for (size_t i = 0; i < count; i++) {
		statuses[i] = node_put(&keys[i], blocks[i]);
		if (first == QMLA_OK && statuses[i] != QMLA_ERR_ALREADY_EXISTS)
			first = statuses[i];
	}
	pthread_mutex_unlock(&node.mutex);
	return first;
}

struct fixture {
	struct qmw_pool *pool;
	struct qmw_publisher *publisher;
	struct qmw_batch *batch;
	struct qmw_pool_grant grant;
};

static void start(struct fixture *f, uint32_t max_queued, uint32_t max_call)
{
	struct qmw_pool_config pool = {.keep_unused = true};
	struct qmw_publisher_config config = {.layout = &node.layout,
					      .max_queued = max_queued,
					      .max_call = max_call,
					      .timeout_ms = 1000};
	struct qmw_pool_need need = {.blocks = 64, .deadline = QMC_TIME_NEVER};
	uint32_t hits;

	node.count = node.calls = node.bad_blocks = node.mixed_calls = 0;
	node.delay_us = 0;
	node.answer = QMLA_OK;
	memset(&node.identity, 0x5A, sizeof(node.identity));
	assert_int_equal(qmk_layout_init(QMK_FORMAT_C4R4, 2, 512, 64, &node.layout), QMLA_OK);
	pool.block_bytes = node.layout.block_bytes;
	pool.bytes = 64 * pool.block_bytes;
	assert_int_equal(qmw_pool_create(&pool, &f->pool), QMLA_OK);
	config.pool = f->pool;
	config.identity = node.identity;
	assert_int_equal(qmw_publisher_create(&config, &f->publisher), QMLA_OK);
	assert_int_equal(qmw_batch_create(&f->batch), QMLA_OK);
	assert_int_equal(qmw_pool_admit(f->pool, &need, NULL, &hits, &f->grant), QMLA_OK);
}

static qmla_key_t key_of(uint8_t request, uint8_t n)
{
	qmla_key_t k = {{n, request}};

	return k;
}

static qmla_key_t key(uint8_t n)
{
	return key_of(1, n);
}

/* A request that computed its block n, hands it over and lets it go. */
static qmla_status_t add_of(struct fixture *f, struct qmw_batch *batch, uint8_t request, uint8_t n)
{
	uint32_t slot = qmw_pool_take(f->pool, &f->grant);
	uint8_t *block = qmw_pool_block(f->pool, slot);
	qmla_key_t k = key_of(request, n);
	qmla_status_t status;

	memset(block + node.layout.header_bytes, n, 2 * node.layout.page_bytes);
	status = qmw_publisher_add(f->publisher, &k, slot, batch);
	qmw_pool_drop(f->pool, slot);
	return status;
}

static qmla_status_t add(struct fixture *f, uint8_t n)
{
	return add_of(f, f->batch, 1, n);
}

static struct qmw_batch_result wait_batch(struct fixture *f)
{
	struct qmw_batch_result result;

	qmw_batch_wait(f->batch, qmc_clock_after(10 * QMC_NS_PER_S), &result);
	assert_int_equal(result.pending, 0);
	return result;
}

static void stop(struct fixture *f)
{
	struct qmw_pool_stats stats;

	qmw_publisher_destroy(f->publisher, qmc_clock_after(5 * QMC_NS_PER_S));
	qmw_batch_put(f->batch);
	qmw_pool_read_stats(f->pool, &stats);
	assert_int_equal(stats.held, 0);
	qmw_pool_destroy(f->pool);
}

static void test_blocks_go_out_sealed_and_in_order(void **state)
{
	struct fixture f;
	struct qmw_publisher_stats stats;
	struct qmw_batch_result result;

	(void)state;
	start(&f, 64, 4);
	for (uint8_t n = 0; n < 20; n++)
		assert_int_equal(add(&f, n), QMLA_OK);
	result = wait_batch(&f);
	assert_int_equal(result.published, 20);
	assert_int_equal(result.failed, 0);
	assert_int_equal(node.bad_blocks, 0);
	assert_int_equal(node.count, 20);
	for (uint8_t n = 0; n < 20; n++) {
		qmla_key_t k = key(n);

		assert_memory_equal(&node.keys[n], &k, sizeof(k));
	}
	assert_true(node.calls >= 5);
	qmw_publisher_read_stats(f.publisher, &stats);
	assert_int_equal(stats.published, 20);
	assert_int_equal(stats.bytes, 20 * node.layout.block_bytes);
	stop(&f);
}

static void test_adding_does_not_wait_for_the_node(void **state)
{
	struct fixture f;
	qmc_time_t begin;

	(void)state;
	start(&f, 64, 4);
	node.delay_us = 600000;
	begin = qmc_clock_now();
	for (uint8_t n = 0; n < 8; n++)
		assert_int_equal(add(&f, n), QMLA_OK);
	assert_true(qmc_clock_now() - begin < 500 * QMC_NS_PER_MS);
	assert_int_equal(wait_batch(&f).published, 8);
	stop(&f);
}

static void test_existing_blocks_count_as_published(void **state)
{
	struct fixture f;
	struct qmw_publisher_stats stats;

	(void)state;
	start(&f, 64, 4);
	add(&f, 1);
	add(&f, 1);
	assert_int_equal(wait_batch(&f).published, 2);
	qmw_publisher_read_stats(f.publisher, &stats);
	assert_int_equal(stats.published, 1);
	assert_int_equal(stats.existing, 1);
	stop(&f);
}

static void test_a_dead_node_is_a_note(void **state)
{
	struct fixture f;
	struct qmw_batch_result result;

	(void)state;
	start(&f, 64, 4);
	node.answer = QMLA_ERR_UNAVAILABLE;
	for (uint8_t n = 0; n < 5; n++)
		(void)add(&f, n); /* refused from the first failure on */
	result = wait_batch(&f);
	assert_int_equal(result.failed, 5);
	assert_int_equal(result.published, 0);
	assert_int_equal(result.first_failure, QMLA_ERR_UNAVAILABLE);
	stop(&f);
}

static void test_a_full_queue_drops_instead_of_waiting(void **state)
{
	struct fixture f;
	struct qmw_publisher_stats stats;
	struct qmw_batch_result result;
	uint32_t refused = 0;

	(void)state;
	start(&f, 4, 1);
	node.delay_us = 20000;
	for (uint8_t n = 0; n < 30; n++)
		refused += add(&f, n) == QMLA_ERR_RESOURCE_EXHAUSTED;
	assert_true(refused >= 20);
	result = wait_batch(&f);
	assert_int_equal(result.published + refused, 30);
	assert_int_equal(result.failed, refused);
	qmw_publisher_read_stats(f.publisher, &stats);
	assert_int_equal(stats.dropped, refused);
	stop(&f);
}

/* Blocks of two requests that come in turns: a call carries one chain, in order, and several of it.
 */
static void test_a_call_carries_one_request(void **state)
{
	struct fixture f;
	struct qmw_batch *other;
	uint8_t next[3] = {0};

	(void)state;
	start(&f, 64, 8);
	assert_int_equal(qmw_batch_create(&other), QMLA_OK);
	node.delay_us = 100000; /* the first call goes alone, the others find a full ring */
	for (uint8_t n = 0; n < 16; n++) {
		assert_int_equal(add_of(&f, f.batch, 1, n), QMLA_OK);
		assert_int_equal(add_of(&f, other, 2, n), QMLA_OK);
	}
	assert_int_equal(wait_batch(&f).published, 16);
	qmw_batch_put(other);
	stop(&f);
	assert_int_equal(node.count, 32);
	assert_int_equal(node.mixed_calls, 0);
	assert_int_equal(node.bad_blocks, 0);
	for (uint32_t i = 0; i < node.count; i++)
		assert_int_equal(node.keys[i].bytes[0], next[node.keys[i].bytes[1]]++);
	assert_true(node.calls <= 7);
}

/* What comes behind a block that found no room is not published: nobody would find it. */
static void test_no_hole_behind_a_drop(void **state)
{
	struct fixture f;
	struct qmw_batch *other;
	uint8_t accepted = 0, n = 0;

	(void)state;
	start(&f, 4, 1);
	assert_int_equal(qmw_batch_create(&other), QMLA_OK);
	node.delay_us = 20000;
	while (add(&f, n++) == QMLA_OK)
		accepted++;
	usleep(100000); /* there is room again */
	for (; n < 20; n++)
		assert_int_equal(add(&f, n), QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(add_of(&f, other, 2, 0), QMLA_OK); /* another request is not concerned */
	assert_int_equal(wait_batch(&f).published, accepted);
	qmw_batch_put(other);
	stop(&f);
	assert_int_equal(node.count, accepted + 1u);
	for (uint8_t i = 0; i < accepted; i++)
		assert_int_equal(node.keys[i].bytes[0], i);
}

static void test_no_hole_behind_a_failure(void **state)
{
	struct fixture f;
	struct qmw_batch_result result;

	(void)state;
	start(&f, 64, 2);
	node.answer = QMLA_ERR_UNAVAILABLE;
	node.delay_us = 200000;
	for (uint8_t n = 0; n < 8; n++)
		assert_int_equal(add(&f, n), QMLA_OK);
	result = wait_batch(&f);
	assert_int_equal(result.failed, 8);
	assert_int_equal(node.calls, 1); /* the other six were not even tried */
	node.answer = QMLA_OK;           /* too late for this request */
	assert_int_equal(add(&f, 8), QMLA_ERR_UNAVAILABLE);
	stop(&f);
	assert_int_equal(node.count, 0);
}

static void test_stop_finishes_what_fits_the_deadline(void **state)
{
	struct fixture f;
	struct qmw_batch_result result;
	qmc_time_t begin;

	(void)state;
	start(&f, 64, 1);
	node.delay_us = 30000;
	for (uint8_t n = 0; n < 40; n++)
		add(&f, n);
	begin = qmc_clock_now();
	qmw_publisher_destroy(f.publisher, qmc_clock_after(100 * QMC_NS_PER_MS));
	assert_true(qmc_clock_now() - begin < QMC_NS_PER_S);
	f.publisher = NULL;
	result = wait_batch(&f);
	assert_int_equal(result.published + result.failed, 40);
	assert_true(result.published >= 1 && result.failed >= 20);
	stop(&f);
}

static void test_a_batch_may_be_left_behind(void **state)
{
	struct fixture f;

	(void)state;
	start(&f, 64, 2);
	node.delay_us = 10000;
	for (uint8_t n = 0; n < 6; n++)
		add(&f, n);
	qmw_batch_put(f.batch); /* the request gave up; its blocks go out all the same */
	f.batch = NULL;
	stop(&f);
	assert_int_equal(node.count, 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blocks_go_out_sealed_and_in_order),
		cmocka_unit_test(test_adding_does_not_wait_for_the_node),
		cmocka_unit_test(test_existing_blocks_count_as_published),
		cmocka_unit_test(test_a_dead_node_is_a_note),
		cmocka_unit_test(test_a_full_queue_drops_instead_of_waiting),
		cmocka_unit_test(test_a_call_carries_one_request),
		cmocka_unit_test(test_no_hole_behind_a_drop),
		cmocka_unit_test(test_no_hole_behind_a_failure),
		cmocka_unit_test(test_stop_finishes_what_fits_the_deadline),
		cmocka_unit_test(test_a_batch_may_be_left_behind),
	};

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
