/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker refuses, and how it says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "proto/rpc_client.h"
#include "worker_ask.h"
#include "worker_cluster.h"
#include "worker_prompts.h"

static struct cluster cluster;
static struct process *node, *prefill, *decode;

static int start_all(void **state)
{
	(void)state;
	node = cluster_node(&cluster, "node", "32MiB");
	prefill = node ? cluster_worker(&cluster, "prefill", node->address, NULL, NULL) : NULL;
	decode = prefill ? cluster_worker(&cluster, "decode", node->address, prefill->address, NULL)
			 : NULL;
	return decode ? 0 : -1;
}

/* Sends @p request as it is; its status and what the worker says. */
static qmla_status_t generate(const char *address, const Qmla__V1__GenerateRequest *request,
			      struct qmp_error *error)
{
	struct qmp_channel_config config = {.target = address};
	ProtobufCMessage *message = NULL;
	struct qmp_channel *channel;
	struct qmp_stream *stream;
	qmla_status_t status;

	error->detail[0] = '\0';
	assert_int_equal(qmp_channel_create(&config, &channel), QMLA_OK);
	assert_int_equal(qmp_stream_open(channel, "/qmla.v1.Worker/Generate", &request->base,
					 &qmla__v1__generate_event__descriptor,
					 qmc_clock_after(20 * QMC_NS_PER_S), &stream),
			 QMLA_OK);
	do {
		qmp_message_free(message);
		message = NULL;
		status = qmp_stream_next(stream, QMC_TIME_NEVER, &message, error);
	} while (status == QMLA_OK && message);
	qmp_stream_close(stream);
	qmp_channel_destroy(channel);
	return status;
}

static qmla_status_t prefill_call(const char *address, const Qmla__V1__PrefillRequest *request,
				  struct qmp_error *error)
{
	struct qmp_channel_config config = {.target = address};
	ProtobufCMessage *message = NULL;
	struct qmp_channel *channel;
	qmla_status_t status;

	error->detail[0] = '\0';
	assert_int_equal(qmp_channel_create(&config, &channel), QMLA_OK);
	status = qmp_channel_call(channel, "/qmla.v1.Worker/Prefill", &request->base,
				  &qmla__v1__prefill_response__descriptor,
				  qmc_clock_after(20 * QMC_NS_PER_S), &message, error);
	qmp_message_free(message);
	qmp_channel_destroy(channel);
	return status;
}

static Qmla__V1__GenerateRequest request_for(const char *text)
{
	Qmla__V1__GenerateRequest request;

	qmla__v1__generate_request__init(&request);
	request.prompt.data = (uint8_t *)(uintptr_t)text;
	request.prompt.len = strlen(text);
	request.max_tokens = 4;
	return request;
}

static void expect_refusal(const Qmla__V1__GenerateRequest *request, qmla_status_t status,
			   const char *text)
{
	struct qmp_error error;

	assert_int_equal(generate(decode->address, request, &error), status);
	if (!strstr(error.detail, text))
		print_message("detail: '%s', expected '%s'\n", error.detail, text);
	assert_non_null(strstr(error.detail, text));
}

static void test_numbers_out_of_range(void **state)
{
	Qmla__V1__GenerateRequest request;

	(void)state;
	request = request_for("");
	expect_refusal(&request, QMLA_ERR_INVALID_ARGUMENT, "prompt is empty");
	request = request_for("text");
	request.max_tokens = 0;
	expect_refusal(&request, QMLA_ERR_INVALID_ARGUMENT, "max_tokens");
	request = request_for("text");
	request.temperature = -1;
	expect_refusal(&request, QMLA_ERR_INVALID_ARGUMENT, "temperature");
	request.temperature = NAN;
	expect_refusal(&request, QMLA_ERR_INVALID_ARGUMENT, "temperature");
	request = request_for("text");
	request.top_p = 1.5f;
	expect_refusal(&request, QMLA_ERR_INVALID_ARGUMENT, "top_p");
}

static void test_tokens_and_namespaces(void **state)
{
	Qmla__V1__GenerateRequest request;
	uint32_t tokens[] = {1, 2, 256};
	static char name[512];

	(void)state;
	request = request_for("");
	request.tokens = tokens;
	request.n_tokens = 3;
	expect_refusal(&request, QMLA_ERR_INVALID_ARGUMENT, "vocabulary");
	tokens[2] = UINT32_MAX;
	expect_refusal(&request, QMLA_ERR_INVALID_ARGUMENT, "vocabulary");
	request = request_for("text");
	request.tokens = tokens;
	request.n_tokens = 1;
	expect_refusal(&request, QMLA_ERR_INVALID_ARGUMENT, "both");
	memset(name, 'n', sizeof(name) - 1);
	request = request_for("text");
	request.cache_namespace = name;
	expect_refusal(&request, QMLA_ERR_INVALID_ARGUMENT, "cache_namespace");
}

static void test_past_the_models_positions(void **state)
{
	static char text[40001];
	Qmla__V1__GenerateRequest request;

	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	request = request_for(text);
	expect_refusal(&request, QMLA_ERR_TOO_LARGE, "32768 positions");
	request = request_for("text");
	request.max_tokens = 32765;
	expect_refusal(&request, QMLA_ERR_TOO_LARGE, "32768 positions");
	request.max_tokens = UINT32_MAX;
	expect_refusal(&request, QMLA_ERR_TOO_LARGE, "32768 positions");
}

