/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * One step of continuous batching: decides how many tokens of each running
 * request go in, runs the forward call, samples, hands out finished blocks.
 * One thread at a time (the model thread).
 */
#ifndef QMW_STEP_H
#define QMW_STEP_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/model.h"
#include "client/worker/pool.h"
#include "client/worker/request.h"

struct qmw_step;

struct qmw_step_config {
	const struct qmw_model *model;
	struct qmw_pool *pool;
	uint32_t max_batch;
	uint32_t chunk;
	uint32_t (*block_done)(void *user, struct qmw_request *request, uint32_t block,
			       uint32_t slot); /**< as in the scheduler's configuration */
	void *user;
};

/** What became of one request in a step. */
struct qmw_step_outcome {
	enum qmw_finish finish; /**< NONE: it goes on */
	qmla_status_t status;
};

struct qmw_step_result {
	const struct qmw_step_outcome
		*outcomes; /**< one a request; the step's, until the next run */
	uint32_t requests; /**< that had tokens in it */
	uint32_t generated, prefilled, blocks;
};

qmla_status_t qmw_step_create(const struct qmw_step_config *config, struct qmw_step **step);
void qmw_step_destroy(struct qmw_step *step); /**< accepts NULL */

/**
 * Runs one step over @p requests (1 … max_batch, PREFILLING or DECODING). Should
 * the joint forward call fail, each request is tried alone, so that one request
 * at fault does not end the others.
 */
void qmw_step_run(struct qmw_step *step, struct qmw_request *const *requests, uint32_t count,
		  struct qmw_step_result *result);

#endif /* QMW_STEP_H */
