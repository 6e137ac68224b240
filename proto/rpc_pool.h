/* SPDX-License-Identifier: Apache-2.0 */
/** @file A bounded queue of jobs and the threads that run them. Internal to proto/. */
#ifndef QMP_RPC_POOL_H
#define QMP_RPC_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

/** Embedded in what the job is about; the pool never frees it. */
struct qmp_job {
	struct qmp_job *next;
	void (*run)(struct qmp_job *job); /**< may block; @p job may be gone when it returns */
};

struct qmp_pool;

/** Starts @p threads threads; at most @p max_waiting jobs wait for one. */
qmla_status_t qmp_pool_create(uint32_t threads, uint32_t max_waiting, struct qmp_pool **pool);

/** Runs what still waits, joins the threads, frees. Accepts NULL. */
void qmp_pool_destroy(struct qmp_pool *pool);

/** Hands a job over; false, and nothing happened, when too many wait. Any thread; does not block.
 */
bool qmp_pool_submit(struct qmp_pool *pool, struct qmp_job *job);

#endif /* QMP_RPC_POOL_H */
