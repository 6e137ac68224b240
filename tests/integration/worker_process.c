/* SPDX-License-Identifier: Apache-2.0 */
/* A worker as a process: signals, port files, bad flags and files, logs, addresses, health. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/address.h"
#include "common/log.h"
#include "grpc/health/v1/health.pb-c.h"
#include "proto/rpc_client.h"
#include "worker_ask.h"
#include "worker_cluster.h"
#include "worker_prompts.h"

#define MODEL QMLA_TEST_DATA "/mla-s"

static struct cluster cluster;

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

struct one_ask {
	struct ask ask;
	struct answer answer;
	struct prompt prompt;
	pthread_t thread;
};

static void *ask_once(void *argument)
{
	struct one_ask *one = argument;

	ask_worker(&one->ask, &one->answer);
	return NULL;
}

/* Starts a request and returns once its tokens come. */
static void start_request(struct one_ask *one, const struct process *worker, uint32_t max_tokens)
{
	Qmla__V1__WorkerStatsResponse stats = {0};

	prompt_make(&one->prompt, 100, 1);
	one->ask = (struct ask){.address = worker->address,
				.prompt = one->prompt.bytes,
				.prompt_bytes = one->prompt.count,
				.max_tokens = max_tokens};
	pthread_create(&one->thread, NULL, ask_once, one);
	while (stats.tokens_generated == 0)
		assert_int_equal(ask_stats(worker->address, &stats), QMLA_OK);
}

static struct process *start_worker(const char *const *more)
{
	struct process *worker = cluster_worker(&cluster, "decode", NULL, NULL, more);

	assert_non_null(worker);
	assert_int_equal(access(worker->port_file, F_OK), 0);
	return worker;
}

/* A sanitizer's build takes a while to finish what it has begun. */
static const char *const patient[] = {"--drain-timeout", "5m", NULL};

static void test_sighup_during_a_drain_does_not_kill(void **state)
{
	static struct one_ask one;
	struct process *worker = start_worker(patient);

	(void)state;
	start_request(&one, worker, 1200);
	process_signal(worker, SIGTERM);
	assert_true(process_says(worker, "a second signal ends"));
	for (uint32_t i = 0; i < 20; i++) {
		process_signal(worker, SIGHUP);
		qmc_clock_sleep_until(qmc_clock_after(2 * QMC_NS_PER_MS));
	}
	assert_int_equal(access(worker->port_file, F_OK), -1);
	pthread_join(one.thread, NULL);
	assert_int_equal(one.answer.status, QMLA_OK);
	assert_int_equal(one.answer.count, 1200);
	assert_int_equal(process_wait(worker, 20000), 0);
}

static void end_twice(int first, int second)
{
	static struct one_ask one;
	struct process *worker = start_worker(NULL);
	qmc_time_t begin;

	start_request(&one, worker, 4000);
	process_signal(worker, first);
	assert_true(process_says(worker, "a second signal ends"));
	begin = qmc_clock_now();
	process_signal(worker, second);
	assert_int_equal(process_wait(worker, 10000), 1);
	assert_true(qmc_clock_now() - begin < 2 * QMC_NS_PER_S);
	assert_true(process_logged(worker, "ended at once"));
	assert_int_equal(access(worker->port_file, F_OK), -1);
	pthread_join(one.thread, NULL);
	assert_int_not_equal(one.answer.status, QMLA_OK);
	assert_true(one.answer.count < 4000);
}

static void test_a_second_signal_ends_at_once(void **state)
{
	(void)state;
	end_twice(SIGTERM, SIGTERM);
	end_twice(SIGINT, SIGTERM);
}

/* Requests go on, and the log's level changes. */
static void test_sighup_reads_the_file_again(void **state)
{
	static struct one_ask one;
	char path[512];
	const char *const flags[] = {"--config", path, NULL};
	struct process *worker;
	FILE *file;

	(void)state;
	snprintf(path, sizeof(path), "%s/worker.conf", cluster.folder);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs("log-format = text\n", file);
	fclose(file);
	worker = start_worker(flags);
	start_request(&one, worker, 600);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs("log-format = json\n", file);
	fclose(file);
	process_signal(worker, SIGHUP);
	assert_true(process_says(worker, "was read again"));
	assert_true(process_logged(worker, "{\""));
	pthread_join(one.thread, NULL);
	assert_int_equal(one.answer.status, QMLA_OK);
	assert_int_equal(process_stop(worker), 0);
}

