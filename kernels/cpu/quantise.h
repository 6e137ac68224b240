/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The default quantiser on one plane of a page (content or RoPE): 64 tokens at
 * once, coordinates outermost, so that every step is a loop over 64 tokens.
 */
#ifndef QMK_CPU_QUANTISE_H
#define QMK_CPU_QUANTISE_H

#include <stdint.h>

#include "kernels/layout.h"

/** A plane of 64 tokens, `dim` coordinates each. */
struct qmk_cpu_plane {
	uint32_t dim;          /**< multiple of 16, at most QMK_MAX_CONTENT_DIM */
	uint32_t bits;         /**< 4 or 2 */
	const float *feedback; /**< A, [dim][dim] unit lower triangular, or NULL: plain rounding */
	const float *weight;   /**< D, [dim], or NULL: ones */
	const float *values;   /**< [dim][64], finite, at most QMK_FP16_MAX in magnitude */
	float *errors;         /**< scratch [dim][64] */
	uint8_t *draft;        /**< scratch [dim][64] */
	uint8_t *codes;        /**< out [dim][64], q + 2^(bits-1) */
	uint16_t *scales;      /**< out [64], fp16 */
};

/**
 * Mid-rise quantiser: value = s (q + 1/2), one fp16 scale s a token, chosen for the
 * least weighted error sum D_i (target_i - value_i)^2 that rounding leaves. With
 * feedback target_i = z_i + sum_{j<i} A_ij (z_j - value_j), without target_i = z_i.
 * A token of zeros gets scale 0. Deterministic: a token's codes depend on that
 * token only. Never fails; any thread.
 */
void qmk_cpu_quantise(const struct qmk_cpu_plane *plane);

#endif /* QMK_CPU_QUANTISE_H */
