/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Continuous batching on one model thread. Every step runs one token of each
 * request that decodes and a chunk of prompt shared among those that still
 * prefill, in one forward call; requests join and leave between steps.
 *
 * Threads: the functions here may be called from any; block_done is called on the
 * model thread.
 */
#ifndef QMW_SCHEDULER_H
#define QMW_SCHEDULER_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/model.h"
#include "client/worker/pool.h"
#include "client/worker/request.h"

struct qmw_scheduler;

struct qmw_scheduler_config {
	const struct qmw_model *model; /**< outlives the scheduler */
	struct qmw_pool *pool;
	uint32_t max_batch;   /**< requests that run at a time, >= 1 */
	uint32_t chunk;       /**< prompt tokens of one step, over all requests, >= 1 */
	uint32_t max_waiting; /**< requests in the queue; more are refused */
	/**
	 * Block @p block of @p request is complete in @p slot. Returns the slot to go
	 * on with (qmw_pool_bind). Must not block. NULL: blocks stay private.
	 */
	uint32_t (*block_done)(void *user, struct qmw_request *request, uint32_t block,
			       uint32_t slot);
	void *user;
};

struct qmw_scheduler_stats {
	uint32_t active; /**< running */
	uint32_t waiting;
	uint64_t requests; /**< taken so far */
	uint64_t steps;
	uint64_t tokens_generated;
	uint64_t tokens_prefilled;
	uint64_t blocks_computed;
	uint32_t largest_batch; /**< most requests in one step so far */
};

/** Makes the model thread's context and starts the thread. */
qmla_status_t qmw_scheduler_create(const struct qmw_scheduler_config *config,
				   struct qmw_scheduler **scheduler);

/** Ends what still runs (cancelled), joins the thread, frees. Accepts NULL. */
void qmw_scheduler_destroy(struct qmw_scheduler *scheduler);

/**
 * Queues @p request, whose sequence is made and whose grant covers what it still
 * needs. It ends in DONE, always. QMLA_ERR_RESOURCE_EXHAUSTED: the queue is full;
 * QMLA_ERR_DRAINING: stopping; QMLA_ERR_INVALID_ARGUMENT: every token of it is
 * computed already. Then the request is still the caller's.
 */
qmla_status_t qmw_scheduler_submit(struct qmw_scheduler *scheduler, struct qmw_request *request);

void qmw_scheduler_read_stats(struct qmw_scheduler *scheduler, struct qmw_scheduler_stats *stats);

#endif /* QMW_SCHEDULER_H */
