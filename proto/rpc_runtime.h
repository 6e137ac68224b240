/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * gRPC's life in this process and the conversions that every file of the runtime
 * needs. Internal to proto/.
 *
 * A process must not fork without exec once this has been used.
 */
#ifndef QMP_RPC_RUNTIME_H
#define QMP_RPC_RUNTIME_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdbool.h>

#include <qmla/status.h>

#include "common/clock.h"

/** Starts gRPC when this is the first user in the process. Pair with qmp_runtime_put. */
void qmp_runtime_get(void);

/** Drops one use; the last one stops gRPC and waits until its threads are gone. */
void qmp_runtime_put(void);

/** A deadline for gRPC; QMC_TIME_NEVER becomes its infinite future. */
gpr_timespec qmp_timespec_from_time(qmc_time_t time);

/** The reverse, from any gRPC clock. */
qmc_time_t qmp_time_from_timespec(gpr_timespec timespec);

/** Initialises a condition that waits on CLOCK_MONOTONIC. */
void qmp_condition_init(pthread_cond_t *condition);

/** Waits until signalled or @p deadline; false when it has passed. */
bool qmp_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, qmc_time_t deadline);

/**
 * Starts a thread with every signal blocked: signals belong to the program's own
 * threads. QMLA_ERR_NO_MEMORY when there is no room for one.
 */
qmla_status_t qmp_thread_start(pthread_t *thread, const char *name, void *(*run)(void *),
			       void *argument);

/** Sends gRPC's own log to ours. Called by qmp_runtime_get. */
void qmp_log_redirect(void);

#endif /* QMP_RPC_RUNTIME_H */