static void await_file(const char *path)
{
	qmc_time_t deadline = qmc_clock_after(20 * QMC_NS_PER_S);

	while (access(path, F_OK) != 0 && qmc_clock_left(deadline) > 0)
		qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_MS));
	assert_int_equal(access(path, F_OK), 0);
}

/* The port is told before the model is loaded, so these come while it is. */
static void test_signals_while_loading(void **state)
{
	char port_file[512];
	const char *const flags[] = {"decode",      "--model",     MODEL,     "--listen",
				     "127.0.0.1:0", "--port-file", port_file, NULL};
	struct process *worker;

	(void)state;
	snprintf(port_file, sizeof(port_file), "%s/loading.port", cluster.folder);
	worker = cluster_spawn(&cluster, "loading", "qmla-worker", flags);
	assert_non_null(worker);
	await_file(port_file);
	for (uint32_t i = 0; i < 50; i++) {
		process_signal(worker, SIGHUP);
		qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_MS));
	}
	assert_int_equal(process_wait(worker, 0), -1);
	assert_true(process_says(worker, "worker serves"));
	assert_int_equal(process_stop(worker), 0);
	worker = cluster_spawn(&cluster, "ended", "qmla-worker", flags);
	assert_non_null(worker);
	await_file(port_file);
	process_signal(worker, SIGTERM);
	assert_int_equal(process_wait(worker, 20000), 0);
	assert_int_equal(access(port_file, F_OK), -1);
}

static uint32_t files_in(const char *folder)
{
	DIR *directory = opendir(folder);
	struct dirent *entry;
	uint32_t count = 0;

	while (directory && (entry = readdir(directory)))
		count += entry->d_name[0] != '.';
	if (directory)
		closedir(directory);
	return count;
}

/* Runs a worker that cannot start: its exit status, and that it says why. */
static void expect_end(const char *const *arguments, int code, const char *text)
{
	struct process *worker = cluster_spawn(&cluster, "fails", "qmla-worker", arguments);
	int got;

	assert_non_null(worker);
	got = process_wait(worker, 20000);
	if (got != code)
		print_message("%s … %s: status %d\n", arguments[0], text, got);
	assert_int_equal(got, code);
	assert_true(process_says(worker, text));
	cluster.count--; /* its place is free again */
	assert_int_equal(unlink(worker->log), 0);
}

static void test_a_taken_port_leaves_the_other_one_alone(void **state)
{
	struct process *worker = start_worker(NULL);
	const char *const flags[] = {
		"decode",      "--model",         MODEL, "--listen", worker->address,
		"--port-file", worker->port_file, NULL};
	uint32_t before = files_in(cluster.folder);
	char text[64] = "";
	FILE *file;

	(void)state;
	expect_end(flags, 1, "the address is in use");
	file = fopen(worker->port_file, "r");
	assert_non_null(file);
	assert_non_null(fgets(text, sizeof(text), file));
	fclose(file);
	assert_int_equal(atoi(text), atoi(strrchr(worker->address, ':') + 1));
	assert_int_equal(files_in(cluster.folder), before); /* no temporary file is left */
	assert_int_equal(process_stop(worker), 0);
	assert_int_equal(access(worker->port_file, F_OK), -1);
}

