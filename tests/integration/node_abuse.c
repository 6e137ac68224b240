/* SPDX-License-Identifier: Apache-2.0 */
/* What peers do to a node that nobody planned: dying in the middle, flooding it with connections.
 */
#include "tests/unit/server/cmocka_first.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/address.h"
#include "node_process.h"
#include "tests/unit/server/node_fixture.h"

#define FLAGS(...)  ((const char *const[]){__VA_ARGS__, NULL})
#define OK          QMLA__V1__CODE__CODE_OK
#define CONNECTIONS 200

extern char **environ;

static struct node_process process;
static struct node node;
static const char *self;

static int teardown(void **state)
{
	(void)state;
	node_stop(&node);
	memset(&node, 0, sizeof(node));
	node_process_stop(&process);
	return 0;
}

static void start_and_connect(const char *prefix, const char *const *flags)
{
	assert_true(node_process_spawn(&process, prefix, flags));
	assert_true(node_process_ready(&process));
	assert_true(node_attach(&node, process.target));
	assert_int_equal(node_connect(&node, "tcp"), QMLA_OK);
}

/* What this program does when it is started as the writer that dies: reserves, writes half, waits.
 */
static int be_the_writer(const char *target)
{
	struct node mine;
	static uint8_t half[1024];

	if (!node_attach(&mine, target) || node_connect(&mine, "tcp") != QMLA_OK)
		return 1;
	Qmla__V1__ReserveResponse *r = node_reserve(&mine, 1, 1, 800);

	if (!r || r->entries[0]->code != OK ||
	    node_move(&mine, QMT_WRITE, r->entries[0]->offset, half, sizeof(half),
		      &r->capability) != QMLA_OK)
		return 1;
	if (write(STDOUT_FILENO, "r", 1) != 1)
		return 1;
	pause();
	return 1;
}

