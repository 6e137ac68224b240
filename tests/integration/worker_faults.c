/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes and prefill workers that die, hang, come back, or are not what was asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "worker_ask.h"
#include "worker_cluster.h"
#include "worker_prompts.h"

#define SECOND QMC_NS_PER_S
/* Most that a peer which does not answer may cost one request. */
#define DELAY (4 * SECOND)

static struct cluster cluster;
static const char *const no_memory[] = {"--no-local-reuse", NULL};

static int open_cluster(void **state)
{
	(void)state;
	return cluster_open(&cluster) ? 0 : -1;
}

static int close_cluster(void **state)
{
	(void)state;
	cluster_close(&cluster, false);
	return 0;
}

static struct ask ask_for(const struct process *worker, const struct prompt *prompt,
			  uint32_t max_tokens)
{
	return (struct ask){.address = worker->address,
			    .prompt = prompt->bytes,
			    .prompt_bytes = prompt->count,
			    .max_tokens = max_tokens};
}

static void must_answer(const struct ask *ask, struct answer *answer)
{
	ask_worker(ask, answer);
	if (answer->status != QMLA_OK)
		print_message("%s\n", answer->detail);
	assert_int_equal(answer->status, QMLA_OK);
	assert_int_equal(answer->count, ask->max_tokens);
}

/* The delay alone: how long the computing takes depends on the machine and the build. */
static void expect_bounded_delay(const struct answer *answer)
{
	assert_true((answer->usage.fetch_us + answer->usage.prefill_us) * QMC_NS_PER_US < DELAY);
}

/* What the model says without any cache. */
static void plain_answer(struct ask ask, struct answer *answer)
{
	ask.no_cache = true;
	must_answer(&ask, answer);
}

static void expect_note(const struct answer *answer, const char *text)
{
	if (!strstr(answer->notes, text))
		print_message("notes: '%s'\n", answer->notes);
	assert_non_null(strstr(answer->notes, text));
}

static void test_node_killed(void **state)
{
	static struct prompt prompt;
	static struct answer answer, plain, later;
	struct process *node = cluster_node(&cluster, "node", "32MiB");
	struct process *prefill = cluster_worker(&cluster, "prefill", node->address, NULL, NULL);
	struct process *decode =
		cluster_worker(&cluster, "decode", node->address, prefill->address, no_memory);
	struct ask ask;

	(void)state;
	prompt_make(&prompt, 900, 1);
	ask = ask_for(decode, &prompt, 40);
	plain_answer(ask, &plain);
	must_answer(&ask, &answer);
	assert_int_equal(answer.usage.blocks_prefilled, 899 / 64);
	process_kill(node);
	must_answer(&ask, &answer);
	assert_true(same_text(&answer, &plain));
	expect_bounded_delay(&answer);
	assert_int_equal(answer.usage.blocks_hit + answer.usage.blocks_prefilled, 0);
	expect_note(&answer, node->address);
	/* Left out by now: it costs nothing, and the prefill worker is not asked in vain. */
	must_answer(&ask, &later);
	assert_true(same_text(&later, &plain));
	assert_int_equal(later.usage.prefill_us, 0);
	assert_true(later.usage.fetch_us < 500000);
	assert_int_equal(process_stop(decode), 0);
	assert_int_equal(process_stop(prefill), 0);
}

static void test_node_stopped_and_continued(void **state)
{
	static struct prompt prompt;
	static struct answer answer, plain;
	struct process *node = cluster_node(&cluster, "node", "32MiB");
	struct process *decode = cluster_worker(&cluster, "decode", node->address, NULL, no_memory);
	qmc_time_t deadline;
	struct ask ask;

	(void)state;
	prompt_make(&prompt, 700, 2);
	ask = ask_for(decode, &prompt, 20);
	plain_answer(ask, &plain);
	must_answer(&ask, &answer);
	process_signal(node, SIGSTOP);
	must_answer(&ask, &answer);
	assert_true(same_text(&answer, &plain));
	expect_bounded_delay(&answer);
	expect_note(&answer, node->address);
	must_answer(&ask, &answer); /* left out: no second delay */
	assert_true(answer.usage.fetch_us < 500000);
	process_signal(node, SIGCONT);
	deadline = qmc_clock_after(20 * SECOND);
	do {
		must_answer(&ask, &answer);
	} while (answer.usage.blocks_hit < 699 / 64 && qmc_clock_left(deadline) > 0);
	assert_int_equal(answer.usage.blocks_hit, 699 / 64);
	assert_true(same_text(&answer, &plain));
	assert_int_equal(process_stop(decode), 0);
	assert_int_equal(process_stop(node), 0);
}

