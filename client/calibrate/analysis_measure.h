/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Internal to analysis*.c: what one sub-layer does with one sequence, as sums that are
 * added up over sequences and turned into figures at the end.
 */
#ifndef QMW_ANALYSIS_MEASURE_H
#define QMW_ANALYSIS_MEASURE_H

#include <stdatomic.h>

#include "client/calibrate/analysis.h"
#include "client/calibrate/attention.h"
#include "client/model/team.h"

/** Probes are summed in this many groups: fixed, so that threads do not show. */
#define QMW_PROBE_GROUPS 8

struct qmw_shape_sums {
	double error;       /**< ||e||^2 */
	double change;      /**< ||Y(x + e) - Y||^2 */
	double linear;      /**< ||J e||^2 */
	double sensitivity; /**< sum_j h_j e_j^2 */
};

struct qmw_path_sums {
	double cache, coordinates;       /**< ||x||^2, their number */
	double probes[QMW_PROBE_GROUPS]; /**< sum of h by each group's own probes */
	double raw_error[2], raw_change[2];
	double curve[QMW_ANALYSIS_LEVELS];
	struct qmw_shape_sums shape[QMW_SHAPES];
	double *mean;   /**< [dim]: sum of c, of k before the rotation */
	double *square; /**< [dim] */
};

/** One cache layer's sums over sequences. */
struct qmw_layer_sums {
	struct qmw_path_sums path[QMW_PATHS];
	double output; /**< ||Y||^2 */
	double tokens;
	double matching, aggregation;
	double bound, bounded, tightest;
};

/** What stays the same over a run. */
struct qmw_measure_setup {
	const struct qmw_analysis_job *job;
	struct qmw_team *team;
	_Atomic uint64_t done; /**< units of progress, see qmw_measure_units */
	uint64_t units;
	_Atomic bool cancelled;
};

qmla_status_t qmw_layer_sums_init(const struct qmw_config *config, struct qmw_layer_sums *sums);
void qmw_layer_sums_fini(struct qmw_layer_sums *sums); /**< accepts a zeroed one */

/** Units of progress that one passage takes. */
uint64_t qmw_measure_units(const struct qmw_analysis_job *job);

/**
 * Adds one sequence to @p sums. @p stream names (layer, sequence) for the random numbers.
 * QMLA_ERR_NO_MEMORY, QMLA_ERR_CANCELLED.
 */
qmla_status_t qmw_measure_passage(struct qmw_measure_setup *setup, const struct qmw_config *config,
				  const struct qmw_rope *rope,
				  const struct qmw_attention_weights *weights, const float *input,
				  uint64_t stream, struct qmw_layer_sums *sums);

/** Turns sums into figures; @p pair_share of @p layer is filled too. */
void qmw_layer_figures(const struct qmw_layer_sums *sums, const struct qmw_rope *rope,
		       struct qmw_analysis_layer *layer);

#endif /* QMW_ANALYSIS_MEASURE_H */
