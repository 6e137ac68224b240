/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Which blocks are being computed by whom, so that requests with the same long
 * prefix that arrive together compute it once: the first one leads, the others
 * wait for it and then find the blocks in the pool or on the nodes.
 *
 * A leader never waits for a follower, so there is no deadlock; it leaves on every
 * way out, so nobody waits for a request that has ended.
 *
 * Threads: any. Only qmw_flights_lead blocks.
 */
#ifndef QMW_FLIGHTS_H
#define QMW_FLIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/cache.h>
#include <qmla/status.h>

#include "common/clock.h"

struct qmw_flights;

/** The blocks that one request leads. Caller's storage, zero: none. */
struct qmw_flight {
	uint64_t id;            /**< 0: it leads nothing */
	const qmla_key_t *keys; /**< the request's, alive until qmw_flights_leave */
	uint32_t count;
};

qmla_status_t qmw_flights_create(struct qmw_flights **flights);
void qmw_flights_destroy(struct qmw_flights *flights); /**< accepts NULL; no flight may be left */

/**
 * When nobody computes keys[0]: true, and @p flight leads all @p count keys that
 * nobody else does. Otherwise waits until that flight is over, @p deadline passes or
 * @p cancelled says so, and returns false: look for the blocks again.
 */
bool qmw_flights_lead(struct qmw_flights *flights, const qmla_key_t *keys, uint32_t count,
		      qmc_time_t deadline, bool (*cancelled)(void *user), void *user,
		      struct qmw_flight *flight);

/** The blocks are there, or never will be. A flight that leads nothing is fine. */
void qmw_flights_leave(struct qmw_flights *flights, struct qmw_flight *flight);

#endif /* QMW_FLIGHTS_H */