static void test_node_restarted_at_the_same_address(void **state)
{
	static struct prompt prompt;
	static struct answer answer, plain;
	static const char *const flags[] = {"--pool-size", "32MiB", NULL};
	struct process *node = cluster_node(&cluster, "node", "32MiB");
	struct process *decode = cluster_worker(&cluster, "decode", node->address, NULL, no_memory);
	char address[64];
	qmc_time_t deadline;
	struct ask ask;

	(void)state;
	prompt_make(&prompt, 700, 3);
	ask = ask_for(decode, &prompt, 20);
	plain_answer(ask, &plain);
	must_answer(&ask, &answer);
	snprintf(address, sizeof(address), "%s", node->address);
	process_kill(node);
	node = cluster_start(&cluster, "again", address, "qmla-node", flags);
	assert_non_null(node);
	/* Handles of its other life are refused; it is empty; it fills again. */
	deadline = qmc_clock_after(20 * SECOND);
	do {
		must_answer(&ask, &answer);
		assert_true(same_text(&answer, &plain));
	} while (answer.usage.blocks_hit < 699 / 64 && qmc_clock_left(deadline) > 0);
	assert_int_equal(answer.usage.blocks_hit, 699 / 64);
	assert_int_equal(process_stop(decode), 0);
	assert_int_equal(process_stop(node), 0);
}

struct stream_of_asks {
	struct ask ask;
	const struct answer *plain;
	_Atomic bool stop;
	_Atomic uint32_t done;
	uint32_t failed, wrong;
	struct answer answer;
};

static void *keep_asking(void *argument)
{
	struct stream_of_asks *s = argument;

	while (!atomic_load(&s->stop)) {
		ask_worker(&s->ask, &s->answer);
		s->failed += s->answer.status != QMLA_OK;
		s->wrong += !same_text(&s->answer, s->plain);
		atomic_fetch_add(&s->done, 1);
	}
	return NULL;
}

static void await_done(struct stream_of_asks *s, uint32_t more)
{
	uint32_t until = atomic_load(&s->done) + more;
	qmc_time_t deadline = qmc_clock_after(30 * SECOND);

	while (atomic_load(&s->done) < until && qmc_clock_left(deadline) > 0)
		qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_MS));
}

/* Whatever moment a node dies, stops or comes back at, the text is right. */
static void test_node_dies_during_fetches(void **state)
{
	static struct prompt prompt;
	static struct answer plain;
	static struct stream_of_asks asks[2];
	static const char *const flags[] = {"--pool-size", "32MiB", NULL};
	struct process *node = cluster_node(&cluster, "node", "32MiB");
	struct process *decode = cluster_worker(&cluster, "decode", node->address, NULL, no_memory);
	char address[64];
	pthread_t threads[2];

	(void)state;
	prompt_make(&prompt, 1500, 4);
	snprintf(address, sizeof(address), "%s", node->address);
	plain_answer(ask_for(decode, &prompt, 8), &plain);
	for (uint32_t i = 0; i < 2; i++) {
		asks[i].ask = ask_for(decode, &prompt, 8);
		asks[i].plain = &plain;
		pthread_create(&threads[i], NULL, keep_asking, &asks[i]);
	}
	for (uint32_t round = 0; round < 3; round++) {
		await_done(&asks[0], 3);
		process_signal(node, SIGSTOP);
		await_done(&asks[0], 1);
		process_signal(node, SIGCONT);
		await_done(&asks[0], 2);
		process_kill(node);
		await_done(&asks[0], 1);
		node = cluster_start(&cluster, "node", address, "qmla-node", flags);
		if (!node)
			break;
	}
	for (uint32_t i = 0; i < 2; i++) {
		atomic_store(&asks[i].stop, true);
		pthread_join(threads[i], NULL);
	}
	assert_non_null(node);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(asks[i].failed, 0);
		assert_int_equal(asks[i].wrong, 0);
	}
	assert_int_equal(process_stop(decode), 0);
	assert_int_equal(process_stop(node), 0);
}