static void test_prefill_requests(void **state)
{
	Qmla__V1__PrefillRequest request;
	struct qmp_error error;
	uint32_t tokens[128] = {0};
	uint8_t identity[32] = {1};

	(void)state;
	qmla__v1__prefill_request__init(&request);
	request.tokens = tokens;
	request.n_tokens = 63;
	assert_int_equal(prefill_call(prefill->address, &request, &error),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_non_null(strstr(error.detail, "one block"));
	request.n_tokens = 128;
	assert_int_equal(prefill_call(prefill->address, &request, &error), QMLA_OK);
	tokens[100] = 300;
	assert_int_equal(prefill_call(prefill->address, &request, &error),
			 QMLA_ERR_INVALID_ARGUMENT);
	tokens[100] = 0;
	request.identity.data = identity;
	request.identity.len = sizeof(identity);
	assert_int_equal(prefill_call(prefill->address, &request, &error),
			 QMLA_ERR_IDENTITY_MISMATCH);
	request.identity.len = 3;
	assert_int_equal(prefill_call(prefill->address, &request, &error),
			 QMLA_ERR_IDENTITY_MISMATCH);
	request.identity.len = 0;
	assert_int_equal(prefill_call(decode->address, &request, &error), QMLA_ERR_UNSUPPORTED);
	assert_non_null(strstr(error.detail, "decode worker"));
}

static void test_a_prefill_worker_does_not_generate(void **state)
{
	Qmla__V1__GenerateRequest request = request_for("text");
	struct qmp_error error;

	(void)state;
	assert_int_equal(generate(prefill->address, &request, &error), QMLA_ERR_UNSUPPORTED);
	assert_non_null(strstr(error.detail, "prefill worker"));
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

/* Five slots of 56,192 bytes. */
static void test_small_pool(void **state)
{
	static const char *const flags[] = {"--pool-size", "280960", NULL};
	static struct prompt prompts[3];
	static struct one_ask asks[3];
	static struct answer answer;
	struct process *own = cluster_worker(&cluster, "decode", node->address, NULL, flags);
	pthread_t threads[3];

	(void)state;
	assert_non_null(own);
	prompt_make(&prompts[0], 384, 1);
	asks[0].ask = (struct ask){.address = own->address,
				   .prompt = prompts[0].bytes,
				   .prompt_bytes = 384,
				   .max_tokens = 1};
	ask_worker(&asks[0].ask, &answer); /* six blocks */
	assert_int_equal(answer.status, QMLA_ERR_TOO_LARGE);
	assert_non_null(strstr(answer.detail, "--pool-size"));
	/* Three that need three blocks each: one runs at a time, all are answered. */
	for (uint32_t i = 0; i < 3; i++) {
		prompt_make(&prompts[i], 150, 10 + i);
		asks[i].ask = (struct ask){.address = own->address,
					   .prompt = prompts[i].bytes,
					   .prompt_bytes = 150,
					   .max_tokens = 60};
		pthread_create(&threads[i], NULL, ask_once, &asks[i]);
	}
	for (uint32_t i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(asks[i].answer.status, QMLA_OK);
		assert_int_equal(asks[i].answer.count, 60);
	}
	assert_int_equal(process_stop(own), 0);
}

static void test_too_many_at_a_time(void **state)
{
	static const char *const flags[] = {"--max-batch", "1", "--max-waiting", "0", NULL};
	static struct prompt prompt;
	static struct one_ask first;
	static struct answer second;
	struct process *own = cluster_worker(&cluster, "decode", NULL, NULL, flags);
	Qmla__V1__WorkerStatsResponse stats = {0};
	pthread_t thread;

	(void)state;
	assert_non_null(own);
	prompt_make(&prompt, 100, 1);
	first.ask = (struct ask){.address = own->address,
				 .prompt = prompt.bytes,
				 .prompt_bytes = 100,
				 .max_tokens = 1000};
	pthread_create(&thread, NULL, ask_once, &first);
	while (stats.active == 0)
		assert_int_equal(ask_stats(own->address, &stats), QMLA_OK);
	ask_worker(&first.ask, &second);
	assert_int_equal(second.status, QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_non_null(strstr(second.detail, "try again"));
	pthread_join(thread, NULL);
	assert_int_equal(first.answer.status, QMLA_OK);
	assert_int_equal(process_stop(own), 0);
}

static void test_nothing_of_it_left_a_trace(void **state)
{
	Qmla__V1__WorkerStatsResponse stats;

	(void)state;
	assert_int_equal(ask_stats(decode->address, &stats), QMLA_OK);
	assert_int_equal(stats.active + stats.waiting, 0);
	assert_int_equal(stats.pool_used, 0);
	assert_int_equal(process_stop(decode), 0);
	assert_int_equal(process_stop(prefill), 0);
	assert_int_equal(process_stop(node), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers_out_of_range),
		cmocka_unit_test(test_tokens_and_namespaces),
		cmocka_unit_test(test_past_the_models_positions),
		cmocka_unit_test(test_prefill_requests),
		cmocka_unit_test(test_a_prefill_worker_does_not_generate),
		cmocka_unit_test(test_small_pool),
		cmocka_unit_test(test_too_many_at_a_time),
		cmocka_unit_test(test_nothing_of_it_left_a_trace),
	};
	int failed;

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	if (!cluster_open(&cluster))
		return 77;
	failed = cmocka_run_group_tests(tests, start_all, NULL);
	cluster_close(&cluster, failed != 0);
	return failed;
}
