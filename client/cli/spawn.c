/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "proto/rpc_client.h"

#define SERVE_NS   (60 * QMC_NS_PER_S)
#define END_NS     (10 * QMC_NS_PER_S)
#define FOLDER_MAX 4096

static qmla_status_t own_folder(char folder[FOLDER_MAX])
{
	ssize_t length = readlink("/proc/self/exe", folder, FOLDER_MAX - 1);
	char *slash;

	if (length <= 0)
		return QMLA_ERR_NOT_FOUND;
	folder[length] = '\0';
	slash = strrchr(folder, '/');
	if (slash)
		*slash = '\0';
	return QMLA_OK;
}

/*
 * In the child, on the parent's stack: system calls only. vfork, because gRPC's
 * threads may be running: its fork handlers must not.
 */
static void child_run(const char *path, char *const *argv, const char *log, pid_t parent)
{
	int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	int nothing = open("/dev/null", O_RDONLY);

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(127);
	dup2(nothing, 0);
	dup2(fd, 1);
	dup2(fd, 2);
	execv(path, argv);
	_exit(127);
}

static bool running(struct qmw_child *child)
{
	if (child->pid > 0 && waitpid(child->pid, NULL, WNOHANG) == child->pid)
		child->pid = 0;
	return child->pid > 0;
}

static bool read_port(const char *path, struct qmw_child *child)
{
	FILE *file = fopen(path, "r");
	char text[64] = "";
	const char *colon;

	if (!file)
		return false;
	if (!fgets(text, sizeof(text), file))
		text[0] = '\0';
	fclose(file);
	colon = strrchr(text, ':');
	snprintf(child->address, sizeof(child->address), "127.0.0.1:%d",
		 atoi(colon ? colon + 1 : text));
	return text[0] != '\0';
}

static bool serves(const char *address)
{
	struct qmp_channel_config config = {.target = address};
	struct qmp_channel *channel;
	bool healthy;

	if (qmp_channel_create(&config, &channel) != QMLA_OK)
		return false;
	healthy = qmp_health_check(channel, "", qmc_clock_after(QMC_NS_PER_S)) == QMLA_OK;
	qmp_channel_destroy(channel);
	return healthy;
}

static qmla_status_t await_serving(struct qmw_child *child, const char *port_file)
{
	qmc_time_t deadline = qmc_clock_after(SERVE_NS);

	while (running(child) && qmc_clock_left(deadline) > 0) {
		if (read_port(port_file, child) && serves(child->address))
			return QMLA_OK;
		qmc_clock_sleep_until(qmc_clock_after(20 * QMC_NS_PER_MS));
	}
	return QMLA_ERR_UNAVAILABLE;
}

static void print_log(const char *path)
{
	FILE *file = fopen(path, "r");
	char line[1024];

	while (file && fgets(line, sizeof(line), file))
		fputs(line, stderr);
	if (file)
		fclose(file);
}

qmla_status_t qmw_spawn(const char *program, const char *const *arguments, struct qmw_child *child)
{
	char folder[FOLDER_MAX], path[FOLDER_MAX + 64], log[128], port_file[128];
	const char *argv[QMW_SPAWN_ARGUMENTS] = {program};
	pid_t parent = getpid();
	size_t n = 1;
	qmla_status_t status = own_folder(folder);

	memset(child, 0, sizeof(*child));
	snprintf(path, sizeof(path), "%s/%s", folder, program);
	if (status != QMLA_OK || access(path, X_OK) != 0) {
		fprintf(stderr, "qmla: %s is not there\n", path);
		return QMLA_ERR_NOT_FOUND;
	}
	snprintf(child->folder, sizeof(child->folder), "/tmp/qmla-bench-XXXXXX");
	if (!mkdtemp(child->folder))
		return QMLA_ERR_IO;
	snprintf(log, sizeof(log), "%s/log", child->folder);
	snprintf(port_file, sizeof(port_file), "%s/port", child->folder);
	while (*arguments && n < QMW_SPAWN_ARGUMENTS - 5)
		argv[n++] = *arguments++;
	argv[n++] = "--listen";
	argv[n++] = "127.0.0.1:0";
	argv[n++] = "--port-file";
	argv[n] = port_file;
	child->pid = vfork();
	if (child->pid == 0)
		child_run(path, (char *const *)(uintptr_t)argv, log, parent);
	status = child->pid > 0 ? await_serving(child, port_file) : QMLA_ERR_RESOURCE_EXHAUSTED;
	if (status != QMLA_OK) {
		print_log(log);
		qmw_spawn_end(child);
	}
	return status;
}

void qmw_spawn_end(struct qmw_child *child)
{
	qmc_time_t deadline = qmc_clock_after(END_NS);
	char path[128];

	if (child->pid > 0)
		kill(child->pid, SIGTERM);
	while (running(child)) {
		if (qmc_clock_left(deadline) == 0)
			kill(child->pid, SIGKILL);
		qmc_clock_sleep_until(qmc_clock_after(10 * QMC_NS_PER_MS));
	}
	if (!child->folder[0])
		return;
	snprintf(path, sizeof(path), "%s/log", child->folder);
	unlink(path);
	snprintf(path, sizeof(path), "%s/port", child->folder);
	unlink(path);
	rmdir(child->folder);
	child->folder[0] = '\0';
}
