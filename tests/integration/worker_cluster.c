/* SPDX-License-Identifier: Apache-2.0 */
#include "worker_cluster.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "proto/rpc_client.h"

#define START_NS  (30 * QMC_NS_PER_S)
#define ARGUMENTS 48

extern char **environ;

bool cluster_open(struct cluster *cluster)
{
	static const char *const programs[] = {"qmla-node", "qmla-worker"};
	char path[512];

	memset(cluster, 0, sizeof(*cluster));
	for (size_t i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/bin/%s", QMLA_BINARY_DIR, programs[i]);
		if (access(path, X_OK) != 0) {
			printf("skipped: %s is not built\n", path);
			return false;
		}
	}
	snprintf(cluster->folder, sizeof(cluster->folder), "/tmp/qmla-test-XXXXXX");
	return mkdtemp(cluster->folder) != NULL;
}

static void print_log(const struct process *process)
{
	FILE *file = fopen(process->log, "r");
	char line[1024];

	printf("--- %s (%s)\n", process->name, process->log);
	while (file && fgets(line, sizeof(line), file))
		fputs(line, stdout);
	if (file)
		fclose(file);
}

static void remove_folder(const char *folder)
{
	DIR *directory = opendir(folder);
	struct dirent *entry;
	char path[1024];

	while (directory && (entry = readdir(directory))) {
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		unlink(path);
	}
	if (directory)
		closedir(directory);
	rmdir(folder);
}

void cluster_close(struct cluster *cluster, bool failed)
{
	for (uint32_t i = 0; i < cluster->count; i++)
		process_kill(&cluster->processes[i]);
	for (uint32_t i = 0; failed && i < cluster->count; i++)
		print_log(&cluster->processes[i]);
	remove_folder(cluster->folder);
	cluster->count = 0;
}

static bool spawn(struct process *process, const char *path, const char **argv)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none;
	int rc;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 1, process->log, O_WRONLY | O_CREAT | O_APPEND,
					 0600);
	posix_spawn_file_actions_adddup2(&actions, 1, 2);
	posix_spawnattr_init(&attr);
	sigemptyset(&none);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
	rc = posix_spawn(&process->pid, path, &actions, &attr, (char *const *)(uintptr_t)argv,
			 environ);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attr);
	if (rc != 0)
		process->pid = 0;
	return rc == 0;
}

static bool ended(struct process *process)
{
	int status;

	if (waitpid(process->pid, &status, WNOHANG) != process->pid)
		return false;
	process->pid = 0;
	return true;
}

static bool await_port(struct process *process, const char *listen, qmc_time_t deadline)
{
	const char *host = listen && listen[0] == '[' ? "[::1]" : "127.0.0.1";

	while (qmc_clock_left(deadline) > 0 && !ended(process)) {
		FILE *file = fopen(process->port_file, "r");
		char text[64] = "";

		if (file && fgets(text, sizeof(text), file)) {
			const char *colon = strrchr(text, ':');

			fclose(file);
			snprintf(process->address, sizeof(process->address), "%s:%d", host,
				 atoi(colon ? colon + 1 : text));
			return true;
		}
		if (file)
			fclose(file);
		qmc_clock_sleep_until(qmc_clock_after(5 * QMC_NS_PER_MS));
	}
	return false;
}

static bool await_health(struct process *process, const struct qmp_tls *tls, qmc_time_t deadline)
{
	struct qmp_channel_config config = {.target = process->address, .tls = tls};
	struct qmp_channel *channel;
	bool healthy = false;

	if (qmp_channel_create(&config, &channel) != QMLA_OK)
		return false;
	while (!healthy && qmc_clock_left(deadline) > 0 && !ended(process)) {
		healthy = qmp_health_check(channel, "", qmc_clock_after(QMC_NS_PER_S)) == QMLA_OK;
		if (!healthy)
			qmc_clock_sleep_until(qmc_clock_after(10 * QMC_NS_PER_MS));
	}
	qmp_channel_destroy(channel);
	return healthy;
}

struct process *cluster_spawn(struct cluster *cluster, const char *name, const char *program,
			      const char *const *arguments)
{
	struct process *process = &cluster->processes[cluster->count];
	char path[512], log[512];
	const char *argv[ARGUMENTS] = {path};
	size_t n = 1;

	if (cluster->count == CLUSTER_PROCESSES)
		return NULL;
	memset(process, 0, sizeof(*process));
	snprintf(process->name, sizeof(process->name), "%s", name);
	snprintf(log, sizeof(log), "%s/%u-%s.log", cluster->folder, cluster->count, name);
	memcpy(process->log, log, sizeof(log));
	snprintf(path, sizeof(path), "%s/bin/%s", QMLA_BINARY_DIR, program);
	while (*arguments && n < ARGUMENTS - 1)
		argv[n++] = *arguments++;
	if (!spawn(process, path, argv))
		return NULL;
	cluster->count++;
	return process;
}

