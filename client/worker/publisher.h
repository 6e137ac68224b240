/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Publishes finished blocks from the pool to the nodes, on a thread of its own,
 * while the model computes later ones. The queue is bounded; a block that finds
 * it full, or that no node takes, is simply not shared, nor are those behind it: never
 * an error of the request. The publisher holds the slot until the block has gone out.
 *
 * Threads: any, all functions. Only qmw_batch_wait and destroy block.
 */
#ifndef QMW_PUBLISHER_H
#define QMW_PUBLISHER_H

#include <stdint.h>

#include <qmla/cache.h>
#include <qmla/status.h>

#include "client/worker/pool.h"
#include "common/clock.h"

struct qmw_publisher;
struct qmw_batch; /**< the blocks of one request: one chain of keys; counted */

struct qmw_publisher_config {
	qmla_client_t *client; /**< outlives the publisher */
	struct qmw_pool *pool;
	const struct qmk_layout *layout;
	qmla_identity_t identity;
	uint32_t max_queued; /**< blocks */
	uint32_t max_call;   /**< blocks published in one call */
	uint32_t timeout_ms; /**< of one call */
};

struct qmw_publisher_stats {
	uint32_t queued;
	uint64_t published; /**< taken by a node */
	uint64_t existing;  /**< a node had them already */
	uint64_t failed;
	uint64_t dropped; /**< the queue was full, or a block before them is missing */
	uint64_t bytes;   /**< of the published ones */
};

qmla_status_t qmw_publisher_create(const struct qmw_publisher_config *config,
				   struct qmw_publisher **publisher);

/** Publishes what is queued until @p deadline, drops the rest, joins, frees. Accepts NULL. */
void qmw_publisher_destroy(struct qmw_publisher *publisher, qmc_time_t deadline);

/**
 * Queues the finished pages in @p slot, which the caller holds, as block @p key, the
 * next one of @p batch's chain. The header is sealed here. Never blocks. A call to the
 * nodes carries blocks of one batch only. QMLA_ERR_RESOURCE_EXHAUSTED: the queue is
 * full, the block is not published. Behind a block that was not published the rest of
 * the batch is refused with the same status: nobody would find it.
 */
qmla_status_t qmw_publisher_add(struct qmw_publisher *publisher, const qmla_key_t *key,
				uint32_t slot, struct qmw_batch *batch);

void qmw_publisher_read_stats(struct qmw_publisher *publisher, struct qmw_publisher_stats *stats);

/** What became of a batch. */
struct qmw_batch_result {
	uint32_t pending;
	uint32_t published;          /**< on a node now, whoever wrote them */
	uint32_t failed;             /**< dropped ones included */
	qmla_status_t first_failure; /**< QMLA_OK: none */
};

qmla_status_t qmw_batch_create(struct qmw_batch **batch);
/** Lets go of it; blocks still queued go out all the same. Accepts NULL. */
void qmw_batch_put(struct qmw_batch *batch);
/** Waits until nothing of it is pending or @p deadline passes. */
void qmw_batch_wait(struct qmw_batch *batch, qmc_time_t deadline, struct qmw_batch_result *result);

#endif /* QMW_PUBLISHER_H */
