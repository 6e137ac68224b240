/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The part of a request's prompt that need not be computed: blocks in the
 * worker's own pool, then blocks fetched from the nodes into it. Runs on the
 * request's own thread, so that the model thread never waits for the network.
 */
#ifndef QMW_PREFIX_H
#define QMW_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/worker/flights.h"
#include "client/worker/request.h"
#include "client/worker/worker.h"

/** What qmw_prefix_fetch did. */
struct qmw_prefix_result {
	uint32_t fetched; /**< blocks */
	uint64_t bytes;
	uint64_t us;
	uint32_t corrupt;  /**< blocks that were thrown away */
	qmla_status_t end; /**< why it stopped short: QMLA_ERR_NOT_FOUND (a miss) or a failure;
			      QMLA_OK: all are here */
};

/**
 * Admits @p request to the pool: holds what is there of its first @p limit
 * blocks, grants the rest. Blocks while the pool is full, until @p deadline or
 * until the caller's @p cancelled says so. Statuses as qmw_pool_admit.
 */
qmla_status_t qmw_prefix_admit(struct qmw_worker *worker, struct qmw_request *request,
			       uint32_t limit, qmc_time_t deadline, bool (*cancelled)(void *user),
			       void *user);

/**
 * Fetches the longest run of blocks request->blocks … @p limit-1 that the nodes
 * hold and appends it to the request's slots. Never fails: a node that does is
 * told in @p result. Bounded by the worker's fetch timeout.
 */
void qmw_prefix_fetch(struct qmw_worker *worker, struct qmw_request *request, uint32_t limit,
		      struct qmw_prefix_result *result);

/**
 * Before blocks request->blocks … @p limit-1 are computed: does another request of
 * this worker compute them already? If not, @p flight leads them from now on (the
 * caller leaves it when they are there, or the request ends). If so, waits for that
 * request, within @p deadline, and takes what came; then asks again. @p found
 * counts blocks that were taken from the pool so; blocks that came by way of the
 * nodes are added to @p result.
 */
void qmw_prefix_share(struct qmw_worker *worker, struct qmw_request *request, uint32_t limit,
		      qmc_time_t deadline, bool (*cancelled)(void *user), void *user,
		      struct qmw_flight *flight, uint32_t *found, struct qmw_prefix_result *result);

/** Makes the request's sequence and hands the blocks it holds over to it. */
qmla_status_t qmw_prefix_adopt(struct qmw_worker *worker, struct qmw_request *request);

#endif /* QMW_PREFIX_H */
