/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Fuses a layer's cache transforms into its weights, in double, cast once
 * (paper.md, "Transformations"). With c = u Gamma the model's latent (u the
 * latent normalised without weight) and z = u R what is cached:
 *
 *   kv_a rows of the latent   W' = R^T W,  b' = R^T b      (|z| = |u|, so the norm is unchanged)
 *   keys and values           W' = W Gamma R               (per head, from kv_b_proj)
 *   RoPE rows of pair j       kv_a: times s_j, queries: divided by s_j
 */
#ifndef QMW_FUSE_H
#define QMW_FUSE_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/constants.h"
#include "client/model/rope.h"

/** R of a layer as malloc'ed double [d_c][d_c], or *rotation = NULL for the identity. */
qmla_status_t qmw_fuse_rotation(const struct qmw_constants *constants, uint32_t layer,
				uint32_t content_dim, double **rotation);

/** @p weights [d_c + d_r][hidden] and @p bias [d_c + d_r] or NULL, in place. */
qmla_status_t qmw_fuse_kv_a(const double *rotation, uint32_t content_dim, uint32_t hidden,
			    float *weights, float *bias);

/** @p weights [rows][d_c] in place: times @p gamma [d_c], then R. */
qmla_status_t qmw_fuse_kv_b(const double *rotation, const float *gamma, uint32_t content_dim,
			    uint32_t rows, float *weights);

/** Multiplies the RoPE rows [d_r][columns] by s_j, or divides with @p divide; NULL scale: nothing.
 */
void qmw_fuse_rope_rows(const struct qmw_rope *rope, const float *scale, bool divide,
			uint32_t columns, float *rows);

#endif /* QMW_FUSE_H */