struct one_ask {
	struct ask ask;
	struct answer answer;
};

static void *ask_once(void *argument)
{
	struct one_ask *one = argument;

	ask_worker(&one->ask, &one->answer);
	return NULL;
}

static void disturb_prefill(int number, uint32_t seed)
{
	static struct prompt prompt;
	static struct answer plain, later;
	static struct one_ask one;
	static const char *const slow[] = {"--threads", "1", "--chunk", "64", NULL};
	struct process *node = cluster_node(&cluster, "node", "32MiB");
	struct process *prefill = cluster_worker(&cluster, "prefill", node->address, NULL, slow);
	struct process *decode =
		cluster_worker(&cluster, "decode", node->address, prefill->address, no_memory);
	Qmla__V1__WorkerStatsResponse stats = {0};
	pthread_t thread;

	prompt_make(&prompt, 1300, seed);
	one.ask = ask_for(decode, &prompt, 8);
	plain_answer(one.ask, &plain);
	pthread_create(&thread, NULL, ask_once, &one);
	while (stats.tokens_prefilled < 192 && ask_stats(prefill->address, &stats) == QMLA_OK)
		continue;
	process_signal(prefill, number);
	pthread_join(thread, NULL);
	assert_int_equal(one.answer.status, QMLA_OK);
	assert_true(same_text(&one.answer, &plain));
	expect_note(&one.answer, prefill->address);
	assert_true(one.answer.usage.blocks_computed > 0);
	assert_true(one.answer.took < 3 * plain.took + DELAY);
	/* Another prompt: it is left out, no time is spent on it. */
	prompt_make(&prompt, 700, seed + 1);
	one.ask = ask_for(decode, &prompt, 8);
	must_answer(&one.ask, &later);
	assert_int_equal(later.usage.prefill_us, 0);
	expect_note(&later, "left out");
	if (number == SIGSTOP) {
		qmc_time_t deadline = qmc_clock_after(20 * SECOND);

		process_signal(prefill, SIGCONT);
		for (uint32_t i = 2;
		     later.usage.blocks_prefilled == 0 && qmc_clock_left(deadline) > 0; i++) {
			prompt_make(&prompt, 700, seed + i);
			must_answer(&one.ask, &later);
		}
		assert_int_equal(later.usage.blocks_prefilled, 699 / 64);
	}
	process_kill(prefill);
	assert_int_equal(process_stop(decode), 0);
	assert_int_equal(process_stop(node), 0);
}

static void test_prefill_worker_killed_on_the_way(void **state)
{
	(void)state;
	disturb_prefill(SIGKILL, 500);
}

static void test_prefill_worker_stopped_on_the_way(void **state)
{
	(void)state;
	disturb_prefill(SIGSTOP, 600);
}

static void test_decode_worker_restarted(void **state)
{
	static struct prompt prompt;
	static struct answer first, second;
	struct process *node = cluster_node(&cluster, "node", "32MiB");
	struct process *decode = cluster_worker(&cluster, "decode", node->address, NULL, NULL);
	qmc_time_t deadline = qmc_clock_after(10 * SECOND);
	struct ask ask;

	(void)state;
	prompt_make(&prompt, 1000, 7);
	ask = ask_for(decode, &prompt, 30);
	must_answer(&ask, &first);
	process_kill(decode); /* some of its blocks may be written by halves: they never show */
	decode = cluster_worker(&cluster, "decode", node->address, NULL, no_memory);
	assert_non_null(decode);
	ask = ask_for(decode, &prompt, 30);
	do {
		must_answer(&ask, &second);
		assert_true(same_text(&first, &second));
	} while (second.usage.blocks_hit < 999 / 64 && qmc_clock_left(deadline) > 0);
	assert_int_equal(second.usage.blocks_hit, 999 / 64);
	assert_int_equal(process_stop(decode), 0);
	assert_int_equal(process_stop(node), 0);
}

