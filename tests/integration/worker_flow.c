/* SPDX-License-Identifier: Apache-2.0 */
/* Workers doing what they are for: real processes, a real model, bytes that move. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/address.h"
#include "common/log.h"
#include "worker_ask.h"
#include "worker_cluster.h"
#include "worker_prompts.h"

#define CONCURRENT         6
#define HTTP_PORT_TEXT_MAX 65536

static struct cluster cluster;
static struct process *node, *prefill, *decode;

static int start_all(void **state)
{
	static const char *const no_memory[] = {"--no-local-reuse", NULL};

	(void)state;
	node = cluster_node(&cluster, "node", "64MiB");
	prefill = node ? cluster_worker(&cluster, "prefill", node->address, NULL, NULL) : NULL;
	decode = prefill ? cluster_worker(&cluster, "decode", node->address, prefill->address,
					  no_memory)
			 : NULL;
	return decode ? 0 : -1;
}

static struct ask ask_for(const struct prompt *prompt, uint32_t max_tokens)
{
	return (struct ask){.address = decode->address,
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
	assert_true(answer->has_usage);
	assert_int_equal(answer->count, ask->max_tokens);
	assert_int_equal(answer->usage.generated_tokens, answer->count);
	assert_int_equal(answer->usage.prompt_tokens, ask->prompt_bytes);
}

static void test_warm_and_cold_and_uncached_answers_are_equal(void **state)
{
	static struct prompt prompt;
	static struct answer cold, warm, plain;
	struct ask ask;

	(void)state;
	prompt_read(&prompt, "prompt_a.txt");
	assert_true(prompt.count > 1400);
	ask = ask_for(&prompt, 200);
	must_answer(&ask, &cold);
	assert_int_equal(cold.usage.blocks_hit, 0);
	assert_int_equal(cold.usage.blocks_prefilled, (prompt.count - 1) / 64);
	assert_int_equal(cold.usage.tail_tokens, prompt.count % 64);
	assert_string_equal(cold.notes, "");
	must_answer(&ask, &warm);
	assert_int_equal(warm.usage.blocks_hit, (prompt.count - 1) / 64);
	assert_int_equal(warm.usage.blocks_local, 0);
	assert_int_equal(warm.usage.blocks_prefilled, 0);
	/* 64 tokens, 3 layers of 292 B each, and a header of at least 32 bytes. */
	assert_true(warm.usage.fetched_bytes >= warm.usage.blocks_hit * (64 * 3 * 292 + 32));
	assert_true(warm.usage.first_token_us < cold.usage.first_token_us);
	ask.no_cache = true;
	must_answer(&ask, &plain);
	assert_int_equal(plain.usage.blocks_hit + plain.usage.blocks_prefilled, 0);
	assert_int_equal(plain.usage.fetched_bytes, 0);
	assert_true(same_text(&cold, &warm));
	assert_true(same_text(&cold, &plain));
}

static void test_a_shared_prefix_is_a_hit(void **state)
{
	static struct prompt a, b;
	static struct answer first, second, plain;
	struct ask ask;
	uint32_t common = 0;

	(void)state;
	prompt_read(&a, "prompt_a.txt");
	prompt_read(&b, "prompt_b.txt");
	while (common < a.count && a.bytes[common] == b.bytes[common])
		common++;
	assert_true(common >= 1200 && common < b.count);
	ask = ask_for(&a, 1);
	must_answer(&ask, &first);
	ask = ask_for(&b, 64);
	must_answer(&ask, &second);
	assert_int_equal(second.usage.blocks_hit, common / 64);
	ask.no_cache = true;
	must_answer(&ask, &plain);
	assert_true(same_text(&second, &plain));
}

static void test_generated_blocks_are_shared_too(void **state)
{
	static struct prompt prompt;
	static struct answer first, next;
	struct ask ask;
	qmc_time_t deadline;

	(void)state;
	prompt_make(&prompt, 200, 11);
	ask = ask_for(&prompt, 300);
	must_answer(&ask, &first);
	for (uint32_t i = 0; i < first.count; i++)
		prompt.bytes[prompt.count++] = (uint8_t)first.tokens[i];
	ask = ask_for(&prompt, 2);
	deadline = qmc_clock_after(10 * QMC_NS_PER_S);
	do { /* publishing is behind the answer */
		must_answer(&ask, &next);
	} while (next.usage.blocks_hit < 499 / 64 && qmc_clock_left(deadline) > 0);
	/* The last token that was generated was never fed: 200 + 299 were. */
	assert_true(next.usage.blocks_hit >= 499 / 64);
}

