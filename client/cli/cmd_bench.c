/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "client/cli/bench_cases.h"
#include "client/cli/cache_commands.h"
#include "client/cli/cmd_bench_attention.h"
#include "client/cli/cmd_bench_model.h"
#include "client/cli/command.h"
#include "common/log.h"

#define PROGRAM "qmla bench"

/* Cases of the cache: all of them run when none is named. */
static const struct bench_case {
	const char *name;
	int (*run)(const struct qmw_bench *bench);
} cases[] = {
	{"transport", qmw_bench_transport},
	{"fetch", qmw_bench_fetch},
	{"lookup", qmw_bench_lookup},
	{"idle", qmw_bench_idle},
};

#define CASE_COUNT (sizeof(cases) / sizeof(cases[0]))

/* Cases with flags of their own; argv[0] is the case's name. */
static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
} programs[] = {
	{"attention", qmw_cmd_bench_attention},
	{"ttft", qmw_cmd_bench_ttft},
	{"rdma", qmw_cmd_bench_rdma},
};

struct flags {
	char *transport;
	uint64_t connections;
	bool quick;
	bool json;
};

static const struct bench_case *find_case(const char *name)
{
	for (size_t i = 0; i < CASE_COUNT; i++) {
		if (strcmp(cases[i].name, name) == 0)
			return &cases[i];
	}
	fprintf(stderr,
		"%s: no case '%s'; there are transport, fetch, lookup, idle, attention, ttft and "
		"rdma\n",
		PROGRAM, name);
	return NULL;
}

static int run_cases(void *user, int count, char **names)
{
	const struct flags *flags = user;
	const struct qmw_bench bench = {.quick = flags->quick,
					.transport = flags->transport,
					.connections = (uint32_t)flags->connections};
	int code = QMW_EXIT_OK;

	if (flags->transport && strcmp(flags->transport, "tcp") != 0 &&
	    strcmp(flags->transport, "shm") != 0) {
		fprintf(stderr, "%s: --transport '%s' is neither tcp nor shm\n", PROGRAM,
			flags->transport);
		return QMW_EXIT_USAGE;
	}
	qmc_log_configure(QMC_LOG_WARN, QMC_LOG_TEXT);
	for (int i = 0; i < count; i++) {
		if (!find_case(names[i]))
			return QMW_EXIT_USAGE;
	}
	for (int i = 0; i < count; i++)
		code = qmw_exit_join(code, find_case(names[i])->run(&bench));
	for (size_t i = 0; i < CASE_COUNT && count == 0; i++)
		code = qmw_exit_join(code, cases[i].run(&bench));
	return code;
}

int qmw_cmd_bench(int argc, char **argv)
{
	struct flags flags = {0};
	const struct qmc_option table[] = {
		{"transport", 0, QMC_OPTION_STRING, &flags.transport, "NAME",
		 "only tcp or only shm, default both", 0, 0, false},
		{"connections", 'c', QMC_OPTION_UNSIGNED, &flags.connections, "N",
		 "data connections of the fetch case, default the library's", 1, 64, false},
		{"quick", 'q', QMC_OPTION_BOOL, &flags.quick, NULL,
		 "less data and time: a look, not a measurement", 0, 0, false},
		{"json", 0, QMC_OPTION_BOOL, &flags.json, NULL, "JSON lines: always so here", 0, 0,
		 false},
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags] [transport] [fetch] [lookup] [idle] | attention [flags] | "
			    "ttft [flags] | rdma [flags]",
		.summary =
			"Measures this machine, each figure as a JSON line with its limit beside "
			"it.\n"
			"  transport  one-sided reads of 1 GiB against a plain socket and memcpy\n"
			"  fetch      blocks through the whole client, every page verified; beside "
			"it bare reads\n"
			"             of such blocks against a plain socket and memcpy\n"
			"  lookup     keys a second of calls with 1,024 keys\n"
			"  idle       processor time of a node that nobody uses\n"
			"  attention  the CUDA kernels on this machine's GPU ('qmla bench "
			"attention "
			"--help')\n"
			"  ttft       time to first token, computed and cached ('qmla bench ttft "
			"--help')\n"
			"  rdma       blocks from a node on another host ('qmla bench rdma "
			"--help')\n"
			"Without a name: all but attention, ttft and rdma. Nodes are started as "
			"needed, on "
			"loopback.",
		.epilogue = "Exit status: 0 every limit kept, 1 one missed, 2 wrong usage.",
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
	};

	for (size_t i = 0; argc > 1 && i < sizeof(programs) / sizeof(programs[0]); i++) {
		if (strcmp(argv[1], programs[i].name) == 0)
			return programs[i].run(argc - 1, argv + 1);
	}
	return qmw_command_run(&options, argc, argv, NULL, QMW_TARGET_NODES, run_cases, &flags);
}
