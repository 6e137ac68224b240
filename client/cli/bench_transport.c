/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "client/cli/bench_cases.h"
#include "client/cli/exit.h"
#include "transport/bench.h"

/* About a block of 61 layers, and one of three. */
static const uint64_t block_sizes[] = {1258291, 57344};

qmla_status_t qmw_bench_reads(const struct qmw_bench *bench, const char *transport,
			      uint64_t block_bytes, struct qmt_bench_result *result)
{
	const struct qmt_bench_config config = {
		.total_bytes = bench->quick ? UINT64_C(1) << 28 : UINT64_C(1) << 30,
		.block_bytes = block_bytes,
		.depth = 64, /* as many as the client posts at most */
		.rounds = bench->quick ? 1 : 3,
	};
	qmla_status_t status = qmt_bench_fetch(transport, &config, result);

	if (status != QMLA_OK)
		fprintf(stderr, "qmla bench: transport %s: %s\n", transport,
			qmla_status_text(status));
	return status;
}

static int run_one(const struct qmw_bench *bench, const char *name, uint64_t block_bytes)
{
	struct qmt_bench_result result;
	bool ok;

	if (qmw_bench_reads(bench, name, block_bytes, &result) != QMLA_OK)
		return QMW_EXIT_FAILED;
	ok = result.ratio >= result.required;
	printf("{\"case\":\"transport\",\"transport\":\"%s\",\"block_bytes\":%llu,"
	       "\"gbytes_per_s\":%.3f,\"limit\":\"%s\",\"limit_gbytes_per_s\":%.3f,"
	       "\"ratio\":%.3f,\"required_ratio\":%.2f,\"ok\":%s}\n",
	       name, (unsigned long long)result.block_bytes, result.gbytes_per_s, result.limit,
	       result.limit_gbytes_per_s, result.ratio, result.required, ok ? "true" : "false");
	fflush(stdout);
	return ok ? QMW_EXIT_OK : QMW_EXIT_FAILED;
}

int qmw_bench_transport(const struct qmw_bench *bench)
{
	static const char *const names[] = {"tcp", "shm"};
	const size_t sizes = sizeof(block_sizes) / sizeof(block_sizes[0]);
	int code = QMW_EXIT_OK;

	for (size_t i = 0; i < 2 * sizes; i++) {
		const char *name = names[i / sizes];

		if (!bench->transport || strcmp(bench->transport, name) == 0)
			code = qmw_exit_join(code, run_one(bench, name, block_sizes[i % sizes]));
	}
	return code;
}