static void test_port_files_that_cannot_be_written(void **state)
{
	char locked[512], path[600];
	const char *const flags[] = {"decode",      "--model",     MODEL, "--listen",
				     "127.0.0.1:0", "--port-file", path,  NULL};

	(void)state;
	snprintf(path, sizeof(path), "%s/missing/port", cluster.folder);
	expect_end(flags, 1, "--port-file");
	snprintf(path, sizeof(path), "/sys/kernel/qmla.port"); /* nobody may write there */
	expect_end(flags, 1, "choose a place that can be written");
	if (geteuid() == 0)
		return; /* modes do not hold the superuser back */
	snprintf(locked, sizeof(locked), "%s/locked", cluster.folder);
	assert_int_equal(mkdir(locked, 0555), 0);
	snprintf(path, sizeof(path), "%s/port", locked);
	expect_end(flags, 1, "choose a place that can be written");
	rmdir(locked);
}

static void test_bad_flags(void **state)
{
#define WORKER "decode", "--listen", "127.0.0.1:0", "--model"
	static const struct {
		const char *arguments[12];
		int code;
		const char *text;
	} list[] = {
		{{"--nodes"}, 2, "is no role"},
		{{"cook"}, 2, "is no role"},
		{{"decode"}, 2, "--model is missing"},
		{{"prefill", "--model", MODEL}, 2, "--nodes is missing"},
		{{"prefill", "--model", MODEL, "--nodes", "a:1", "--prefill", "b:2"},
		 2,
		 "--prefill is for decode"},
		{{WORKER, MODEL, "extra"}, 2, "extra"},
		{{WORKER, MODEL, "--no-such-flag"}, 2, "no-such-flag"},
		{{WORKER, MODEL, "--max-batch", "0"}, 2, "--max-batch"},
		{{WORKER, MODEL, "--format", "c9"}, 2, "--format"},
		{{WORKER, MODEL, "--transport", "pigeon"}, 2, "--transport"},
		{{WORKER, MODEL, "--prefill", "a:b:c"}, 2, "--prefill"},
		{{WORKER, MODEL, "--log-level", "loud"}, 2, "--log-level"},
		{{WORKER, MODEL, "--tls-ca", "x.pem"}, 2, "--tls-key"},
		{{WORKER, MODEL, "--config", "/no/such/file"}, 2, "/no/such/file"},
		{{WORKER, MODEL, "--nodes", "a:b:c"}, 1, "node 'a:b:c'"},
		{{WORKER, MODEL, "--nodes", "a:1,a:1"}, 1, "a:1"},
		{{WORKER, MODEL, "--pool-size", "100"}, 1, "raise --pool-size"},
		{{WORKER, "/no/such/model"}, 1, "/no/such/model"},
		{{WORKER, MODEL, "--listen", "192.0.2.1:0"}, 1, "not an address of this machine"},
		{{WORKER, MODEL, "--listen", "no-such-host.invalid:0"}, 1, "no such host name"},
		{{WORKER, MODEL, "--tls-ca", "/no/ca.pem", "--tls-certificate", "/no/c.pem",
		  "--tls-key", "/no/k.pem"},
		 1,
		 "/no/ca.pem"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		expect_end(list[i].arguments, list[i].code, list[i].text);
#undef WORKER
}

/* Both are known from small files: nobody waits for the weights, which are no good here. */
static void test_nodes_and_pool_are_judged_before_the_weights(void **state)
{
	char folder[512], path[600], command[2500];
	const char *const nodes[] = {"decode",      "--model", folder,  "--listen",
				     "127.0.0.1:0", "--nodes", "a:b:c", NULL};
	const char *const pool[] = {"decode",      "--model",     folder, "--listen",
				    "127.0.0.1:0", "--pool-size", "1000", NULL};
	const char *const neither[] = {"decode",   "--model",     folder,
				       "--listen", "127.0.0.1:0", NULL};

	(void)state;
	snprintf(folder, sizeof(folder), "%s/weightless", cluster.folder);
	snprintf(path, sizeof(path), "%s/config.json", folder);
	assert_int_equal(mkdir(folder, 0700), 0);
	snprintf(command, sizeof(command), "cp '%s/config.json' '%s'", MODEL, path);
	assert_int_equal(system(command), 0);
	expect_end(nodes, 1, "node 'a:b:c'");
	expect_end(pool, 1, "raise --pool-size");
	expect_end(neither, 1, "model.safetensors");
	unlink(path);
	rmdir(folder);
}

static void test_a_truncated_checkpoint(void **state)
{
	char folder[512], port_file[600], command[2500];
	const char *const flags[] = {"decode",      "--model",     folder,    "--listen",
				     "127.0.0.1:0", "--port-file", port_file, NULL};

	(void)state;
	snprintf(folder, sizeof(folder), "%s/cut", cluster.folder);
	snprintf(port_file, sizeof(port_file), "%s/cut.port", cluster.folder);
	snprintf(command, sizeof(command),
		 "cp -r '%s' '%s' && chmod -R u+w '%s' && truncate -s 1000000 "
		 "'%s/model.safetensors'",
		 MODEL, folder, folder, folder);
	assert_int_equal(system(command), 0);
	expect_end(flags, 1, "cut/model.safetensors");
	assert_int_equal(access(port_file, F_OK), -1);
	snprintf(command, sizeof(command), "rm -r '%s'", folder);
	assert_int_equal(system(command), 0);
}

/* With constants that fit another checkpoint a worker says so, and runs without when told. */
static void test_calibration_can_be_ignored(void **state)
{
	char folder[512], command[2500];
	const char *const flags[] = {"decode", "--model", folder, "--listen", "127.0.0.1:0", NULL};
	const char *const more[] = {"--model", folder, "--ignore-calibration", NULL};
	struct process *worker;

	(void)state;
	snprintf(folder, sizeof(folder), "%s/spoilt", cluster.folder);
	snprintf(command, sizeof(command),
		 "cp -r '%s' '%s' && chmod -R u+w '%s' && echo '{' >'%s/quantmla.json'", MODEL,
		 folder, folder, folder);
	assert_int_equal(system(command), 0);
	expect_end(flags, 1, "quantmla.json");
	worker = start_worker(more);
	assert_true(process_logged(worker, "calibration none"));
	assert_int_equal(process_stop(worker), 0);
	snprintf(command, sizeof(command), "rm -r '%s'", folder);
	assert_int_equal(system(command), 0);
}

static void test_json_log_lines(void **state)
{
	static const char *const flags[] = {"--log-format", "json", NULL};
	static struct one_ask one;
	struct process *worker = start_worker(flags);
	uint32_t lines = 0;
	char line[4096];
	FILE *file;

	(void)state;
	start_request(&one, worker, 20);
	pthread_join(one.thread, NULL);
	assert_int_equal(process_stop(worker), 0);
	file = fopen(worker->log, "r");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file)) {
		json_t *object = json_loads(line, 0, NULL);

		if (!object)
			print_message("no JSON: %s", line);
		assert_non_null(object);
		assert_true(json_is_string(json_object_get(object, "level")));
		assert_true(json_is_string(json_object_get(object, "message")));
		json_decref(object);
		lines++;
	}
	fclose(file);
	assert_true(lines >= 4); /* loaded, serves, the request, the end */
}

