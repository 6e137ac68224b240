/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A few threads that run one function over a range of indices, together with
 * the caller. Which thread runs which index is not fixed; results must not
 * depend on it.
 */
#ifndef QMW_TEAM_H
#define QMW_TEAM_H

#include <stdint.h>

#include <qmla/status.h>

struct qmw_team;

/** @p thread: 0 … threads-1, for scratch of its own. */
typedef void qmw_team_function(void *argument, uint32_t index, uint32_t thread);

/** Processors this process may run on, 1 … 64. */
uint32_t qmw_team_processors(void);

/** Starts @p threads - 1 helper threads, signals blocked. QMLA_ERR_NO_MEMORY,
 * QMLA_ERR_RESOURCE_EXHAUSTED. */
qmla_status_t qmw_team_create(uint32_t threads, struct qmw_team **team);
void qmw_team_destroy(struct qmw_team *team); /**< joins; accepts NULL */

/** Threads that run a job, the caller's among them. */
uint32_t qmw_team_threads(const struct qmw_team *team);

/** Calls @p function for 0 … count-1, lowest first, and returns when all are done. One caller at a
 * time. */
void qmw_team_run(struct qmw_team *team, uint32_t count, qmw_team_function *function,
		  void *argument);

#endif /* QMW_TEAM_H */
