/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/worker/scheduler.h"
#include "common/log.h"
#include "fake_model.h"

struct fixture {
	struct qmw_pool *pool;
	struct qmw_scheduler *scheduler;
	uint32_t adopted; /* blocks that the last request began with */
};

static uint32_t bind_block(void *user, struct qmw_request *request, uint32_t block, uint32_t slot)
{
	qmla_key_t key;

	if (!request->shared_blocks || qmw_request_key(request, block, &key) != QMLA_OK)
		return slot;
	return qmw_pool_bind(((struct fixture *)user)->pool, &key, slot);
}

static void start(struct fixture *f, uint32_t slots, uint32_t max_batch, uint32_t chunk,
		  uint32_t max_waiting)
{
	struct qmw_pool_config pool = {
		.block_bytes = 128, .bytes = slots * 128ull, .keep_unused = true};
	struct qmw_scheduler_config config = {.model = fake_model(),
					      .max_batch = max_batch,
					      .chunk = chunk,
					      .max_waiting = max_waiting,
					      .block_done = bind_block,
					      .user = f};

	assert_int_equal(qmw_pool_create(&pool, &f->pool), QMLA_OK);
	config.pool = f->pool;
	assert_int_equal(qmw_scheduler_create(&config, &f->scheduler), QMLA_OK);
}

static void stop(struct fixture *f)
{
	struct qmw_pool_stats stats;

	qmw_scheduler_destroy(f->scheduler);
	qmw_pool_read_stats(f->pool, &stats);
	assert_int_equal(stats.held, 0);
	assert_int_equal(stats.granted, 0);
	qmw_pool_destroy(f->pool);
}

static void fill(uint32_t *tokens, uint32_t count, uint32_t seed)
{
	for (uint32_t i = 0; i < count; i++)
		tokens[i] = (seed = seed * 1664525u + 1013904223u) >> 26; /* 0 … 63 */
}

/* As a service does it: admit, adopt what is there, submit. */
static qmla_status_t begin(struct fixture *f, struct qmw_request *r, uint32_t prompt, uint32_t seed,
			   uint32_t max_tokens, bool shared)
{
	uint32_t tokens[2048];
	struct qmw_request_config config = {.tokens = tokens,
					    .token_count = prompt,
					    .max_tokens = max_tokens,
					    .shared_blocks = shared,
					    .deadline = qmc_clock_after(20 * QMC_NS_PER_S)};
	struct qmw_pool_need need = {.deadline = config.deadline};
	uint32_t capacity;

	fill(tokens, prompt, seed);
	assert_int_equal(qmw_request_init(r, &config), QMLA_OK);
	need.keys = r->keys;
	need.key_count = shared ? (prompt - 1) / QMLA_BLOCK_TOKENS : 0;
	need.blocks = r->block_limit;
	assert_int_equal(qmw_pool_admit(f->pool, &need, r->slots, &r->blocks, &r->grant), QMLA_OK);
	assert_int_equal(qmw_sequence_create(fake_model(), prompt + max_tokens, &r->sequence),
			 QMLA_OK);
	memcpy(qmw_sequence_slots(r->sequence, &capacity), r->slots, r->blocks * sizeof(*r->slots));
	qmw_sequence_adopt(r->sequence, r->blocks);
	f->adopted = r->blocks;
	return qmw_scheduler_submit(f->scheduler, r);
}

static struct qmw_request_view finish(struct qmw_request *r)
{
	struct qmw_request_view view;

	do {
		qmw_request_wait(r, UINT32_MAX - 1, qmc_clock_after(10 * QMC_NS_PER_S), &view);
	} while (view.state != QMW_REQUEST_DONE && qmc_clock_left(r->deadline) > 0);
	assert_int_equal(view.state, QMW_REQUEST_DONE);
	return view;
}

static void check_text(const struct qmw_request *r, uint32_t generated)
{
	for (uint32_t i = 0; i < generated; i++)
		assert_int_equal(r->tokens[r->prompt + i], fake_next(r->tokens, r->prompt + i));
}