static pid_t spawn_writer(int *out)
{
	posix_spawn_file_actions_t actions;
	char *argv[] = {(char *)(uintptr_t)self, (char *)(uintptr_t) "writer", process.target,
			NULL};
	int fds[2];
	pid_t pid;

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
	assert_int_equal(posix_spawn(&pid, self, &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	close(fds[1]);
	*out = fds[0];
	return pid;
}

static unsigned long long metric(const char *name)
{
	static char body[1 << 17];
	char line[128];
	const char *at;

	assert_int_equal(node_process_get(&process, "/metrics", body, sizeof(body)), 200);
	snprintf(line, sizeof(line), "\nqmla_node_%s ", name);
	at = strstr(body, line);
	assert_non_null(at);
	return strtoull(at + strlen(line), NULL, 10);
}

static void a_writer_killed_between_reserve_and_commit(void **state)
{
	qmc_time_t limit;
	char byte;
	pid_t pid;
	int out;

	(void)state;
	start_and_connect(NULL, FLAGS(NULL));
	pid = spawn_writer(&out);
	assert_int_equal(read(out, &byte, 1), 1);
	assert_int_equal(metric("tickets"), 1);
	assert_int_equal(node_put(&node, 1), QMLA__V1__CODE__CODE_BUSY);
	assert_int_equal(kill(pid, SIGKILL), 0);
	waitpid(pid, NULL, 0);
	close(out);
	/* The slot comes back with the ticket's end, and the key can be written. */
	limit = qmc_clock_after(10 * QMC_NS_PER_S);
	while (metric("tickets") > 0 && qmc_clock_left(limit) > 0)
		qmc_clock_sleep_until(qmc_clock_after(20 * QMC_NS_PER_MS));
	assert_int_equal(metric("tickets"), 0);
	assert_int_equal(metric("expired_tickets_total"), 1);
	assert_int_equal(metric("used_bytes"), 0);
	assert_int_equal(node_has(&node, 1), QMLA__V1__CODE__CODE_NOT_FOUND);
	assert_int_equal(node_put(&node, 1), OK);
}

/* Scenario 11, 19: clients are killed again and again; connections, tickets and slots all come
 * back. */
static void clients_killed_again_and_again(void **state)
{
	qmc_time_t limit;
	size_t before, after;
	char byte;
	int out;

	(void)state;
	start_and_connect(NULL, FLAGS(NULL));
	before = node_process_descriptors(&process);
	for (int i = 0; i < 8; i++) {
		pid_t pid = spawn_writer(&out);

		/* The key is still the last one's until its ticket ends: then the writer gives up
		 * by itself. */
		(void)!read(out, &byte, 1);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		close(out);
	}
	limit = qmc_clock_after(15 * QMC_NS_PER_S);
	do {
		qmc_clock_sleep_until(qmc_clock_after(50 * QMC_NS_PER_MS));
		after = node_process_descriptors(&process);
	} while ((after > before || metric("tickets") > 0 || metric("used_bytes") > 0) &&
		 qmc_clock_left(limit) > 0);
	assert_true(after <= before);
	assert_int_equal(metric("tickets"), 0);
	assert_int_equal(metric("used_bytes"), 0);
	assert_int_equal(node_put(&node, 1), OK);
}

static int open_to(uint16_t port)
{
	struct qmc_address address = {"127.0.0.1", port};
	int fd;

	return qmc_tcp_connect(&address, qmc_clock_after(QMC_NS_PER_S), &fd) == QMLA_OK ? fd : -1;
}

/* More connections than descriptors, on every port: nothing crashes, spins or stays broken. */
static void running_out_of_descriptors(void **state)
{
	static int fds[3 * CONNECTIONS];
	uint16_t ports[3];
	double before, used;
	qmc_time_t limit;
	qmla_status_t health;

	(void)state;
	start_and_connect("ulimit -n 96; exec", FLAGS(NULL));
	assert_int_equal(node_put(&node, 1), OK);
	ports[0] = process.grpc;
	ports[1] = process.data;
	ports[2] = process.http;
	for (int i = 0; i < 3 * CONNECTIONS; i++)
		fds[i] = open_to(ports[i % 3]);
	before = node_process_cpu(&process);
	qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_S));
	used = node_process_cpu(&process) - before;
	print_message("%.2f s of processor time in 1 s without descriptors\n", used);
	assert_true(used < 0.2);
	assert_int_equal(node_process_wait(&process, 0), -1);
	assert_int_equal(node_has(&node, 1), OK); /* who was there before is still served */
	for (int i = 0; i < 3 * CONNECTIONS; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
	limit = qmc_clock_after(20 * QMC_NS_PER_S);
	do {
		struct qmp_channel_config config = {.target = process.target};
		struct qmp_channel *channel;

		assert_int_equal(qmp_channel_create(&config, &channel), QMLA_OK);
		health = qmp_health_check(channel, "", qmc_clock_after(2 * QMC_NS_PER_S));
		qmp_channel_destroy(channel);
	} while (health != QMLA_OK && qmc_clock_left(limit) > 0);
	assert_int_equal(health, QMLA_OK);
	assert_int_equal(node_connect(&node, "tcp"), QMLA_OK);
	assert_int_equal(node_put(&node, 2), OK);
	assert_true(metric("blocks") == 2);
}

/* Bytes that are no protocol at all, on every port. */
static void garbage_on_every_port(void **state)
{
	uint16_t ports[3];
	uint8_t noise[4096];
	uint64_t seed = 42;

	(void)state;
	start_and_connect(NULL, FLAGS(NULL));
	ports[0] = process.grpc;
	ports[1] = process.data;
	ports[2] = process.http;
	for (int round = 0; round < 60; round++) {
		int fd = open_to(ports[round % 3]);

		assert_true(fd >= 0);
		for (size_t i = 0; i < sizeof(noise); i++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			noise[i] = (uint8_t)(seed >> 56);
		}
		send(fd, noise, 1 + (size_t)(seed >> 33) % sizeof(noise), MSG_NOSIGNAL);
		close(fd);
	}
	assert_int_equal(node_process_wait(&process, 100), -1);
	assert_int_equal(node_put(&node, 1), OK);
	assert_int_equal(metric("blocks"), 1);
}

int main(int argc, char **argv)
{
#define T(name) cmocka_unit_test_teardown(name, teardown)
	const struct CMUnitTest tests[] = {
		T(a_writer_killed_between_reserve_and_commit),
		T(clients_killed_again_and_again),
		T(running_out_of_descriptors),
		T(garbage_on_every_port),
	};

	self = argv[0];
	if (argc == 3)
		return be_the_writer(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