static void test_formats_never_share(void **state)
{
	static struct prompt prompt;
	static struct answer four, two, plain;
	static const char *const two_bits[] = {"--format", "c2r4", "--no-local-reuse", NULL};
	struct process *node = cluster_node(&cluster, "node", "32MiB");
	struct process *prefill = cluster_worker(&cluster, "prefill", node->address, NULL, NULL);
	struct process *c4 =
		cluster_worker(&cluster, "decode", node->address, prefill->address, no_memory);
	struct process *c2 =
		cluster_worker(&cluster, "decode", node->address, prefill->address, two_bits);
	struct ask ask;

	(void)state;
	assert_non_null(c2);
	prompt_make(&prompt, 1000, 8);
	ask = ask_for(c4, &prompt, 20);
	must_answer(&ask, &four);
	assert_int_equal(four.usage.blocks_prefilled, 999 / 64);
	ask.address = c2->address;
	must_answer(&ask, &two);
	assert_int_equal(two.usage.blocks_hit + two.usage.blocks_prefilled, 0);
	expect_note(&two, "--format");
	plain_answer(ask, &plain);
	assert_true(same_text(&two, &plain));
	ask.address = c4->address;
	must_answer(&ask, &four);
	assert_int_equal(four.usage.blocks_hit, 999 / 64);
	assert_int_equal(process_stop(c2), 0);
	assert_int_equal(process_stop(c4), 0);
	assert_int_equal(process_stop(prefill), 0);
	assert_int_equal(process_stop(node), 0);
}

static void test_no_node_from_the_start(void **state)
{
	static struct prompt prompt;
	static struct answer answer;
	struct process *decode =
		cluster_worker(&cluster, "decode", "127.0.0.1:1,[::1]:1", NULL, NULL);
	struct ask ask;

	(void)state;
	assert_non_null(decode);
	prompt_make(&prompt, 500, 9);
	ask = ask_for(decode, &prompt, 10);
	must_answer(&ask, &answer);
	expect_bounded_delay(&answer);
	expect_note(&answer, "127.0.0.1:1");
	assert_int_equal(process_stop(decode), 0);
}

static void test_small_node_pool_is_no_error(void **state)
{
	static struct prompt prompt;
	static struct answer answer, plain;
	/* Four blocks fit where fifteen are made. */
	struct process *node = cluster_node(&cluster, "node", "1MiB");
	struct process *prefill = cluster_worker(&cluster, "prefill", node->address, NULL, NULL);
	struct process *decode =
		cluster_worker(&cluster, "decode", node->address, prefill->address, no_memory);
	struct ask ask;

	(void)state;
	prompt_make(&prompt, 1000, 10);
	ask = ask_for(decode, &prompt, 10);
	plain_answer(ask, &plain);
	for (uint32_t i = 0; i < 3; i++) {
		must_answer(&ask, &answer);
		assert_true(same_text(&answer, &plain));
		assert_true(answer.took < 3 * plain.took + DELAY);
	}
	assert_int_equal(process_stop(decode), 0);
	assert_int_equal(process_stop(prefill), 0);
	assert_int_equal(process_stop(node), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_cluster, close_cluster)
	const struct CMUnitTest tests[] = {
		TEST(test_node_killed),
		TEST(test_node_stopped_and_continued),
		TEST(test_node_restarted_at_the_same_address),
		TEST(test_node_dies_during_fetches),
		TEST(test_prefill_worker_killed_on_the_way),
		TEST(test_prefill_worker_stopped_on_the_way),
		TEST(test_decode_worker_restarted),
		TEST(test_formats_never_share),
		TEST(test_no_node_from_the_start),
		TEST(test_small_node_pool_is_no_error),
	};

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	if (!cluster_open(&cluster))
		return 77;
	cluster_close(&cluster, false);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