static void test_one_request(void **state)
{
	struct fixture f;
	struct qmw_request r;
	struct qmw_request_view view;

	(void)state;
	fake_reset();
	start(&f, 16, 4, 100, 4);
	assert_int_equal(begin(&f, &r, 300, 1, 150, true), QMLA_OK);
	view = finish(&r);
	assert_int_equal(view.finish, QMW_FINISH_LENGTH);
	assert_int_equal(view.generated, 150);
	check_text(&r, 150);
	assert_int_equal(r.blocks, (300 + 149) / 64);
	assert_true(view.started <= view.first_token && view.first_token <= view.ended);
	qmw_request_fini(&r, f.pool);
	stop(&f);
	/* The prompt went in chunks of at most 100, then one token a step. */
	assert_int_equal(fake.call_count, 3 + 149);
	for (uint32_t i = 0; i < fake.call_count; i++)
		assert_int_equal(fake.calls[i].tokens, i < 3 ? 100 : 1);
}

static void test_adopted_blocks_are_not_computed_again(void **state)
{
	struct fixture f;
	struct qmw_request first, second;
	struct qmw_scheduler_stats stats;

	(void)state;
	fake_reset();
	start(&f, 16, 4, 512, 4);
	assert_int_equal(begin(&f, &first, 256, 5, 8, true), QMLA_OK);
	finish(&first);
	assert_int_equal(begin(&f, &second, 256, 5, 8, true), QMLA_OK);
	assert_int_equal(f.adopted, 3); /* the last block is left to make logits from */
	finish(&second);
	check_text(&second, 8);
	assert_memory_equal(first.tokens, second.tokens, 264 * sizeof(uint32_t));
	qmw_scheduler_read_stats(f.scheduler, &stats);
	assert_int_equal(stats.tokens_prefilled, 256 + 64);
	assert_int_equal(stats.tokens_generated, 16);
	qmw_request_fini(&first, f.pool);
	qmw_request_fini(&second, f.pool);
	stop(&f);
}

static void test_requests_share_steps(void **state)
{
	struct fixture f;
	struct qmw_request r[6];
	struct qmw_scheduler_stats stats;

	(void)state;
	fake_reset();
	fake.delay_us = 500;
	start(&f, 64, 4, 256, 8);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(begin(&f, &r[i], 90 + 50 * i, i + 1, 40, i % 2 == 0), QMLA_OK);
	for (uint32_t i = 0; i < 6; i++) {
		assert_int_equal(finish(&r[i]).finish, QMW_FINISH_LENGTH);
		check_text(&r[i], 40);
		qmw_request_fini(&r[i], f.pool);
	}
	qmw_scheduler_read_stats(f.scheduler, &stats);
	assert_int_equal(stats.largest_batch, 4);
	assert_int_equal(stats.tokens_generated, 240);
	assert_int_equal(stats.active, 0);
	/* One by one it would take 6 x 40 steps. */
	assert_true(stats.steps < 140);
	stop(&f);
	for (uint32_t i = 0; i < fake.call_count; i++)
		assert_true(fake.calls[i].items <= 4 && fake.calls[i].tokens <= 256 + 4);
}

/* A short prompt that comes second is not held up until the long one is through. */
static void test_a_long_prompt_does_not_hold_up_a_short_one(void **state)
{
	struct fixture f;
	struct qmw_request slow, fast;
	struct qmw_request_view a, b;

	(void)state;
	fake_reset();
	fake.delay_us = 2000;
	start(&f, 64, 4, 128, 8);
	assert_int_equal(begin(&f, &slow, 2000, 1, 1, false), QMLA_OK);
	assert_int_equal(begin(&f, &fast, 100, 2, 1, false), QMLA_OK);
	b = finish(&fast);
	a = finish(&slow);
	assert_true(b.ended < a.first_token);
	qmw_request_fini(&slow, f.pool);
	qmw_request_fini(&fast, f.pool);
	stop(&f);
}

/* Requests that decode get their token in every step, however much prefill waits. */
static void test_prefill_does_not_stall_decoding(void **state)
{
	struct fixture f;
	struct qmw_request chat, document;
	struct qmw_request_view view;

	(void)state;
	fake_reset();
	fake.delay_us = 1000;
	start(&f, 64, 4, 64, 8);
	assert_int_equal(begin(&f, &chat, 10, 1, 200, false), QMLA_OK);
	qmw_request_wait(&chat, 0, qmc_clock_after(5 * QMC_NS_PER_S), &view);
	assert_int_equal(begin(&f, &document, 1280, 2, 1, false), QMLA_OK);
	finish(&document);
	finish(&chat);
	check_text(&chat, 200);
	qmw_request_fini(&chat, f.pool);
	qmw_request_fini(&document, f.pool);
	stop(&f);
	for (uint32_t i = 1; i < 200 && i < fake.call_count; i++)
		assert_true(fake.calls[i].counts[0] == 1);
}

