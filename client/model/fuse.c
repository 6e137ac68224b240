/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/fuse.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sylvester: H_ij = (-1)^popcount(i & j) / sqrt(n). */
static void fill_hadamard(uint32_t n, double *r)
{
	double unit = 1 / sqrt((double)n);

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < n; j++)
			r[(size_t)i * n + j] = __builtin_popcount(i & j) % 2 ? -unit : unit;
}

qmla_status_t qmw_fuse_rotation(const struct qmw_constants *constants, uint32_t layer,
				uint32_t content_dim, double **rotation)
{
	size_t count = (size_t)content_dim * content_dim;
	double *r;

	*rotation = NULL;
	if (constants->rotation == QMW_ROTATION_IDENTITY)
		return QMLA_OK;
	r = malloc(count * sizeof(*r));
	if (!r)
		return QMLA_ERR_NO_MEMORY;
	if (constants->rotation == QMW_ROTATION_HADAMARD)
		fill_hadamard(content_dim, r);
	for (size_t i = 0; constants->rotation == QMW_ROTATION_MATRIX && i < count; i++)
		r[i] = constants->layers[layer].content_rotation[i];
	*rotation = r;
	return QMLA_OK;
}

/* wide = values, cast. */
static double *widen(const float *values, size_t count)
{
	double *wide = calloc(2 * count + 1, sizeof(*wide));

	for (size_t i = 0; wide && i < count; i++)
		wide[i] = values[i];
	return wide;
}

static void rotate_bias(const double *rotation, uint32_t n, double *scratch, float *bias)
{
	for (uint32_t j = 0; j < n; j++) {
		scratch[j] = 0;
		for (uint32_t i = 0; i < n; i++)
			scratch[j] += rotation[(size_t)i * n + j] * bias[i];
	}
	for (uint32_t j = 0; j < n; j++)
		bias[j] = (float)scratch[j];
}

qmla_status_t qmw_fuse_kv_a(const double *rotation, uint32_t content_dim, uint32_t hidden,
			    float *weights, float *bias)
{
	size_t count = (size_t)content_dim * hidden;
	double *wide, *product;

	if (!rotation)
		return QMLA_OK;
	wide = widen(weights, count);
	if (!wide)
		return QMLA_ERR_NO_MEMORY;
	product = wide + count;
	cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)content_dim, (blasint)hidden,
		    (blasint)content_dim, 1, rotation, (blasint)content_dim, wide, (blasint)hidden,
		    0, product, (blasint)hidden);
	for (size_t i = 0; i < count; i++)
		weights[i] = (float)product[i];
	if (bias)
		rotate_bias(rotation, content_dim, wide, bias);
	free(wide);
	return QMLA_OK;
}

qmla_status_t qmw_fuse_kv_b(const double *rotation, const float *gamma, uint32_t content_dim,
			    uint32_t rows, float *weights)
{
	size_t count = (size_t)rows * content_dim;
	double *wide = widen(weights, count);
	double *product;

	if (!wide)
		return QMLA_ERR_NO_MEMORY;
	product = rotation ? wide + count : wide;
	for (size_t i = 0; i < count; i++)
		wide[i] *= gamma[i % content_dim];
	if (rotation)
		cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)rows,
			    (blasint)content_dim, (blasint)content_dim, 1, wide,
			    (blasint)content_dim, rotation, (blasint)content_dim, 0, product,
			    (blasint)content_dim);
	for (size_t i = 0; i < count; i++)
		weights[i] = (float)product[i];
	free(wide);
	return QMLA_OK;
}

void qmw_fuse_rope_rows(const struct qmw_rope *rope, const float *scale, bool divide,
			uint32_t columns, float *rows)
{
	for (uint32_t j = 0; scale && j < rope->dim / 2; j++) {
		float factor = divide ? 1 / scale[j] : scale[j];
		uint32_t pair[2];

		qmw_rope_pair(rope, j, &pair[0], &pair[1]);
		for (int k = 0; k < 2; k++)
			for (uint32_t i = 0; i < columns; i++)
				rows[(size_t)pair[k] * columns + i] *= factor;
	}
}
