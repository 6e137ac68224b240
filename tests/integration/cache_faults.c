/* SPDX-License-Identifier: Apache-2.0 */
/* The library against real nodes that die, stop, come back or are full. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache_raw.h"
#include "cache_rig.h"
#include "client/cache/thread.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/log.h"

extern char **environ;

/* Fetching over and over on a thread of its own, until told to stop or a fetch comes up short. */
struct reader {
	struct rig *rig;
	size_t count;
	size_t prefix; /* of the last fetch */
	int64_t longest_ns;
	qmla_status_t status; /* of its first missing block */
	pthread_t thread;
};

static void *read_until_short(void *user)
{
	struct reader *reader = user;
	qmla_status_t *statuses = calloc(reader->count, sizeof(*statuses));
	qmc_time_t end = qmc_clock_after(10 * QMC_NS_PER_S);

	do {
		qmc_time_t begin = qmc_clock_now();
		int64_t spent;

		reader->prefix = rig_fetch(reader->rig, reader->count, 5000, statuses, NULL);
		spent = qmc_clock_now() - begin;
		if (spent > reader->longest_ns)
			reader->longest_ns = spent;
	} while (reader->prefix == reader->count && qmc_clock_now() < end);
	if (reader->prefix < reader->count)
		reader->status = statuses[reader->prefix];
	free(statuses);
	return NULL;
}

static struct rig *big_rig(const char *transport)
{
	return rig_create(&(struct rig_plan){
		.layers = 27, .blocks = 150, .pool = "128MiB", .transport = transport});
}

static void start_reader(struct reader *reader, struct rig *rig)
{
	*reader = (struct reader){.rig = rig, .count = rig->count};
	rig_publish(rig, rig->count);
	assert_int_equal(qml_thread_start(&reader->thread, read_until_short, reader), QMLA_OK);
	/* Some fetches go well first; the fault then falls into the middle of one. */
	qmc_clock_sleep_until(qmc_clock_after(150 * QMC_NS_PER_MS));
}

/* Killed in the middle: a bounded miss; back under its name and port: another life, empty. */
static void killed_during_fetch(const char *transport)
{
	struct rig *rig = big_rig(transport);
	struct reader reader;

	start_reader(&reader, rig);
	process_kill(rig->nodes[0]);
	pthread_join(reader.thread, NULL);
	assert_true(reader.prefix < reader.count);
	assert_true(reader.status == QMLA_ERR_UNAVAILABLE || reader.status == QMLA_ERR_DEADLINE ||
		    reader.status == QMLA_ERR_PERMISSION);
	assert_true(reader.longest_ns < 3 * QMC_NS_PER_S);

	rig_restart(rig, 0);
	assert_in_range(rig_fetch(rig, 50, 3000, NULL, NULL), 0, 0);
	for (int i = 0; i < 100; i++) {
		if (qmla_client_publish(rig->client, rig->keys, 50,
					(const void *const *)rig->written, 2000, NULL) == QMLA_OK)
			break;
		qmc_clock_sleep_until(qmc_clock_after(50 * QMC_NS_PER_MS));
	}
	assert_true(rig_fetch_reaches(rig, 50));
	rig_destroy(rig);
}

static void test_killed_tcp(void **state)
{
	(void)state;
	killed_during_fetch("tcp");
}

static void test_killed_shm(void **state)
{
	(void)state;
	killed_during_fetch("shm");
}

/* Stopped: nothing comes and nothing breaks. One bounded miss, then no waiting, then back. */
static void stopped_during_fetch(const char *transport)
{
	struct rig *rig = big_rig(transport);
	struct reader reader;
	qmc_time_t begin;

	start_reader(&reader, rig);
	process_signal(rig->nodes[0], SIGSTOP);
	pthread_join(reader.thread, NULL);
	assert_true(reader.prefix < reader.count);
	assert_true(reader.longest_ns < 3500 * QMC_NS_PER_MS);
	begin = qmc_clock_now();
	assert_true(rig_fetch(rig, rig->count, 5000, NULL, NULL) < rig->count);
	assert_true(qmc_clock_now() - begin < 500 * QMC_NS_PER_MS);
	process_signal(rig->nodes[0], SIGCONT);
	assert_true(rig_fetch_reaches(rig, rig->count));
	rig_destroy(rig);
}

