/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The RoPE path's transform: an angle and a positive scale for each frequency pair,
 * K' = K R S (paper.md, "Transformations"). It commutes with RoPE, so it may act on keys
 * before or after the rotation by position. Pure; any thread.
 */
#ifndef QMW_CALIBRATE_PAIRS_H
#define QMW_CALIBRATE_PAIRS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/model/rope.h"

/** @p angle, @p scale [d_r / 2]; NULL: 0 and 1. */
struct qmw_pairs {
	const struct qmw_rope *rope; /**< which coordinates are a pair */
	const double *angle, *scale;
};

/** Rows [n][d_r] in place: turned and scaled, or with @p inverse back again. */
void qmw_pairs_apply(const struct qmw_pairs *pairs, bool inverse, size_t rows, float *keys);

/**
 * Chains gradients through k -> z = transform(k) -> quantiser -> zhat -> khat = inverse(zhat).
 * First half, from dL/dkhat in @p gradient [n][d_r] to dL/dzhat, in place; @p restored is
 * khat. Adds to @p angle and @p log_scale [d_r / 2] what the inverse contributes.
 */
void qmw_pairs_gradient_inverse(const struct qmw_pairs *pairs, size_t rows, const float *restored,
				float *gradient, double *angle, double *log_scale);

/**
 * Second half: with dL/dz in @p gradient and the keys k, adds what the transform itself
 * contributes.
 */
void qmw_pairs_gradient_forward(const struct qmw_pairs *pairs, size_t rows, const float *keys,
				const float *gradient, double *angle, double *log_scale);

#endif /* QMW_CALIBRATE_PAIRS_H */
