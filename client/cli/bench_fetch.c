/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/bench_cases.h"
#include "client/cli/exit.h"
#include "common/clock.h"
#include "kernels/block.h"
#include "transport/bench.h"

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

/* Fetches what the rig holds until @total bytes have come; 0: it failed. */
static double fetch_verified(struct qmw_bench_rig *rig, uint64_t total, qmla_fetch_stats_t *stats)
{
	void **into = calloc(rig->count, sizeof(*into));
	uint8_t *memory = aligned_alloc(QMK_ALIGN, rig->count * rig->block_bytes);
	double rate = 0;

	if (into && memory) {
		memset(memory, 0, rig->count * rig->block_bytes);
		for (size_t i = 0; i < rig->count; i++)
			into[i] = memory + i * rig->block_bytes;
		(void)measure(rig, into, 1, stats);
		rate = measure(rig, into, total, stats);
	}
	free(memory);
	free(into);
	return rate;
}

static bool print_line(const struct qmw_bench_rig *rig, const struct qmt_bench_result *reads,
		       double rate, const qmla_fetch_stats_t *stats)
{
	bool ok = rate > 0 && reads->ratio >= reads->required;

	printf("{\"case\":\"fetch\",\"transport\":\"%s\",\"block_bytes\":%llu,\"blocks\":%zu,"
	       "\"transfer_gbytes_per_s\":%.3f,\"limit\":\"%s\",\"limit_gbytes_per_s\":%.3f,"
	       "\"ratio\":%.3f,\"required_ratio\":%.2f,\"verified_gbytes_per_s\":%.3f,"
	       "\"lookup_us\":%llu,\"transfer_us\":%llu,\"verify_us\":%llu,\"ok\":%s}\n",
	       reads->transport, (unsigned long long)rig->block_bytes, rig->count,
	       reads->gbytes_per_s, reads->limit, reads->limit_gbytes_per_s, reads->ratio,
	       reads->required, rate / 1e9, (unsigned long long)stats->lookup_us,
	       (unsigned long long)stats->transfer_us, (unsigned long long)stats->verify_us,
	       ok ? "true" : "false");
	fflush(stdout);
	return ok;
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
	uint64_t total = bench->quick ? UINT64_C(1) << 28 : UINT64_C(1) << 30;
	qmla_fetch_stats_t stats = {0};
	struct qmt_bench_result reads;
	struct qmw_bench_rig rig;
	double rate;
	bool ok = false;

	if (qmw_bench_rig_start(&rig, &plan) != QMLA_OK)
		return QMW_EXIT_FAILED;
	rate = fetch_verified(&rig, total, &stats);
	/* The same blocks without checksums, beside what the machine could do with them just now.
	 */
	if (qmw_bench_reads(bench, transport, rig.block_bytes, &reads) == QMLA_OK)
		ok = print_line(&rig, &reads, rate, &stats);
	qmw_bench_rig_end(&rig);
	return ok ? QMW_EXIT_OK : QMW_EXIT_FAILED;
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