struct process *cluster_start(struct cluster *cluster, const char *name, const char *listen,
			      const char *program, const char *const *arguments)
{
	qmc_time_t deadline = qmc_clock_after(START_NS);
	char port_file[512];
	const char *argv[ARGUMENTS] = {NULL};
	struct process *process;
	size_t n = 0;

	snprintf(port_file, sizeof(port_file), "%s/%u-%s.port", cluster->folder, cluster->count,
		 name);
	while (*arguments && n < ARGUMENTS - 5)
		argv[n++] = *arguments++;
	argv[n++] = "--listen";
	argv[n++] = listen ? listen : "127.0.0.1:0";
	argv[n++] = "--port-file";
	argv[n++] = port_file;
	process = cluster_spawn(cluster, name, program, argv);
	if (!process)
		return NULL;
	memcpy(process->port_file, port_file, sizeof(port_file));
	if (await_port(process, listen, deadline) && await_health(process, cluster->tls, deadline))
		return process;
	printf("%s did not start\n", name);
	print_log(process);
	return NULL;
}

struct process *cluster_node(struct cluster *cluster, const char *name, const char *pool_size)
{
	const char *arguments[] = {"--pool-size", pool_size, NULL};

	return cluster_start(cluster, name, NULL, "qmla-node", arguments);
}

struct process *cluster_worker(struct cluster *cluster, const char *role, const char *nodes,
			       const char *prefill, const char *const *more)
{
	const char *arguments[ARGUMENTS] = {role, "--model", QMLA_TEST_DATA "/mla-s", "--log-level",
					    "debug"};
	size_t n = 5;

	if (nodes) {
		arguments[n++] = "--nodes";
		arguments[n++] = nodes;
	}
	if (prefill) {
		arguments[n++] = "--prefill";
		arguments[n++] = prefill;
	}
	while (more && *more && n < ARGUMENTS - 1)
		arguments[n++] = *more++;
	return cluster_start(cluster, role, NULL, "qmla-worker", arguments);
}

void process_signal(const struct process *process, int number)
{
	if (process->pid > 0)
		kill(process->pid, number);
}

void process_kill(struct process *process)
{
	if (process->pid <= 0)
		return;
	kill(process->pid, SIGKILL);
	while (waitpid(process->pid, NULL, 0) < 0 && errno == EINTR)
		continue;
	process->pid = 0;
}

int process_stop(struct process *process)
{
	qmc_time_t deadline = qmc_clock_after(60 * QMC_NS_PER_S);
	int status;

	if (process->pid <= 0)
		return -1;
	kill(process->pid, SIGTERM);
	while (waitpid(process->pid, &status, WNOHANG) != process->pid) {
		if (qmc_clock_left(deadline) == 0) {
			process_kill(process);
			return -1;
		}
		qmc_clock_sleep_until(qmc_clock_after(5 * QMC_NS_PER_MS));
	}
	process->pid = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int process_wait(struct process *process, int ms)
{
	qmc_time_t deadline = qmc_clock_after(ms * QMC_NS_PER_MS);
	int status;

	while (waitpid(process->pid, &status, WNOHANG) != process->pid) {
		if (qmc_clock_left(deadline) == 0)
			return -1;
		qmc_clock_sleep_until(qmc_clock_after(5 * QMC_NS_PER_MS));
	}
	process->pid = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool process_says(const struct process *process, const char *text)
{
	qmc_time_t deadline = qmc_clock_after(5 * QMC_NS_PER_S);

	while (!process_logged(process, text)) {
		if (qmc_clock_left(deadline) == 0) {
			printf("'%s' is not in the log\n", text);
			print_log(process);
			return false;
		}
		qmc_clock_sleep_until(qmc_clock_after(5 * QMC_NS_PER_MS));
	}
	return true;
}

bool process_logged(const struct process *process, const char *text)
{
	FILE *file = fopen(process->log, "r");
	char line[2048];
	bool found = false;

	while (file && !found && fgets(line, sizeof(line), file))
		found = strstr(line, text) != NULL;
	if (file)
		fclose(file);
	return found;
}
