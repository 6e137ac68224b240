/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/bench_cases.h"
#include "client/cli/exit.h"
#include "common/clock.h"

#define KEYS            1024
#define ROUNDS          5
#define REQUIRED_PER_S  500000.0
#define CALL_TIMEOUT_MS 2000

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Keys a second over @p ns nanoseconds of calls one after the other; 0: one went wrong. */
static double measure(struct qmw_bench_rig *rig, int64_t ns)
{
	qmc_time_t begin = qmc_clock_now();
	uint64_t keys = 0;
	int64_t spent;

	do {
		size_t prefix = 0;

		if (qmla_client_lookup(rig->client, rig->keys, KEYS, CALL_TIMEOUT_MS, &prefix) !=
			    QMLA_OK ||
		    prefix != KEYS) {
			fprintf(stderr, "qmla bench: lookup found %zu of %d keys\n", prefix, KEYS);
			return 0;
		}
		keys += KEYS;
		spent = qmc_clock_now() - begin;
	} while (spent < ns);
	return (double)keys / ((double)spent / 1e9);
}

int qmw_bench_lookup(const struct qmw_bench *bench)
{
	const struct qmw_bench_plan plan = {
		.layout = {QMLA_FORMAT_C4R4, 1, 512, 64}, .count = KEYS, .pool = "64MiB"};
	int64_t ns = bench->quick ? 200 * QMC_NS_PER_MS : QMC_NS_PER_S;
	double rates[ROUNDS];
	struct qmw_bench_rig rig;
	bool ok;

	if (qmw_bench_rig_start(&rig, &plan) != QMLA_OK)
		return QMW_EXIT_FAILED;
	(void)measure(&rig, ns / 4);
	for (size_t i = 0; i < ROUNDS; i++)
		rates[i] = measure(&rig, ns);
	qmw_bench_rig_end(&rig);
	qsort(rates, ROUNDS, sizeof(rates[0]), compare);
	ok = rates[ROUNDS / 2] >= REQUIRED_PER_S;
	printf("{\"case\":\"lookup\",\"keys_per_call\":%d,\"keys_per_s\":%.0f,"
	       "\"us_per_call\":%.0f,\"required_keys_per_s\":%.0f,\"ok\":%s}\n",
	       KEYS, rates[ROUNDS / 2], rates[ROUNDS / 2] > 0 ? 1e6 * KEYS / rates[ROUNDS / 2] : 0,
	       REQUIRED_PER_S, ok ? "true" : "false");
	fflush(stdout);
	return ok ? QMW_EXIT_OK : QMW_EXIT_FAILED;
}