static void test_namespaces_do_not_share(void **state)
{
	static struct prompt prompt;
	static struct answer one, two;
	struct ask ask;

	(void)state;
	prompt_make(&prompt, 640, 21);
	ask = ask_for(&prompt, 8);
	ask.name_space = "tenant one";
	must_answer(&ask, &one);
	must_answer(&ask, &one);
	assert_int_equal(one.usage.blocks_hit, 639 / 64);
	ask.name_space = "tenant two";
	must_answer(&ask, &two);
	assert_int_equal(two.usage.blocks_hit, 0);
	assert_true(same_text(&one, &two));
}

static void test_a_seed_repeats_and_another_does_not(void **state)
{
	static struct prompt prompt;
	static struct answer one, same, other;
	struct ask ask;

	(void)state;
	prompt_make(&prompt, 100, 31);
	ask = ask_for(&prompt, 100);
	ask.temperature = 1;
	ask.seed = 5;
	must_answer(&ask, &one);
	must_answer(&ask, &same);
	ask.seed = 6;
	must_answer(&ask, &other);
	assert_true(same_text(&one, &same));
	assert_false(same_text(&one, &other));
}

/* A figure out of /metrics. */
static long long metric(const char *address, const char *name)
{
	static char text[HTTP_PORT_TEXT_MAX];
	struct qmc_address where;
	const char request[] = "GET /metrics HTTP/1.0\r\n\r\n";
	size_t used = 0;
	ssize_t got;
	const char *line;
	int fd;

	assert_int_equal(qmc_address_parse(address, &where), QMLA_OK);
	assert_int_equal(qmc_tcp_connect(&where, qmc_clock_after(5 * QMC_NS_PER_S), &fd), QMLA_OK);
	fcntl(fd, F_SETFL, 0);
	assert_int_equal(write(fd, request, sizeof(request) - 1), sizeof(request) - 1);
	while ((got = read(fd, text + used, sizeof(text) - 1 - used)) > 0)
		used += (size_t)got;
	close(fd);
	text[used] = '\0';
	line = strstr(text, name);
	while (line && line > text && line[-1] != '\n')
		line = strstr(line + 1, name);
	assert_non_null(line);
	return atoll(line + strlen(name));
}

struct asker {
	struct ask ask;
	struct answer answer;
};

static void *ask_thread(void *argument)
{
	struct asker *asker = argument;

	ask_worker(&asker->ask, &asker->answer);
	return NULL;
}

static void test_requests_are_batched_and_do_not_mix(void **state)
{
	static struct prompt prompts[CONCURRENT];
	static struct asker askers[CONCURRENT];
	static struct answer alone;
	static const char *const flags[] = {"--http-listen", "127.0.0.1:0", NULL};
	struct process *own = cluster_worker(&cluster, "decode", node->address, NULL, flags);
	pthread_t threads[CONCURRENT];
	char line[256], http[64] = "";
	long long steps, tokens;
	FILE *log;

	(void)state;
	assert_non_null(own);
	log = fopen(own->log, "r");
	while (fgets(line, sizeof(line), log)) {
		const char *at = strstr(line, "metrics on port ");

		if (at)
			snprintf(http, sizeof(http), "127.0.0.1:%d", atoi(at + 16));
	}
	fclose(log);
	assert_true(http[0] != '\0');
	for (uint32_t i = 0; i < CONCURRENT; i++) {
		prompt_make(&prompts[i], 100 + 90 * i, 100 + i);
		askers[i].ask = ask_for(&prompts[i], 120);
		askers[i].ask.address = own->address;
		pthread_create(&threads[i], NULL, ask_thread, &askers[i]);
	}
	for (uint32_t i = 0; i < CONCURRENT; i++)
		pthread_join(threads[i], NULL);
	steps = metric(http, "qmla_worker_steps_total ");
	tokens = metric(http, "qmla_worker_tokens_generated_total ");
	assert_int_equal(tokens, CONCURRENT * 120);
	assert_true(steps < tokens * 3 / 4);
	for (uint32_t i = 0; i < CONCURRENT; i++) {
		struct ask ask = askers[i].ask;

		assert_int_equal(askers[i].answer.status, QMLA_OK);
		ask.no_cache = true;
		must_answer(&ask, &alone);
		assert_true(same_text(&alone, &askers[i].answer));
	}
	assert_int_equal(process_stop(own), 0);
}

