/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Counts and times of the calls served, kept without locks, and the text that
 * /metrics shows (Prometheus exposition format 0.0.4). docs/operations.md lists
 * every name.
 */
#ifndef QMS_METRICS_H
#define QMS_METRICS_H

#include <stdio.h>

#include <qmla/status.h>

#include "common/clock.h"

struct qms_service;

#define QMS_METRICS_METHODS 16
#define QMS_METRICS_BUCKETS 12
#define QMS_METRICS_CODES   81 /**< statuses 0 … -80 */

/** All counters relaxed: figures for people. */
struct qms_method_metrics {
	_Atomic uint64_t codes[QMS_METRICS_CODES];
	_Atomic uint64_t buckets[QMS_METRICS_BUCKETS + 1];
	_Atomic uint64_t total_ns;
};

struct qms_metrics {
	struct qms_method_metrics methods[QMS_METRICS_METHODS];
};

/** Notes one call of method @p method that took @p ns. Any thread. */
void qms_metrics_observe(struct qms_metrics *metrics, size_t method, qmla_status_t status,
			 int64_t ns);

/** Writes everything about @p service. Any thread. */
void qms_metrics_print(struct qms_service *service, FILE *out);

#endif /* QMS_METRICS_H */