static bool has_ipv6(void)
{
	const struct qmc_address address = {.host = "::1"};
	uint16_t port;
	int fd;

	if (qmc_tcp_listen(&address, &fd, &port) != QMLA_OK)
		return false;
	close(fd);
	return true;
}

static struct process *start_v6(const char *name, const char *program, const char *role,
				const char *nodes, const char *prefill)
{
	const char *arguments[12] = {0};
	size_t n = 0;

	if (role)
		arguments[n++] = role;
	if (role) {
		arguments[n++] = "--model";
		arguments[n++] = MODEL;
		arguments[n++] = "--no-local-reuse";
		arguments[n++] = "--nodes";
		arguments[n++] = nodes;
	} else {
		arguments[n++] = "--pool-size";
		arguments[n++] = "32MiB";
	}
	if (prefill) {
		arguments[n++] = "--prefill";
		arguments[n++] = prefill;
	}
	return cluster_start(&cluster, name, "[::1]:0", program, arguments);
}

static void test_ipv6_from_end_to_end(void **state)
{
	static struct prompt prompt;
	static struct answer cold, warm;
	struct process *node, *prefill, *decode;
	struct ask ask;

	(void)state;
	if (!has_ipv6())
		skip();
	node = start_v6("node6", "qmla-node", NULL, NULL, NULL);
	assert_non_null(node);
	prefill = start_v6("prefill6", "qmla-worker", "prefill", node->address, NULL);
	assert_non_null(prefill);
	decode = start_v6("decode6", "qmla-worker", "decode", node->address, prefill->address);
	assert_non_null(decode);
	assert_non_null(strstr(decode->address, "[::1]:"));
	prompt_make(&prompt, 700, 6);
	ask = (struct ask){.address = decode->address,
			   .prompt = prompt.bytes,
			   .prompt_bytes = prompt.count,
			   .max_tokens = 20};
	ask_worker(&ask, &cold);
	assert_int_equal(cold.status, QMLA_OK);
	assert_string_equal(cold.notes, "");
	assert_int_equal(cold.usage.blocks_prefilled, 699 / 64);
	ask_worker(&ask, &warm);
	assert_int_equal(warm.usage.blocks_hit, 699 / 64);
	assert_true(same_text(&cold, &warm));
	assert_int_equal(process_stop(decode), 0);
	assert_int_equal(process_stop(prefill), 0);
	assert_int_equal(process_stop(node), 0);
}

