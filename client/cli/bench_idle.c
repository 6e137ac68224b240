/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/bench_cases.h"
#include "client/cli/exit.h"
#include "common/clock.h"

#define REQUIRED_PERCENT 1.0

/* Processor time that a process has used, in seconds; negative: not known. */
static double processor_seconds(pid_t pid)
{
	unsigned long long user, system;
	char path[64], text[1024];
	const char *after;
	size_t got;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return -1;
	got = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[got] = '\0';
	after = strrchr(text, ')'); /* the name may hold anything */
	if (!after || sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu",
			     &user, &system) != 2)
		return -1;
	return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* A node with blocks, a connected client, and nobody asking for anything. */
int qmw_bench_idle(const struct qmw_bench *bench)
{
	const struct qmw_bench_plan plan = {
		.layout = {QMLA_FORMAT_C4R4, 1, 512, 64}, .count = 256, .pool = "64MiB"};
	int64_t ns = (bench->quick ? 2 : 10) * QMC_NS_PER_S;
	struct qmw_bench_rig rig;
	double before, after, percent;
	bool ok;

	if (qmw_bench_rig_start(&rig, &plan) != QMLA_OK)
		return QMW_EXIT_FAILED;
	qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_S));
	before = processor_seconds(rig.node.pid);
	qmc_clock_sleep_until(qmc_clock_after(ns));
	after = processor_seconds(rig.node.pid);
	qmw_bench_rig_end(&rig);
	percent = 100 * (after - before) / ((double)ns / 1e9);
	ok = before >= 0 && after >= before && percent < REQUIRED_PERCENT;
	printf("{\"case\":\"idle\",\"core_percent\":%.2f,\"required_below_percent\":%.2f,"
	       "\"ok\":%s}\n",
	       percent, REQUIRED_PERCENT, ok ? "true" : "false");
	fflush(stdout);
	return ok ? QMW_EXIT_OK : QMW_EXIT_FAILED;
}
