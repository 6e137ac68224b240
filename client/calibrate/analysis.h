/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The dual-path error analysis of the paper "QuantMLA": how an error of equal relative
 * size in the content latent and in the RoPE key reaches a layer's output, and why.
 * docs/analysis.md has the definitions; the symbols below are its own.
 *
 * Errors e are in cache coordinates: the content latent c (with Gamma) and the RoPE key
 * after its rotation, as an unquantised cache holds them. "Matched" means that both
 * errors have the same NMSE, ||e||^2 / ||x||^2, over the sequence.
 */
#ifndef QMW_ANALYSIS_H
#define QMW_ANALYSIS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

enum qmw_path { QMW_PATH_CONTENT, QMW_PATH_ROPE, QMW_PATHS };

enum qmw_error_shape {
	QMW_SHAPE_QUANTISER, /**< rounding error of the paper's INT4 quantiser, scaled */
	QMW_SHAPE_PERMUTED,  /**< the same, whole tokens' errors dealt to other tokens */
	QMW_SHAPE_SIGNED,    /**< the same, each token's error with a random sign */
	QMW_SHAPE_GAUSSIAN,  /**< independent, equal variance in every coordinate */
	QMW_SHAPES
};

/** Cache NMSE of the response curve. */
#define QMW_ANALYSIS_LEVELS 5
extern const double qmw_analysis_levels[QMW_ANALYSIS_LEVELS];

struct qmw_analysis_gain {
	double response;   /**< ||Y(x + e) - Y||^2 / ||Y||^2 */
	double gain;       /**< G: ||Y(x + e) - Y||^2 / ||e||^2 */
	double linear;     /**< ||J e||^2 / ||e||^2 = T A + O */
	double allocation; /**< A: sum_j h_j e_j^2 / (T ||e||^2), h = diag(J^T J) */
	double coupling;   /**< O: linear - T A */
};

struct qmw_analysis_path {
	double energy;            /**< mean square of a cache coordinate */
	double sensitivity;       /**< T: mean of h over tokens and coordinates */
	double sensitivity_error; /**< its standard error, relative, from groups of probes */
	double mean_share;     /**< ||mean||^2 / mean ||.||^2 of c, and of k before the rotation */
	double cache_nmse[2];  /**< of the paper's quantiser unscaled, at 4 and 2 bits */
	double output_nmse[2]; /**< what those do to Y */
	double curve[QMW_ANALYSIS_LEVELS]; /**< response to the quantiser's shape by NMSE */
	struct qmw_analysis_gain gain[QMW_SHAPES];
};

struct qmw_analysis_layer {
	bool done; /**< false: not asked for */
	struct qmw_analysis_path path[QMW_PATHS];
	double matching, aggregation; /**< responses to a content error in keys, in values only */
	double ratio[QMW_SHAPES];     /**< RoPE response by content response */
	double predicted[QMW_SHAPES]; /**< the same from T, A and energies alone */
	double bound;       /**< Proposition 2, sum over sequences, for the quantiser's shape */
	double bounded;     /**< ||dY||^2 of the same errors */
	double tightest;    /**< largest actual / bound of a sequence: over 1 refutes it */
	double *pair_share; /**< [pairs]: mean_share of each frequency pair before the rotation */
};

struct qmw_analysis_summary {
	uint32_t layers;
	double mean[QMW_SHAPES], low[QMW_SHAPES], high[QMW_SHAPES]; /**< of ratio; geometric mean */
	double log_error[QMW_SHAPES]; /**< mean |ln predicted - ln measured| */
	double tightest;
};

struct qmw_analysis_job {
	const char *model;      /**< checkpoint directory */
	const uint32_t *tokens; /**< [sequences][length] */
	uint32_t sequences, length;
	uint32_t probes;      /**< Rademacher vectors a sequence and layer */
	double nmse;          /**< of the matched errors */
	const bool *layers;   /**< [layer_count]: which cache layers; NULL: all */
	uint32_t layer_count; /**< of the array above; must be the model's when given */
	uint64_t seed;
	uint32_t threads; /**< 0: all processors */
	/** From the calling thread, in steps of unequal length; false ends the run. May be NULL. */
	bool (*progress)(void *user, uint64_t done, uint64_t of);
	void *user;
};

struct qmw_analysis {
	char model[512];
	uint32_t sequences, length, probes;
	uint64_t seed;
	double nmse;
	uint32_t count, pairs;
	struct qmw_analysis_layer *layers; /**< [count] */
	struct qmw_analysis_summary summary;
};

/**
 * Streams the checkpoint, one decoder layer in memory at a time, and measures. Blocks.
 * The result depends on the seed, not on the number of threads. Errors as
 * qmw_stream_open; QMLA_ERR_INVALID_ARGUMENT (a size of zero, a token outside the
 * vocabulary, layers that do not fit), QMLA_ERR_CANCELLED.
 */
qmla_status_t qmw_analysis_run(const struct qmw_analysis_job *job, struct qmw_analysis **analysis);
void qmw_analysis_destroy(struct qmw_analysis *analysis); /**< accepts NULL */

/** Everything above as one JSON object; NULL without memory. The caller's reference. */
json_t *qmw_analysis_json(const struct qmw_analysis *analysis);

/**
 * Writes analysis.json, paths.svg, curve.svg, predicted.svg, decomposition.svg and
 * key-mean.svg into @p directory, which exists. Logs QMLA_ERR_IO; QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmw_analysis_write(const struct qmw_analysis *analysis, const char *directory);

#endif /* QMW_ANALYSIS_H */