static Grpc__Health__V1__HealthCheckResponse__ServingStatus next_health(struct qmp_stream *stream)
{
	Grpc__Health__V1__HealthCheckResponse__ServingStatus status;
	ProtobufCMessage *message = NULL;

	assert_int_equal(
		qmp_stream_next(stream, qmc_clock_after(20 * QMC_NS_PER_S), &message, NULL),
		QMLA_OK);
	assert_non_null(message);
	status = ((const Grpc__Health__V1__HealthCheckResponse *)message)->status;
	qmp_message_free(message);
	return status;
}

/* Who watches sees the worker serve, and stop to while it still answers what it has begun. */
static void test_health_is_watched(void **state)
{
	static struct one_ask one;
	static char service[] = "qmla.v1.Worker";
	struct process *worker = start_worker(patient);
	struct qmp_channel_config config = {.target = worker->address};
	Grpc__Health__V1__HealthCheckRequest request;
	struct qmp_channel *channel;
	struct qmp_stream *stream;

	(void)state;
	assert_int_equal(qmp_channel_create(&config, &channel), QMLA_OK);
	grpc__health__v1__health_check_request__init(&request);
	request.service = service;
	assert_int_equal(qmp_stream_open(channel, "/grpc.health.v1.Health/Watch", &request.base,
					 &grpc__health__v1__health_check_response__descriptor,
					 qmc_clock_after(300 * QMC_NS_PER_S), &stream),
			 QMLA_OK);
	assert_int_equal(next_health(stream),
			 GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING);
	start_request(&one, worker, 600);
	process_signal(worker, SIGTERM);
	assert_int_equal(next_health(stream),
			 GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING);
	pthread_join(one.thread, NULL);
	assert_int_equal(one.answer.status, QMLA_OK);
	qmp_stream_close(stream);
	qmp_channel_destroy(channel);
	assert_int_equal(process_wait(worker, 20000), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_cluster, close_cluster)
	const struct CMUnitTest tests[] = {
		TEST(test_sighup_during_a_drain_does_not_kill),
		TEST(test_a_second_signal_ends_at_once),
		TEST(test_sighup_reads_the_file_again),
		TEST(test_signals_while_loading),
		TEST(test_a_taken_port_leaves_the_other_one_alone),
		TEST(test_port_files_that_cannot_be_written),
		TEST(test_bad_flags),
		TEST(test_nodes_and_pool_are_judged_before_the_weights),
		TEST(test_a_truncated_checkpoint),
		TEST(test_calibration_can_be_ignored),
		TEST(test_json_log_lines),
		TEST(test_ipv6_from_end_to_end),
		TEST(test_health_is_watched),
	};

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	if (!cluster_open(&cluster))
		return 77;
	cluster_close(&cluster, false);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
