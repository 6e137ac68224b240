/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Internal to analysis_measure.c and analysis_tasks.c: a sequence while it is measured, and
 * the pieces of that work which threads share.
 */
#ifndef QMW_ANALYSIS_TASKS_H
#define QMW_ANALYSIS_TASKS_H

#include "client/calibrate/analysis_measure.h"

/** Widths of the unscaled quantiser: 4 bits, then 2. */
#define QMW_RAW_BITS 2

/** One sequence in one sub-layer. */
struct qmw_measured {
	struct qmw_measure_setup *setup;
	const struct qmw_rope *rope;
	const float *gamma;
	struct qmw_passage *handle;
	uint32_t n, hidden, dim[QMW_PATHS];
	uint64_t stream;
	float *store;
	float *exact;                        /**< Y */
	float *cache[QMW_PATHS];             /**< c, and k after its rotation */
	float *error[QMW_PATHS][QMW_SHAPES]; /**< matched */
	float *raw[QMW_PATHS][QMW_RAW_BITS]; /**< the quantiser's own */
	double *diagonal[QMW_PROBE_GROUPS];  /**< sum of g^2 [n][d_c], then [n][d_r] */
	struct qmw_layer_sums *sums;
	_Atomic qmla_status_t status;
};

/** Numbers in all rows of a path. */
static inline size_t qmw_measured_rows(const struct qmw_measured *p, enum qmw_path path)
{
	return (size_t)p->n * p->dim[path];
}

/** Probes of a group. */
static inline uint32_t qmw_group_probes(const struct qmw_analysis_job *job, uint32_t group)
{
	return job->probes / QMW_PROBE_GROUPS + (group < job->probes % QMW_PROBE_GROUPS);
}

/**
 * Measures responses, linear gains, probes and the bound on the team's threads. Adds to
 * p->sums and p->diagonal; leaves the first error in p->status.
 */
void qmw_measured_run(struct qmw_measured *p, uint32_t heads);

#endif /* QMW_ANALYSIS_TASKS_H */
