/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fetches 1 GiB in blocks through each back end and prints one JSON line a case:
 * our rate, the rate of a plain copy of the same bytes in the same run, and
 * whether the ratio is what it should be. Exit status 1 when one is not.
 * With an argument: the bytes to move in a measurement ("64MiB").
 */
#include <inttypes.h>
#include <stdio.h>

#include "common/options.h"
#include "transport/bench.h"

int main(int argc, char **argv)
{
	static const char *const transports[] = {"tcp", "shm"};
	static const uint64_t blocks[] = {57344, 1258291};
	struct qmt_bench_config config = {0};
	int failed = 0;

	if (argc > 1 && qmc_parse_bytes(argv[1], &config.total_bytes) != QMLA_OK) {
		fprintf(stderr, "usage: %s [BYTES]   (such as 1GiB)\n", argv[0]);
		return 2;
	}
	for (size_t i = 0; i < 4; i++) {
		struct qmt_bench_result result;

		config.block_bytes = blocks[i % 2];
		if (qmt_bench_fetch(transports[i / 2], &config, &result) != QMLA_OK)
			return 1;
		failed |= result.ratio < result.required;
		printf("{\"case\":\"%s fetch %" PRIu64 " B blocks vs %s\",\"gbytes_per_s\":%.3f,"
		       "\"limit_gbytes_per_s\":%.3f,\"ratio\":%.3f,\"required\":%.2f}\n",
		       result.transport, result.block_bytes, result.limit, result.gbytes_per_s,
		       result.limit_gbytes_per_s, result.ratio, result.required);
		fflush(stdout);
	}
	return failed;
}
