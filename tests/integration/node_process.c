/* SPDX-License-Identifier: Apache-2.0 */
#include "node_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/address.h"
#include "common/clock.h"

#define ARGUMENTS 32

extern char **environ;

const char *node_program(void)
{
	return QMLA_BINARY_DIR "/bin/qmla-node";
}

static bool spawn(struct node_process *process, char *const *argv)
{
	posix_spawn_file_actions_t actions;
	int rc;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, process->log,
					 O_WRONLY | O_CREAT | O_APPEND, 0600);
	posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, process->log,
					 O_WRONLY | O_CREAT | O_APPEND, 0600);
	rc = posix_spawn(&process->pid, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	return rc == 0;
}

static bool make_folder(struct node_process *process)
{
	memset(process, 0, sizeof(*process));
	strcpy(process->folder, "/tmp/qmla-node-process-XXXXXX");
	if (!mkdtemp(process->folder))
		return false;
	snprintf(process->log, sizeof(process->log), "%s/log", process->folder);
	snprintf(process->port_file, sizeof(process->port_file), "%s/ports", process->folder);
	return true;
}

bool node_process_spawn(struct node_process *process, const char *prefix, const char *const *flags)
{
	/* Later flags win, so that a test can change any of these. */
	const char *argv[ARGUMENTS] = {NULL,    "--listen",         "127.0.0.1:0", "--pool-size",
				       "16MiB", "--max-identities", "1",           "--port-file"};
	char command[1024];
	size_t n = 8;

	if (!make_folder(process))
		return false;
	argv[0] = node_program();
	argv[n++] = process->port_file;
	argv[n++] = "--shm-dir";
	argv[n++] = process->folder;
	for (; *flags && n < ARGUMENTS - 1; flags++)
		argv[n++] = *flags;
	if (prefix) {
		int used = snprintf(command, sizeof(command), "%s", prefix);

		for (size_t i = 0; i < n && used < (int)sizeof(command); i++)
			used += snprintf(command + used, sizeof(command) - (size_t)used, " '%s'",
					 argv[i]);
		return spawn(process, (char *const[]){(char *)(uintptr_t) "/bin/sh",
						      (char *)(uintptr_t) "-c", command, NULL});
	}
	return spawn(process, (char *const *)(uintptr_t)argv);
}

static void print_log(const struct node_process *process)
{
	char line[512];
	FILE *file = fopen(process->log, "r");

	while (file && fgets(line, sizeof(line), file))
		printf("  | %s", line);
	if (file)
		fclose(file);
}

static bool read_ports(struct node_process *process)
{
	FILE *file = fopen(process->port_file, "r");
	char line[128];

	if (!file)
		return false;
	while (fgets(line, sizeof(line), file)) {
		sscanf(line, "grpc=%hu", &process->grpc);
		sscanf(line, "data=%hu", &process->data);
		sscanf(line, "http=%hu", &process->http);
	}
	fclose(file);
	snprintf(process->target, sizeof(process->target), "127.0.0.1:%u", process->grpc);
	return process->grpc != 0;
}

bool node_process_ready(struct node_process *process)
{
	qmc_time_t deadline = qmc_clock_after(20 * QMC_NS_PER_S);

	while (qmc_clock_left(deadline) > 0) {
		if (read_ports(process))
			return true;
		if (node_process_wait(process, 5) >= 0)
			break;
	}
	printf("the node did not start:\n");
	print_log(process);
	return false;
}

bool node_process_start(struct node_process *process, const char *const *flags)
{
	return node_process_spawn(process, NULL, flags) && node_process_ready(process);
}

int node_process_wait(struct node_process *process, int ms)
{
	qmc_time_t deadline = qmc_clock_after(ms * QMC_NS_PER_MS);
	int status;

	for (;;) {
		if (waitpid(process->pid, &status, WNOHANG) == process->pid) {
			process->pid = 0;
			return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		}
		if (qmc_clock_left(deadline) == 0)
			return -1;
		qmc_clock_sleep_until(qmc_clock_after(5 * QMC_NS_PER_MS));
	}
}

void node_process_stop(struct node_process *process)
{
	char command[160];

	if (process->pid > 0) {
		kill(process->pid, SIGKILL);
		waitpid(process->pid, NULL, 0);
		process->pid = 0;
	}
	snprintf(command, sizeof(command), "rm -rf '%s'", process->folder);
	if (system(command) != 0)
		printf("cannot remove %s\n", process->folder);
}

static bool log_holds(const struct node_process *process, const char *text)
{
	char line[2048];
	bool found = false;
	FILE *file = fopen(process->log, "r");

	while (file && !found && fgets(line, sizeof(line), file))
		found = strstr(line, text) != NULL;
	if (file)
		fclose(file);
	return found;
}

bool node_process_says(struct node_process *process, const char *text)
{
	qmc_time_t deadline = qmc_clock_after(5 * QMC_NS_PER_S);

	while (!log_holds(process, text)) {
		if (qmc_clock_left(deadline) == 0) {
			printf("'%s' is not in the log:\n", text);
			print_log(process);
			return false;
		}
		qmc_clock_sleep_until(qmc_clock_after(5 * QMC_NS_PER_MS));
	}
	return true;
}

int node_process_get(const struct node_process *process, const char *path, char *body, size_t size)
{
	struct qmc_address address = {"127.0.0.1", process->http};
	char request[256];
	size_t used = 0;
	ssize_t n;
	int code = -1;
	int fd;

	body[0] = '\0';
	if (qmc_tcp_connect(&address, qmc_clock_after(5 * QMC_NS_PER_S), &fd) != QMLA_OK)
		return -1;
	if (fcntl(fd, F_SETFL, 0) != 0) { /* blocking from here on */
		close(fd);
		return -1;
	}
	snprintf(request, sizeof(request),
		 "GET %s HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", path);
	if (send(fd, request, strlen(request), MSG_NOSIGNAL) > 0) {
		while (used + 1 < size && (n = recv(fd, body + used, size - 1 - used, 0)) > 0)
			used += (size_t)n;
	}
	body[used] = '\0';
	close(fd);
	if (sscanf(body, "HTTP/1.1 %d", &code) == 1) {
		char *start = strstr(body, "\r\n\r\n");

		if (start)
			memmove(body, start + 4, strlen(start + 4) + 1);
	}
	return code;
}

size_t node_process_descriptors(const struct node_process *process)
{
	char path[64];
	size_t count = 0;
	DIR *folder;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)process->pid);
	folder = opendir(path);
	while (folder && readdir(folder))
		count++;
	if (folder)
		closedir(folder);
	return count;
}

double node_process_cpu(const struct node_process *process)
{
	unsigned long user = 0, system_time = 0;
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)process->pid);
	file = fopen(path, "r");
	if (!file)
		return 0;
	if (fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
		   &system_time) != 2)
		user = system_time = 0;
	fclose(file);
	return (double)(user + system_time) / (double)sysconf(_SC_CLK_TCK);
}
