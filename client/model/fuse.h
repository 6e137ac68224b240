/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Fuses a layer's cache transforms into its weights, in double (paper.md,
 * "Transformations"). With c = u Gamma the model's latent (u the latent normalised
 * without weight), z = u R S is what is cached, and pair j of the RoPE key is multiplied by
 * the complex number s_j exp(i phi_j): (a, b) -> s (a cos - b sin, a sin + b cos).
 *
 *   kv_a rows of the latent   W' = R^T W,  b' = R^T b     (|u R| = |u|: the norm is unchanged)
 *   weight of kv_a_layernorm  S instead of Gamma
 *   keys and values           W' = W Gamma R S^-1         (per head, from kv_b_proj)
 *   RoPE rows of pair j       kv_a: times s exp(i phi); queries: times exp(i phi) / s,
 *                             so that every score q . k stays what it was (Proposition 1)
 *
 * A constant factor of a family on the latent (LongCat) commutes with all of it.
 */
#ifndef QMW_FUSE_H
#define QMW_FUSE_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/constants.h"
#include "client/model/rope.h"

/** The transforms of one attention sub-layer; any pointer may be NULL: the identity. */
struct qmw_fuse {
	uint32_t content_dim;
	const struct qmw_rope *rope;
	const double *rotation;      /**< R [d_c][d_c], z = u R */
	const double *content_scale; /**< S [d_c] */
	const double *rope_angle;    /**< phi [d_r / 2] */
	const double *rope_scale;    /**< s [d_r / 2] */
};

/** kv_a_proj: @p rows [d_c + d_r][columns] in place; a bias is one column. QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_fuse_kv_a(const struct qmw_fuse *fuse, uint32_t columns, double *rows);

/** kv_b_proj: @p weights [rows][d_c] in place, @p gamma [d_c] the weight of the norm before it. */
qmla_status_t qmw_fuse_kv_b(const struct qmw_fuse *fuse, const double *gamma, uint32_t rows,
			    double *weights);

/** The projection that ends in queries: @p rows [H (d_n + d_r)][columns] in place. */
void qmw_fuse_queries(const struct qmw_fuse *fuse, uint32_t heads, uint32_t nope_dim,
		      uint32_t columns, double *rows);

/** R of the constants of a layer as malloc'ed double [d_c][d_c], or *rotation = NULL for the
 * identity. */
qmla_status_t qmw_fuse_rotation(const struct qmw_constants *constants, uint32_t layer,
				uint32_t content_dim, double **rotation);

/* The same on float32 weights, worked out in double and cast once. */

qmla_status_t qmw_fuse_kv_a_float(const struct qmw_fuse *fuse, uint32_t columns, float *rows);
qmla_status_t qmw_fuse_kv_b_float(const struct qmw_fuse *fuse, const float *gamma, uint32_t rows,
				  float *weights);
qmla_status_t qmw_fuse_queries_float(const struct qmw_fuse *fuse, uint32_t heads, uint32_t nope_dim,
				     uint32_t columns, float *rows);

#endif /* QMW_FUSE_H */
