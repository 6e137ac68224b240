/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "client/cli/bench_cases.h"
#include "client/cli/exit.h"
#include "transport/bench.h"

static int run_one(const struct qmw_bench *bench, const char *name)
{
	struct qmt_bench_config config = {0};
	struct qmt_bench_result result;
	qmla_status_t status;
	bool ok;

	if (bench->quick) {
		config.total_bytes = UINT64_C(1) << 28;
		config.rounds = 1;
	}
	status = qmt_bench_fetch(name, &config, &result);
	if (status != QMLA_OK) {
		fprintf(stderr, "qmla bench: transport %s: %s\n", name, qmla_status_text(status));
		return QMW_EXIT_FAILED;
	}
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
	int code = QMW_EXIT_OK;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!bench->transport || strcmp(bench->transport, names[i]) == 0)
			code = qmw_exit_join(code, run_one(bench, names[i]));
	}
	return code;
}
