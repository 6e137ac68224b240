/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cmd_bench_attention.h"

#include <stdio.h>
#include <string.h>

#include "client/cli/command.h"
#include "kernels/cuda/bench.h"

#define PROGRAM "qmla bench attention"

struct flags {
	uint64_t heads;
	bool json;
};

#ifdef QMW_HAVE_CUDA
static const char *const parts[] = {"pages", "append", "attend"};

static bool named(const char *part, int count, char **names)
{
	for (int i = 0; i < count; i++) {
		if (strcmp(names[i], part) == 0)
			return true;
	}
	return count == 0;
}

static int measure(const struct flags *flags, int count, char **names)
{
	if (!qmk_cuda_ops()) {
		fprintf(stderr,
			"%s: no usable NVIDIA GPU: it takes a driver and a card of compute "
			"capability 8.0 or later\n",
			PROGRAM);
		return QMW_EXIT_FAILED;
	}
	if (named(parts[0], count, names))
		qmk_bench_pages();
	if (named(parts[1], count, names))
		qmk_bench_append();
	if (named(parts[2], count, names))
		qmk_bench_attend((uint32_t)flags->heads);
	return QMW_EXIT_OK;
}
#else
static int measure(const struct flags *flags, int count, char **names)
{
	(void)flags;
	(void)count;
	(void)names;
	fprintf(stderr,
		"%s: this qmla was built without CUDA kernels; build it where nvcc is found, with "
		"-DQMLA_CUDA=ON\n",
		PROGRAM);
	return QMW_EXIT_FAILED;
}
#endif

static int run(void *user, int count, char **names)
{
	for (int i = 0; i < count; i++) {
		if (strcmp(names[i], "pages") != 0 && strcmp(names[i], "append") != 0 &&
		    strcmp(names[i], "attend") != 0) {
			fprintf(stderr, "%s: no part '%s'; there are pages, append and attend\n",
				PROGRAM, names[i]);
			return QMW_EXIT_USAGE;
		}
	}
	return measure(user, count, names);
}

int qmw_cmd_bench_attention(int argc, char **argv)
{
	struct flags flags = {0};
	const struct qmc_option table[] = {
		{"heads", 0, QMC_OPTION_UNSIGNED, &flags.heads, "N",
		 "only the attend cases of N heads: 16, 32, 64 or 128", 1, 128, false},
		{"json", 0, QMC_OPTION_BOOL, &flags.json, NULL, "JSON lines: always so here", 0, 0,
		 false},
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags] [pages] [append] [attend]",
		.summary = "Measures the CUDA kernels on this machine's first GPU; a JSON line a "
			   "case.\n"
			   "  pages   written, read and checked, beside a plain copy\n"
			   "  append  decode tokens of 128 requests\n"
			   "  attend  attention over packed pages, whole calls, beside what "
			   "FlashMLA's "
			   "BF16\n"
			   "          decode took on an H200\n"
			   "Without a name: all. Takes 4 GB of the GPU's memory and half a minute.",
		.epilogue = "Exit status: 0 measured, 1 no usable GPU or no CUDA in this build, 2 "
			    "wrong usage.",
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
	};

	return qmw_command_run(&options, argc, argv, NULL, QMW_TARGET_NODES, run, &flags);
}
