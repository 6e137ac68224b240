/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Gets a decode request's prompt blocks from elsewhere: from the nodes, and where
 * many are missing from the prefill worker by way of the nodes, fetched as they
 * appear. Whatever fails costs a bounded time, is written down as a note, and
 * leaves the rest to be computed here.
 */
#ifndef QMW_COLLECT_H
#define QMW_COLLECT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/worker/flights.h"
#include "client/worker/notes.h"
#include "client/worker/request.h"
#include "client/worker/worker.h"

/** Where the blocks came from, and how long it took. */
struct qmw_collected {
	uint32_t local;           /**< in the worker's own pool */
	uint32_t fetched;         /**< from the nodes, before any prefill was asked for */
	uint32_t prefilled;       /**< from the nodes, computed by the prefill worker meanwhile */
	struct qmw_flight flight; /**< what is left to compute, led by this request */
	uint64_t bytes;           /**< of fetched and prefilled */
	uint64_t fetch_us;        /**< of the first fetch */
	uint64_t prefill_us;
};

/**
 * Collects what it can of the first @p limit blocks of an admitted request; on
 * return the first request->blocks are there, and collected->flight leads the rest:
 * the caller leaves it once they are computed or the request ends. Runs on the request's thread;
 * returns early when @p cancelled says so.
 */
void qmw_collect(struct qmw_worker *worker, struct qmw_request *request, uint32_t limit,
		 bool (*cancelled)(void *user), void *user, struct qmw_collected *collected,
		 struct qmw_notes *notes);

#endif /* QMW_COLLECT_H */
