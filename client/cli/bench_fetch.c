/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/bench_cases.h"
#include "client/cli/exit.h"
#include "common/clock.h"
#include "kernels/block.h"

#define FETCH_TIMEOUT_MS 30000
#define BLOCKS           256

/* Bytes a second of fetches that read everything; 0: one did not. */
static double measure(struct qmw_bench_rig *rig, void *const *into, uint64_t total,
		      qmla_fetch_stats_t *stats)
{
	qmc_time_t begin = qmc_clock_now();
	uint64_t bytes = 0;

	while (bytes < total) {
		size_t prefix = 0;

		if (qmla_client_fetch(rig->client, rig->keys, rig->count, into, FETCH_TIMEOUT_MS,
				      &prefix, NULL, stats) != QMLA_OK ||
		    prefix != rig->count) {
			fprintf(stderr, "qmla bench: fetch got %zu of %zu blocks\n", prefix,
				rig->count);
			return 0;
		}
		bytes += stats->bytes;
	}
	return (double)bytes / ((double)(qmc_clock_now() - begin) / 1e9);
}

static int run_one(const struct qmw_bench *bench, const char *transport)
{
	const struct qmw_bench_plan plan = {
		.layout = {QMLA_FORMAT_C4R4, 27, 512, 64}, /* DeepSeek-V2-Lite */
		.count = BLOCKS,
		.pool = "192MiB",
		.transport = transport,
		.connections = bench->connections,
	};
	const size_t count = BLOCKS;
	uint64_t total = bench->quick ? UINT64_C(1) << 28 : UINT64_C(1) << 30;
	qmla_fetch_stats_t stats = {0};
	struct qmw_bench_rig rig;
	uint8_t *memory;
	void **into;
	double rate = 0;

	if (qmw_bench_rig_start(&rig, &plan) != QMLA_OK)
		return QMW_EXIT_FAILED;
	into = calloc(count, sizeof(*into));
	memory = aligned_alloc(QMK_ALIGN, count * rig.block_bytes);
	if (into && memory) {
		memset(memory, 0, count * rig.block_bytes);
		for (size_t i = 0; i < count; i++)
			into[i] = memory + i * rig.block_bytes;
		(void)measure(&rig, into, 1, &stats);
		rate = measure(&rig, into, total, &stats);
	}
	printf("{\"case\":\"fetch\",\"transport\":\"%s\",\"block_bytes\":%llu,\"blocks\":%zu,"
	       "\"verified_gbytes_per_s\":%.3f,\"lookup_us\":%llu,\"transfer_us\":%llu,"
	       "\"verify_us\":%llu,\"ok\":%s}\n",
	       transport, (unsigned long long)rig.block_bytes, count, rate / 1e9,
	       (unsigned long long)stats.lookup_us, (unsigned long long)stats.transfer_us,
	       (unsigned long long)stats.verify_us, rate > 0 ? "true" : "false");
	fflush(stdout);
	free(memory);
	free(into);
	qmw_bench_rig_end(&rig);
	return rate > 0 ? QMW_EXIT_OK : QMW_EXIT_FAILED;
}

int qmw_bench_fetch(const struct qmw_bench *bench)
{
	static const char *const names[] = {"tcp", "shm"};
	int code = QMW_EXIT_OK;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!bench->transport || strcmp(bench->transport, names[i]) == 0)
			code = qmw_exit_join(code, run_one(bench, names[i]));
	}
	return code;
}