static void test_cancel_frees_everything(void **state)
{
	struct fixture f;
	struct qmw_request r, queued;
	struct qmw_request_view view;

	(void)state;
	fake_reset();
	fake.delay_us = 1000;
	start(&f, 64, 1, 64, 8);
	assert_int_equal(begin(&f, &r, 70, 1, 1900, true), QMLA_OK);
	assert_int_equal(begin(&f, &queued, 70, 2, 10, true), QMLA_OK);
	qmw_request_wait(&r, 3, qmc_clock_after(5 * QMC_NS_PER_S), &view);
	qmw_request_cancel(&queued);
	assert_int_equal(finish(&queued).finish, QMW_FINISH_CANCELLED);
	qmw_request_cancel(&r);
	view = finish(&r);
	assert_int_equal(view.finish, QMW_FINISH_CANCELLED);
	assert_true(view.generated >= 4 && view.generated < 1900);
	qmw_request_fini(&r, f.pool);
	qmw_request_fini(&queued, f.pool);
	stop(&f); /* checks that nothing is held */
}

static void test_deadline_ends_a_request(void **state)
{
	struct fixture f;
	struct qmw_request r;
	struct qmw_request_view view;

	(void)state;
	fake_reset();
	fake.delay_us = 5000;
	start(&f, 64, 1, 64, 8);
	assert_int_equal(begin(&f, &r, 10, 1, 1900, false), QMLA_OK);
	qmw_request_cancel(&r);
	finish(&r);
	qmw_request_fini(&r, f.pool);

	uint32_t token = 1;
	struct qmw_request_config config = {.tokens = &token,
					    .token_count = 1,
					    .max_tokens = 60,
					    .deadline = qmc_clock_after(30 * QMC_NS_PER_MS)};

	assert_int_equal(qmw_request_init(&r, &config), QMLA_OK);
	assert_int_equal(qmw_sequence_create(fake_model(), 61, &r.sequence), QMLA_OK);
	assert_int_equal(qmw_scheduler_submit(f.scheduler, &r), QMLA_OK);
	do {
		qmw_request_wait(&r, UINT32_MAX - 1, qmc_clock_after(QMC_NS_PER_S), &view);
	} while (view.state != QMW_REQUEST_DONE);
	assert_int_equal(view.finish, QMW_FINISH_FAILED);
	assert_int_equal(view.status, QMLA_ERR_DEADLINE);
	qmw_request_fini(&r, f.pool);
	stop(&f);
}

static void test_full_queue_refuses(void **state)
{
	struct fixture f;
	struct qmw_request r[3];
	struct qmw_request_view view;

	(void)state;
	fake_reset();
	fake.delay_us = 2000;
	start(&f, 64, 1, 64, 1);
	assert_int_equal(begin(&f, &r[0], 10, 1, 500, false), QMLA_OK);
	qmw_request_wait(&r[0], 0, qmc_clock_after(5 * QMC_NS_PER_S), &view); /* it runs */
	assert_int_equal(begin(&f, &r[1], 10, 2, 5, false), QMLA_OK);         /* it waits */
	assert_int_equal(begin(&f, &r[2], 10, 3, 5, false), QMLA_ERR_RESOURCE_EXHAUSTED);
	qmw_request_cancel(&r[0]);
	finish(&r[0]);
	assert_int_equal(finish(&r[1]).finish, QMW_FINISH_LENGTH);
	check_text(&r[1], 5);
	for (uint32_t i = 0; i < 3; i++)
		qmw_request_fini(&r[i], f.pool);
	stop(&f);
}

