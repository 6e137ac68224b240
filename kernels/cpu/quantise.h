/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The default quantiser on one plane of a page (content or RoPE): 64 tokens at
 * once, coordinates outermost, so that every step is a loop over 64 tokens.
 */
#ifndef QMK_CPU_QUANTISE_H
#define QMK_CPU_QUANTISE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/layout.h"

/** A plane of 64 tokens, `dim` coordinates each. */
struct qmk_cpu_plane {
	uint32_t dim;          /**< multiple of 16, at most QMK_MAX_CONTENT_DIM */
	uint32_t bits;         /**< 4 or 2 */
	const float *feedback; /**< A, [dim][dim] unit lower triangular, or NULL: plain rounding */
	const float *weight;   /**< D, [dim], or NULL: ones */
	bool dense;            /**< feedback at 4 bits: many scales, for few coordinates */
	const float *values;   /**< [dim][64], finite, at most QMK_FP16_MAX in magnitude */
	const float *targets;  /**< [dim][64], what rounding aims at: the values, or with offsets */
	float *errors;         /**< scratch [dim][64] */
	uint8_t *draft;        /**< scratch [dim][64] */
	uint8_t *codes;        /**< out [dim][64], q + 2^(bits-1) */
	uint16_t *scales;      /**< out [64], fp16 */
};

/**
 * Mid-rise quantiser: value = s (q + 1/2), one fp16 scale s a token, chosen for the
 * least weighted error sum D_i (target_i - value_i)^2 that rounding leaves. With
 * feedback target_i = x_i + sum_{j<i} A_ij (z_j - value_j), without target_i = x_i, where
 * z are the plane's values and x its targets.
 * A token of zeros gets scale 0. Deterministic: a token's codes depend on that
 * token only. Never fails; any thread.
 */
void qmk_cpu_quantise(const struct qmk_cpu_plane *plane);

/** @p errors [dim][64] = values less what a reader makes of the codes and scales. Any thread. */
void qmk_cpu_quantise_errors(const struct qmk_cpu_plane *plane, float *errors);

/**
 * @p targets [dim][64] = values + @p matrix [dim][count] times @p errors [count][64] of
 * another plane. Any thread.
 */
void qmk_cpu_quantise_offset(const struct qmk_cpu_plane *plane, const float *matrix,
			     const float *errors, uint32_t count, float *targets);

#endif /* QMK_CPU_QUANTISE_H */
