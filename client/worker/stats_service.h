/* SPDX-License-Identifier: Apache-2.0 */
/** @file What a worker tells about itself: WorkerStats and Prometheus text. */
#ifndef QMW_STATS_SERVICE_H
#define QMW_STATS_SERVICE_H

#include <stdio.h>

#include "client/worker/worker.h"
#include "proto/rpc_server.h"

/** Handler of /qmla.v1.Worker/WorkerStats; @p service is a struct qmw_worker. */
void qmw_stats_worker_stats(void *service, struct qmp_call *call, const ProtobufCMessage *request);

/** Writes the worker's figures as Prometheus text. Any thread. */
void qmw_stats_write_metrics(struct qmw_worker *worker, FILE *out);

const char *qmw_role_name(enum qmw_role role); /**< "prefill", "decode" */

#endif /* QMW_STATS_SERVICE_H */