static void test_stopped_tcp(void **state)
{
	(void)state;
	stopped_during_fetch("tcp");
}

static void test_stopped_shm(void **state)
{
	(void)state;
	stopped_during_fetch("shm");
}

/* Restarted while nobody looked: the handles of the old life read nothing. */
static void test_restarted_between(void **state)
{
	struct rig *rig = rig_create(&(struct rig_plan){0});
	qmla_status_t statuses[32];

	(void)state;
	rig_publish(rig, 32);
	assert_int_equal(rig_fetch(rig, 32, 2000, NULL, NULL), 32);
	process_kill(rig->nodes[0]);
	rig_restart(rig, 0);
	assert_int_equal(rig_fetch(rig, 32, 3000, statuses, NULL), 0);
	for (int i = 0; i < 100; i++) {
		if (qmla_client_publish(rig->client, rig->keys, 32,
					(const void *const *)rig->written, 2000, NULL) == QMLA_OK)
			break;
		qmc_clock_sleep_until(qmc_clock_after(50 * QMC_NS_PER_MS));
	}
	assert_true(rig_fetch_reaches(rig, 32));
	rig_destroy(rig);
}

/* One of three dies for good: its share is a miss, goes to the next node, and is found there. */
static void test_one_of_three_dies(void **state)
{
	struct rig *rig = rig_create(&(struct rig_plan){.nodes = 3, .blocks = 60});
	qmc_time_t begin;

	(void)state;
	rig_publish(rig, 60);
	process_kill(rig->nodes[1]);
	begin = qmc_clock_now();
	assert_true(rig_fetch(rig, 60, 3000, NULL, NULL) < 60);
	assert_true(qmc_clock_now() - begin < 2 * QMC_NS_PER_S);
	rig_publish(rig, 60);
	assert_int_equal(rig_fetch(rig, 60, 3000, NULL, NULL), 60);
	rig_destroy(rig);
}

static void test_copies_outlive_a_node(void **state)
{
	struct rig *rig = rig_create(&(struct rig_plan){.nodes = 3, .blocks = 60, .replicas = 2});

	(void)state;
	rig_publish(rig, 60);
	assert_int_equal(rig_blocks(rig), 120);
	process_kill(rig->nodes[2]);
	assert_int_equal(rig_fetch(rig, 60, 3000, NULL, NULL), 60);
	rig_destroy(rig);
}

