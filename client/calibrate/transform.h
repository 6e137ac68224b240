/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What calibration learns about one attention sub-layer, in double. Any pointer may
 * be NULL: identity, zero, plain rounding.
 *
 * The cache holds z = (u - mean_C) R S and K' = (k - mean_R) rotated by an angle and
 * scaled pair by pair, where u is the latent normalised without weight and k the
 * RoPE key before RoPE (paper.md, "Transformations").
 */
#ifndef QMW_TRANSFORM_H
#define QMW_TRANSFORM_H

#include <stdint.h>

struct qmw_transform {
	uint32_t content_dim, rope_dim;
	double *rotation;      /**< R [d_c][d_c], orthogonal, row-vector convention z = u R */
	double *content_scale; /**< diagonal of S [d_c], positive */
	double *rope_angle;    /**< [d_r / 2], radians, in SO(2) of each pair */
	double *rope_scale;    /**< [d_r / 2], positive */

	/* Not fused: constants of the cache, in its coordinates. */
	double *content_mean, *rope_mean;          /**< [d_c], [d_r] */
	double *content_feedback, *content_weight; /**< [d_c][d_c] unit lower triangular, [d_c] */
	double *rope_feedback, *rope_weight;       /**< [d_r][d_r], [d_r] */
	double *cross_feedback; /**< [d_c][d_r]: content takes back what the RoPE codes did */
};

/** Frees the arrays and zeroes the structure. Accepts a zeroed one. */
void qmw_transform_free(struct qmw_transform *transform);

#endif /* QMW_TRANSFORM_H */