static void test_eos_ends_unless_ignored(void **state)
{
	struct fixture f;
	struct qmw_request r, ignoring;
	struct qmw_request_view view;
	uint32_t tokens[64];
	uint32_t until = 0;

	(void)state;
	fake_reset();
	fill(tokens, 10, 1);
	while (until < 5 || tokens[10 + until - 1] == tokens[10]) {
		tokens[10 + until] = fake_next(tokens, 10 + until);
		until++;
	}
	/* Make the end token the last one of that run, at its first appearance. */
	fake.eos = tokens[10 + until - 1];
	for (uint32_t i = 0; i < until; i++) {
		if (tokens[10 + i] == fake.eos) {
			until = i;
			break;
		}
	}
	start(&f, 64, 4, 64, 4);
	assert_int_equal(begin(&f, &r, 10, 1, 50, false), QMLA_OK);
	view = finish(&r);
	assert_int_equal(view.finish, QMW_FINISH_EOS);
	assert_int_equal(view.generated, until);

	struct qmw_request_config config = {.tokens = tokens,
					    .token_count = 10,
					    .max_tokens = 50,
					    .ignore_eos = true,
					    .deadline = qmc_clock_after(10 * QMC_NS_PER_S)};

	assert_int_equal(qmw_request_init(&ignoring, &config), QMLA_OK);
	assert_int_equal(qmw_sequence_create(fake_model(), 60, &ignoring.sequence), QMLA_OK);
	assert_int_equal(qmw_scheduler_submit(f.scheduler, &ignoring), QMLA_OK);
	view = finish(&ignoring);
	assert_int_equal(view.finish, QMW_FINISH_LENGTH);
	assert_int_equal(view.generated, 50);
	qmw_request_fini(&r, f.pool);
	qmw_request_fini(&ignoring, f.pool);
	stop(&f);
}

static void test_one_bad_request_does_not_end_the_others(void **state)
{
	struct fixture f;
	struct qmw_request good, bad;
	uint32_t token = 777;
	struct qmw_request_config config = {.tokens = &token,
					    .token_count = 1,
					    .max_tokens = 5,
					    .deadline = qmc_clock_after(10 * QMC_NS_PER_S)};
	struct qmw_request_view view;

	(void)state;
	fake_reset();
	fake.poison = 777;
	fake.delay_us = 1000;
	start(&f, 64, 4, 64, 4);
	assert_int_equal(begin(&f, &good, 10, 1, 100, false), QMLA_OK);
	qmw_request_wait(&good, 2, qmc_clock_after(5 * QMC_NS_PER_S), &view);
	assert_int_equal(qmw_request_init(&bad, &config), QMLA_OK);
	assert_int_equal(qmw_sequence_create(fake_model(), 6, &bad.sequence), QMLA_OK);
	assert_int_equal(qmw_scheduler_submit(f.scheduler, &bad), QMLA_OK);
	view = finish(&bad);
	assert_int_equal(view.finish, QMW_FINISH_FAILED);
	assert_int_equal(view.status, QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(finish(&good).finish, QMW_FINISH_LENGTH);
	check_text(&good, 100);
	qmw_request_fini(&good, f.pool);
	qmw_request_fini(&bad, f.pool);
	stop(&f);
}

static void test_prefill_only(void **state)
{
	struct fixture f;
	struct qmw_request r, again;
	struct qmw_request_view view;

	(void)state;
	fake_reset();
	start(&f, 64, 4, 100, 4);
	assert_int_equal(begin(&f, &r, 256, 3, 0, true), QMLA_OK);
	view = finish(&r);
	assert_int_equal(view.finish, QMW_FINISH_LENGTH);
	assert_int_equal(view.generated, 0);
	assert_int_equal(r.blocks, 4);
	qmw_request_fini(&r, f.pool);
	/* All four blocks are kept; with the last one too there would be nothing to run. */
	assert_int_equal(begin(&f, &again, 257, 3, 0, true), QMLA_OK);
	assert_int_equal(finish(&again).finish, QMW_FINISH_LENGTH);
	qmw_request_fini(&again, f.pool);
	stop(&f);
}

static void test_nothing_to_run_is_refused(void **state)
{
	struct fixture f;
	struct qmw_request r;
	uint32_t tokens[64] = {0};
	struct qmw_request_config config = {
		.tokens = tokens, .token_count = 64, .deadline = QMC_TIME_NEVER};

	(void)state;
	fake_reset();
	start(&f, 4, 1, 64, 4);
	assert_int_equal(qmw_request_init(&r, &config), QMLA_OK);
	assert_int_equal(qmw_sequence_create(fake_model(), 64, &r.sequence), QMLA_OK);
	qmw_sequence_adopt(r.sequence, 1);
	assert_int_equal(qmw_scheduler_submit(f.scheduler, &r), QMLA_ERR_INVALID_ARGUMENT);
	qmw_request_fini(&r, f.pool);
	stop(&f);
}

static void test_destroy_ends_what_runs(void **state)
{
	struct fixture f;
	struct qmw_request r[3];
	struct qmw_pool_stats stats;

	(void)state;
	fake_reset();
	fake.delay_us = 1000;
	start(&f, 128, 1, 64, 8);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(begin(&f, &r[i], 100, i, 1000, true), QMLA_OK);
	qmw_scheduler_destroy(f.scheduler);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(finish(&r[i]).finish, QMW_FINISH_CANCELLED);
		qmw_request_fini(&r[i], f.pool);
	}
	qmw_pool_read_stats(f.pool, &stats);
	assert_int_equal(stats.held, 0);
	qmw_pool_destroy(f.pool);
}