static pid_t start_dying_writer(const struct rig *rig, size_t keys, int *out)
{
	char program[512], text[8][33];
	char *argv[12] = {program, rig->nodes[0]->address};
	posix_spawn_file_actions_t actions;
	int ends[2];
	pid_t pid = 0;

	snprintf(program, sizeof(program), "%s", QMLA_DYING_WRITER);
	for (size_t i = 0; i < keys; i++) {
		qmc_hex_encode(rig->keys[i].bytes, 16, text[i]);
		argv[2 + i] = text[i];
	}
	assert_int_equal(pipe(ends), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
	posix_spawn_file_actions_addclose(&actions, ends[0]);
	assert_int_equal(posix_spawn(&pid, program, &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	*out = ends[0];
	return pid;
}

/* Killed between Reserve and Commit: its keys are busy for as long as its tickets, no longer. */
static void test_writer_dies(void **state)
{
	struct rig *rig = rig_create(&(struct rig_plan){0});
	qmla_status_t statuses[8];
	char line[8] = "";
	int out;
	pid_t pid = start_dying_writer(rig, 4, &out);
	qmc_time_t end;

	(void)state;
	assert_true(read(out, line, sizeof(line) - 1) > 0);
	assert_int_equal(atoi(line), 4);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(out);
	assert_int_equal(qmla_client_publish(rig->client, rig->keys, 8,
					     (const void *const *)rig->written, 2000, statuses),
			 QMLA_OK);
	assert_int_equal(statuses[0], QMLA_ERR_BUSY);
	assert_int_equal(statuses[4], QMLA_OK);
	assert_int_equal(rig_fetch(rig, 8, 2000, NULL, NULL), 0); /* never half a block */
	end = qmc_clock_after(5 * QMC_NS_PER_S);
	do {
		qmc_clock_sleep_until(qmc_clock_after(100 * QMC_NS_PER_MS));
		assert_int_equal(qmla_client_publish(rig->client, rig->keys, 8,
						     (const void *const *)rig->written, 2000,
						     statuses),
				 QMLA_OK);
	} while (statuses[3] == QMLA_ERR_BUSY && qmc_clock_now() < end);
	assert_int_equal(rig_fetch(rig, 8, 2000, NULL, NULL), 8);
	rig_destroy(rig);
}

/* Everything leased: the suffix is refused within the time given, and goes in afterwards. */
static void test_full_of_leases(void **state)
{
	struct rig *rig =
		rig_create(&(struct rig_plan){.layers = 27, .blocks = 40, .pool = "8MiB"});
	struct qmp_channel_config config = {.target = rig->nodes[0]->address};
	qmla_status_t statuses[40];
	struct qmp_channel *channel;
	uint64_t lease, incarnation;
	size_t held = 0;
	qmc_time_t begin;

	(void)state;
	rig_publish(rig, 10);
	assert_int_equal(qmp_channel_create(&config, &channel), QMLA_OK);
	assert_int_equal(
		raw_lease(channel, &rig->identity, rig->keys, 10, 30000, &lease, &incarnation),
		QMLA_OK);
	/* More than fits beside the ten: those that went in are evicted or stay, the ten stay. */
	begin = qmc_clock_now();
	(void)qmla_client_publish(rig->client, rig->keys, 40, (const void *const *)rig->written,
				  1000, statuses);
	assert_true(qmc_clock_now() - begin < 3 * QMC_NS_PER_S);
	for (size_t i = 0; i < 10; i++)
		assert_int_equal(statuses[i], QMLA_ERR_ALREADY_EXISTS);
	assert_true(rig_fetch(rig, 40, 2000, NULL, NULL) >= 10);
	/* Lease whatever is there: now nothing can be evicted. */
	assert_int_equal(qmla_client_probe(rig->client, rig->keys, 40, 1000, statuses), QMLA_OK);
	for (size_t i = 0; i < 40; i++)
		held += statuses[i] == QMLA_OK;
	assert_true(held < 40);
	assert_int_equal(raw_release(channel, lease, incarnation), QMLA_OK);
	assert_int_equal(
		raw_lease(channel, &rig->identity, rig->keys, 40, 30000, &lease, &incarnation),
		QMLA_OK);
	begin = qmc_clock_now();
	assert_int_equal(qmla_client_publish(rig->client, rig->keys, 40,
					     (const void *const *)rig->written, 700, statuses),
			 QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_true(qmc_clock_now() - begin < 2 * QMC_NS_PER_S);
	assert_int_equal(statuses[39], QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(raw_release(channel, lease, incarnation), QMLA_OK);
	assert_int_equal(qmla_client_publish(rig->client, &rig->keys[39], 1,
					     (const void *const *)&rig->written[39], 2000,
					     statuses),
			 QMLA_OK);
	qmp_channel_destroy(channel);
	rig_destroy(rig);
}

/* A node that drains takes no new blocks; with another one there nothing is lost. */
static void test_drain(void **state)
{
	const char *const flags[] = {"--drain-timeout", "3s", NULL};
	struct rig *rig = rig_create(&(struct rig_plan){.nodes = 2, .blocks = 40, .flags = flags});
	qmc_time_t begin;

	(void)state;
	rig_publish(rig, 20);
	process_signal(rig->nodes[0], SIGTERM);
	begin = qmc_clock_now();
	rig_publish(rig, 40);
	assert_int_equal(qmla_client_publish(rig->client, rig->keys, 40,
					     (const void *const *)rig->written, 3000, NULL),
			 QMLA_OK);
	assert_true(qmc_clock_now() - begin < 4 * QMC_NS_PER_S);
	assert_true(process_stop(rig->nodes[0]) >= 0);
	rig_publish(rig, 40);
	assert_true(rig_fetch_reaches(rig, 40));
	rig_destroy(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_killed_tcp),
		cmocka_unit_test(test_killed_shm),
		cmocka_unit_test(test_stopped_tcp),
		cmocka_unit_test(test_stopped_shm),
		cmocka_unit_test(test_restarted_between),
		cmocka_unit_test(test_one_of_three_dies),
		cmocka_unit_test(test_copies_outlive_a_node),
		cmocka_unit_test(test_writer_dies),
		cmocka_unit_test(test_full_of_leases),
		cmocka_unit_test(test_drain),
	};

	if (!rig_available())
		return 77;
	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