/* A crowd with one prompt: it is computed once, whoever came first. */
static void test_one_prompt_at_a_time_is_computed(void **state)
{
	static struct prompt prompt;
	static struct asker askers[CONCURRENT];
	static struct answer plain;
	Qmla__V1__WorkerStatsResponse before, after;
	pthread_t threads[CONCURRENT];
	uint64_t decode_before;
	struct ask ask;

	(void)state;
	prompt_make(&prompt, 1500, 61);
	ask = ask_for(&prompt, 10);
	assert_int_equal(ask_stats(decode->address, &before), QMLA_OK);
	decode_before = before.tokens_prefilled;
	assert_int_equal(ask_stats(prefill->address, &before), QMLA_OK);
	for (uint32_t i = 0; i < CONCURRENT; i++) {
		askers[i].ask = ask;
		pthread_create(&threads[i], NULL, ask_thread, &askers[i]);
	}
	for (uint32_t i = 0; i < CONCURRENT; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(ask_stats(prefill->address, &after), QMLA_OK);
	assert_int_equal(after.tokens_prefilled - before.tokens_prefilled, 1499 / 64 * 64);
	assert_int_equal(ask_stats(decode->address, &after), QMLA_OK);
	/* Each computed its own tail: 1500 - 23 * 64 tokens. */
	assert_int_equal(after.tokens_prefilled - decode_before, CONCURRENT * (1500 - 23 * 64));
	ask.no_cache = true;
	must_answer(&ask, &plain);
	for (uint32_t i = 0; i < CONCURRENT; i++) {
		assert_int_equal(askers[i].answer.status, QMLA_OK);
		assert_true(same_text(&askers[i].answer, &plain));
	}
}

static void await_idle(const char *address)
{
	qmc_time_t deadline = qmc_clock_after(5 * QMC_NS_PER_S);
	Qmla__V1__WorkerStatsResponse stats;

	do {
		assert_int_equal(ask_stats(address, &stats), QMLA_OK);
	} while ((stats.active || stats.waiting || stats.pool_used) &&
		 qmc_clock_left(deadline) > 0);
	assert_int_equal(stats.active, 0);
	assert_int_equal(stats.waiting, 0);
	assert_int_equal(stats.pool_used, 0);
}

static void test_cancel_frees_everything(void **state)
{
	static struct prompt prompt;
	static struct answer answer;
	struct ask ask;

	(void)state;
	prompt_make(&prompt, 700, 41);
	ask = ask_for(&prompt, 3000);
	ask.cancel_after = 3;
	ask_worker(&ask, &answer);
	assert_int_equal(answer.status, QMLA_ERR_CANCELLED);
	assert_true(answer.count < 3000);
	await_idle(decode->address);
}

static void test_a_client_deadline_ends_the_work(void **state)
{
	static struct prompt prompt;
	static struct answer answer;
	struct ask ask;

	(void)state;
	prompt_make(&prompt, 100, 42);
	ask = ask_for(&prompt, 4000);
	ask.timeout_ns = 200 * QMC_NS_PER_MS;
	ask_worker(&ask, &answer);
	assert_int_equal(answer.status, QMLA_ERR_DEADLINE);
	assert_true(answer.took < 2 * QMC_NS_PER_S);
	await_idle(decode->address);
}

static void test_sigterm_lets_running_requests_finish(void **state)
{
	static struct prompt prompt;
	static struct asker running;
	static struct answer late;
	struct process *own = cluster_worker(&cluster, "decode", NULL, NULL, NULL);
	Qmla__V1__WorkerStatsResponse stats = {0};
	pthread_t thread;
	int status;

	(void)state;
	assert_non_null(own);
	prompt_make(&prompt, 100, 51);
	running.ask = ask_for(&prompt, 150);
	running.ask.address = own->address;
	pthread_create(&thread, NULL, ask_thread, &running);
	while (stats.tokens_generated == 0 && ask_stats(own->address, &stats) == QMLA_OK)
		continue;
	status = process_stop(own);
	pthread_join(thread, NULL);
	assert_int_equal(status, 0);
	assert_int_equal(running.answer.status, QMLA_OK);
	assert_int_equal(running.answer.count, 150);
	ask_worker(&running.ask, &late);
	assert_int_not_equal(late.status, QMLA_OK);
}

static void test_servers_end_cleanly(void **state)
{
	(void)state;
	assert_int_equal(process_stop(decode), 0);
	assert_int_equal(process_stop(prefill), 0);
	assert_int_equal(process_stop(node), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_warm_and_cold_and_uncached_answers_are_equal),
		cmocka_unit_test(test_a_shared_prefix_is_a_hit),
		cmocka_unit_test(test_generated_blocks_are_shared_too),
		cmocka_unit_test(test_namespaces_do_not_share),
		cmocka_unit_test(test_a_seed_repeats_and_another_does_not),
		cmocka_unit_test(test_requests_are_batched_and_do_not_mix),
		cmocka_unit_test(test_one_prompt_at_a_time_is_computed),
		cmocka_unit_test(test_cancel_frees_everything),
		cmocka_unit_test(test_a_client_deadline_ends_the_work),
		cmocka_unit_test(test_sigterm_lets_running_requests_finish),
		cmocka_unit_test(test_servers_end_cleanly),
	};
	int failed;

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	if (!cluster_open(&cluster))
		return 77;
	failed = cmocka_run_group_tests(tests, start_all, NULL);
	cluster_close(&cluster, failed != 0);
	return failed;
}
