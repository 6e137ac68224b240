/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * How fast the back ends move blocks, beside the best that the same bytes could
 * do on the same machine in the same minute: a plain socket copy for tcp, memcpy
 * for shm. A library of its own (qmt_bench), for the benchmark program and for
 * `qmla bench`. Blocks for seconds; one thread at a time.
 */
#ifndef QMT_BENCH_H
#define QMT_BENCH_H

#include "transport/transport.h"

struct qmt_bench_config {
	uint64_t total_bytes; /**< moved in one measurement; 0: 1 GiB */
	uint64_t block_bytes; /**< of one read; 0: 1.2 MiB */
	uint32_t depth;       /**< reads posted at any time, at most 256; 0: 64 */
	uint32_t rounds;      /**< measurement and limit by turns, medians count; 0: 3 */
};

struct qmt_bench_result {
	const char *transport; /**< "tcp" */
	const char *limit;     /**< "plain socket" */
	uint64_t block_bytes;
	double gbytes_per_s;       /**< 10^9 bytes a second */
	double limit_gbytes_per_s; /**< of the plain copy */
	double ratio;              /**< median of the rounds' ratios */
	double required;           /**< what the ratio should be at least */
};

/**
 * Fetches blocks from a server of back end @p name ("tcp", "shm") in this process
 * through loopback, and measures its limit. Every block that arrives is compared
 * with its source once, in an untimed first pass. Logs what fails.
 * QMLA_ERR_UNSUPPORTED: a back end that connects over the control plane.
 */
qmla_status_t qmt_bench_fetch(const char *name, const struct qmt_bench_config *config,
			      struct qmt_bench_result *result);

#endif /* QMT_BENCH_H */
