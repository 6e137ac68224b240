/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The content path's transform as two dense matrices: z = u F with F = R S, and back
 * u' = z B with B = S^-1 R^T. Gradients are collected for F and B, a sum over tokens
 * that is two matrix products, and brought to R and log S once a step.
 */
#ifndef QMW_CALIBRATE_CONTENT_MAP_H
#define QMW_CALIBRATE_CONTENT_MAP_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

/** Immutable between qmw_content_map_set calls; any number of threads may apply it. */
struct qmw_content_map {
	uint32_t dim;
	float *forward; /**< F [d][d] */
	float *back;    /**< B [d][d] */
};

/** The identity. QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_content_map_init(struct qmw_content_map *map, uint32_t dim);
void qmw_content_map_fini(struct qmw_content_map *map); /**< accepts a zeroed one */

/** From @p rotation R [d][d] (NULL: identity) and @p scale S [d] (NULL: ones). */
void qmw_content_map_set(struct qmw_content_map *map, const double *rotation, const double *scale);

/** z [rows][d] = u F */
void qmw_content_map_forward(const struct qmw_content_map *map, size_t rows, const float *u,
			     float *z);
/** u' [rows][d] = z B */
void qmw_content_map_back(const struct qmw_content_map *map, size_t rows, const float *z, float *u);

/** dL/dzhat [rows][d] from @p gradient dL/du' [rows][d]. */
void qmw_content_map_gradient_rows(const struct qmw_content_map *map, size_t rows,
				   const float *gradient, float *out);

/** @p product [d][d] = a^T b over rows: dL/dF from (u, dL/dz), dL/dB from (zhat, dL/du'). */
void qmw_content_map_gradient_product(uint32_t dim, size_t rows, const float *a, const float *b,
				      float *product);

/**
 * From @p forward dL/dF and @p back dL/dB [d][d] to @p rotation_gradient dL/dR [d][d] and
 * @p log_scale_gradient dL/dlog S [d], at @p rotation and @p scale (NULL as in set).
 */
void qmw_content_map_gradient(uint32_t dim, const double *rotation, const double *scale,
			      const double *forward, const double *back, double *rotation_gradient,
			      double *log_scale_gradient);

#endif /* QMW_CALIBRATE_CONTENT_MAP_H */
