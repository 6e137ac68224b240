/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/content_map.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

qmla_status_t qmw_content_map_init(struct qmw_content_map *map, uint32_t dim)
{
	struct qmw_content_map self = {.dim = dim};
	size_t count = (size_t)dim * dim;

	self.forward = malloc(2 * count * sizeof(float));
	if (!self.forward)
		return QMLA_ERR_NO_MEMORY;
	self.back = self.forward + count;
	*map = self;
	qmw_content_map_set(map, NULL, NULL);
	return QMLA_OK;
}

void qmw_content_map_fini(struct qmw_content_map *map)
{
	free(map->forward);
	memset(map, 0, sizeof(*map));
}

static double rotation_at(const double *rotation, uint32_t dim, uint32_t i, uint32_t j)
{
	if (!rotation)
		return i == j;
	return rotation[(size_t)i * dim + j];
}

void qmw_content_map_set(struct qmw_content_map *map, const double *rotation, const double *scale)
{
	uint32_t dim = map->dim;

	for (uint32_t i = 0; i < dim; i++) {
		for (uint32_t j = 0; j < dim; j++) {
			double r = rotation_at(rotation, dim, i, j), s = scale ? scale[j] : 1;

			map->forward[(size_t)i * dim + j] = (float)(r * s);
			map->back[(size_t)j * dim + i] = (float)(r / s);
		}
	}
}

static void product(uint32_t dim, size_t rows, const float *x, CBLAS_TRANSPOSE transpose,
		    const float *matrix, float *y)
{
	blasint d = (blasint)dim;

	cblas_sgemm(CblasRowMajor, CblasNoTrans, transpose, (blasint)rows, d, d, 1, x, d, matrix, d,
		    0, y, d);
}

void qmw_content_map_forward(const struct qmw_content_map *map, size_t rows, const float *u,
			     float *z)
{
	product(map->dim, rows, u, CblasNoTrans, map->forward, z);
}

void qmw_content_map_back(const struct qmw_content_map *map, size_t rows, const float *z, float *u)
{
	product(map->dim, rows, z, CblasNoTrans, map->back, u);
}

void qmw_content_map_gradient_rows(const struct qmw_content_map *map, size_t rows,
				   const float *gradient, float *out)
{
	product(map->dim, rows, gradient, CblasTrans, map->back, out);
}

void qmw_content_map_gradient_product(uint32_t dim, size_t rows, const float *a, const float *b,
				      float *out)
{
	blasint d = (blasint)dim;

	cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, d, d, (blasint)rows, 1, a, d, b, d, 0,
		    out, d);
}

/* F_ij = R_ij s_j and B_ji = R_ij / s_j. */
void qmw_content_map_gradient(uint32_t dim, const double *rotation, const double *scale,
			      const double *forward, const double *back, double *rotation_gradient,
			      double *log_scale_gradient)
{
	memset(log_scale_gradient, 0, dim * sizeof(double));
	for (uint32_t i = 0; i < dim; i++) {
		for (uint32_t j = 0; j < dim; j++) {
			double r = rotation_at(rotation, dim, i, j), s = scale ? scale[j] : 1;
			double f = forward[(size_t)i * dim + j] * s;
			double b = back[(size_t)j * dim + i] / s;

			rotation_gradient[(size_t)i * dim + j] = f + b;
			log_scale_gradient[j] += (f - b) * r;
		}
	}
}