/* A long answer costs each token one hash, whatever its length, and gives the same keys as the
 * whole text as a prompt. */
static void test_keys_of_an_answer_hash_each_token_once(void **state)
{
	enum { PROMPT = 100, ANSWER = 1000, BLOCKS = (PROMPT + ANSWER) / QMLA_BLOCK_TOKENS };
	static uint32_t tokens[PROMPT + ANSWER];
	struct qmw_request_config config = {.tokens = tokens,
					    .token_count = PROMPT,
					    .max_tokens = ANSWER,
					    .shared_blocks = true,
					    .deadline = QMC_TIME_NEVER};
	struct qmw_pool_config pool_config = {.block_bytes = 128, .bytes = 128};
	struct qmw_request growing, whole;
	struct qmw_pool *pool;
	uint64_t before = fake_tokens_hashed();
	qmla_key_t key;

	(void)state;
	for (uint32_t i = 0; i < PROMPT + ANSWER; i++)
		tokens[i] = i * 7 % 251;
	assert_int_equal(qmw_pool_create(&pool_config, &pool), QMLA_OK);
	assert_int_equal(qmw_request_init(&growing, &config), QMLA_OK);
	for (uint32_t i = PROMPT; i < PROMPT + ANSWER; i++) {
		qmw_request_append(&growing, tokens[i]);
		if (growing.length % QMLA_BLOCK_TOKENS == 0)
			assert_int_equal(qmw_request_key(&growing,
							 growing.length / QMLA_BLOCK_TOKENS - 1,
							 &key),
					 QMLA_OK);
	}
	assert_int_equal(growing.key_count, BLOCKS);
	assert_int_equal(fake_tokens_hashed() - before, BLOCKS * QMLA_BLOCK_TOKENS);
	config.token_count = PROMPT + ANSWER;
	config.max_tokens = 0;
	assert_int_equal(qmw_request_init(&whole, &config), QMLA_OK);
	assert_memory_equal(growing.keys, whole.keys, BLOCKS * sizeof(key));
	qmw_request_fini(&growing, pool);
	qmw_request_fini(&whole, pool);
	qmw_pool_destroy(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_request),
		cmocka_unit_test(test_adopted_blocks_are_not_computed_again),
		cmocka_unit_test(test_requests_share_steps),
		cmocka_unit_test(test_a_long_prompt_does_not_hold_up_a_short_one),
		cmocka_unit_test(test_prefill_does_not_stall_decoding),
		cmocka_unit_test(test_cancel_frees_everything),
		cmocka_unit_test(test_deadline_ends_a_request),
		cmocka_unit_test(test_full_queue_refuses),
		cmocka_unit_test(test_eos_ends_unless_ignored),
		cmocka_unit_test(test_one_bad_request_does_not_end_the_others),
		cmocka_unit_test(test_prefill_only),
		cmocka_unit_test(test_nothing_to_run_is_refused),
		cmocka_unit_test(test_destroy_ends_what_runs),
		cmocka_unit_test(test_keys_of_an_answer_hash_each_token_once),
	};

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
