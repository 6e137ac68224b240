/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What streaming a checkpoint costs: for each decoder layer the time to load it, the time
 * to run sequences through it, and the memory that is resident then. One JSON line a layer.
 *
 *   bench_stream MODEL_DIRECTORY [TOKENS [SEQUENCES]]
 *
 * tests/bench/make_wide.py makes a checkpoint with the widths of a large model.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "client/model/stream.h"
#include "common/clock.h"

static void check(qmla_status_t status, const char *what)
{
	if (!status)
		return;
	fprintf(stderr, "bench_stream: %s: %s\n", what, qmla_status_text(status));
	exit(1);
}

static double seconds_since(qmc_time_t start)
{
	return (double)(qmc_clock_now() - start) / 1e9;
}

/* Processor time of all threads: what a busy machine still measures well. */
static double cpu_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Resident bytes, 0 where /proc does not say. */
static double resident(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long pages = 0;

	if (!file)
		return 0;
	if (fscanf(file, "%*d %ld", &pages) != 1)
		pages = 0;
	fclose(file);
	return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
	uint32_t n = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 512;
	uint32_t sequences = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1;
	struct qmw_stream *stream;
	uint32_t *tokens = calloc(n, sizeof(*tokens)), hidden;
	float *states;

	if (argc < 2 || !n || !sequences || !tokens) {
		fprintf(stderr, "usage: bench_stream MODEL_DIRECTORY [TOKENS [SEQUENCES]]\n");
		return 2;
	}
	check(qmw_stream_open(argv[1], 0, &stream), "open");
	hidden = qmw_stream_config(stream)->hidden;
	states = calloc((size_t)n * hidden, sizeof(*states));
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = i * 31 % qmw_stream_config(stream)->vocab;
	check(states ? qmw_stream_embed(stream, tokens, n, states) : QMLA_ERR_NO_MEMORY, "embed");
	for (uint32_t i = 0; i < qmw_stream_layers(stream); i++) {
		qmc_time_t start = qmc_clock_now();
		double load, run, cpu = cpu_seconds(), load_cpu;

		check(qmw_stream_load(stream, i), "load");
		load = seconds_since(start);
		load_cpu = cpu_seconds() - cpu;
		cpu = cpu_seconds();
		start = qmc_clock_now();
		for (uint32_t s = 0; s < sequences; s++)
			check(qmw_stream_run(stream, states, n, NULL, NULL), "run");
		run = seconds_since(start) / sequences;
		cpu = (cpu_seconds() - cpu) / sequences;
		printf("{\"bench\": \"stream\", \"layer\": %u, \"experts\": %u, \"load_s\": %.2f, "
		       "\"load_cpu_s\": %.2f, \"tokens\": %u, \"run_s\": %.3f, "
		       "\"run_cpu_s\": %.3f, "
		       "\"resident_gib\": %.2f}\n",
		       i,
		       qmw_stream_config(stream)
				       ->moe.sparse[i * qmw_stream_config(stream)->sublayers]
			       ? qmw_stream_config(stream)->moe.experts
			       : 0,
		       load, load_cpu, n, run, cpu, resident() / 1073741824.0);
		fflush(stdout);
	}
	free(states);
	free(tokens);
	qmw_stream_close(stream);
	return 0;
}
