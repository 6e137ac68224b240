/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What `qmla bench` measures of the cache. Each case prints JSON lines with the
 * limit beside the figure and returns an exit status: QMW_EXIT_FAILED when a
 * limit is missed or nothing could be measured. Main thread; blocks for seconds.
 */
#ifndef QMW_BENCH_CASES_H
#define QMW_BENCH_CASES_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/cache.h>

#include "client/cli/spawn.h"

struct qmw_bench {
	bool quick;            /**< a quarter of the bytes, one round: for tests */
	const char *transport; /**< NULL: each */
	uint32_t connections;  /**< of the fetch case, 0: the library's default */
};

struct qmt_bench_result;

/** One-sided reads through tcp and shm against a plain socket and memcpy, in large and small
 * blocks. */
int qmw_bench_transport(const struct qmw_bench *bench);

/** Keys a second of Lookups with 1,024 keys. */
int qmw_bench_lookup(const struct qmw_bench *bench);

/**
 * One-sided reads of @p block_bytes through @p transport and their limit, measured by turns.
 * Prints what fails.
 */
qmla_status_t qmw_bench_reads(const struct qmw_bench *bench, const char *transport,
			      uint64_t block_bytes, struct qmt_bench_result *result);

/** Blocks through the whole client, verified; beside it the bare reads of such blocks with their
 * limit. */
int qmw_bench_fetch(const struct qmw_bench *bench);

/** Processor time of a node that nobody uses. */
int qmw_bench_idle(const struct qmw_bench *bench);

/** A node of its own, a client of it, and blocks of random bytes. */
struct qmw_bench_rig {
	struct qmw_child node;
	qmla_client_t *client;
	qmla_key_t *keys;
	uint8_t *memory; /**< [count] blocks to write */
	void **blocks;   /**< [count] */
	size_t count;
	uint64_t block_bytes;
};

/** What a rig is made of. */
struct qmw_bench_plan {
	qmla_layout_t layout;
	size_t count;          /**< blocks */
	const char *pool;      /**< the node's --pool-size */
	const char *transport; /**< NULL: auto */
	uint32_t connections;
};

/** Starts the node, publishes the blocks. Prints what fails. */
qmla_status_t qmw_bench_rig_start(struct qmw_bench_rig *rig, const struct qmw_bench_plan *plan);

/** Ends the node and frees what the rig holds; also one that did not start. */
void qmw_bench_rig_end(struct qmw_bench_rig *rig);

#endif /* QMW_BENCH_CASES_H */
