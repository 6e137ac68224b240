/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/fuse.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/numeric.h"

/* Columns that are rotated at a time: bounds the copy beside a wide projection. */
#define PANEL 1024u

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

/* rows [d_c][columns] = R^T rows, a panel of columns at a time. */
static qmla_status_t rotate_latent(const struct qmw_fuse *fuse, uint32_t columns, double *rows)
{
	uint32_t n = fuse->content_dim, width = columns < PANEL ? columns : PANEL;
	double *panel = malloc((size_t)n * width * sizeof(*panel));

	if (!panel)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t first = 0; first < columns; first += width) {
		uint32_t count = columns - first < width ? columns - first : width;

		for (uint32_t i = 0; i < n; i++)
			memcpy(panel + (size_t)i * count, rows + (size_t)i * columns + first,
			       count * sizeof(*panel));
		cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)n, (blasint)count,
			    (blasint)n, 1, fuse->rotation, (blasint)n, panel, (blasint)count, 0,
			    rows + first, (blasint)columns);
	}
	free(panel);
	return QMLA_OK;
}

/* Multiplies the pairs of rows [d_r][columns] by s exp(i phi), or exp(i phi) / s. */
static void turn_pairs(const struct qmw_fuse *fuse, bool query, uint32_t columns, double *rows)
{
	if (!fuse->rope_angle && !fuse->rope_scale)
		return;
	for (uint32_t j = 0; j < fuse->rope->dim / 2; j++) {
		double angle = fuse->rope_angle ? fuse->rope_angle[j] : 0;
		double scale = fuse->rope_scale ? fuse->rope_scale[j] : 1;
		double x = cos(angle) * (query ? 1 / scale : scale);
		double y = sin(angle) * (query ? 1 / scale : scale);
		uint32_t first, second;
		double *a, *b;

		qmw_rope_pair(fuse->rope, j, &first, &second);
		a = rows + (size_t)first * columns;
		b = rows + (size_t)second * columns;
		for (uint32_t i = 0; i < columns; i++) {
			double real = x * a[i] - y * b[i];

			b[i] = y * a[i] + x * b[i];
			a[i] = real;
		}
	}
}

qmla_status_t qmw_fuse_kv_a(const struct qmw_fuse *fuse, uint32_t columns, double *rows)
{
	qmla_status_t status = fuse->rotation ? rotate_latent(fuse, columns, rows) : QMLA_OK;

	turn_pairs(fuse, false, columns, rows + (size_t)fuse->content_dim * columns);
	return status;
}

qmla_status_t qmw_fuse_kv_b(const struct qmw_fuse *fuse, const double *gamma, uint32_t rows,
			    double *weights)
{
	uint32_t n = fuse->content_dim, height = rows < PANEL ? rows : PANEL;
	double *panel;

	for (size_t i = 0; i < (size_t)rows * n; i++)
		weights[i] *= gamma[i % n];
	panel = fuse->rotation ? malloc((size_t)height * n * sizeof(*panel)) : NULL;
	if (fuse->rotation && !panel)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t first = 0; fuse->rotation && first < rows; first += height) {
		uint32_t count = rows - first < height ? rows - first : height;
		double *from = weights + (size_t)first * n;

		memcpy(panel, from, (size_t)count * n * sizeof(*panel));
		cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)count, (blasint)n,
			    (blasint)n, 1, panel, (blasint)n, fuse->rotation, (blasint)n, 0, from,
			    (blasint)n);
	}
	free(panel);
	for (size_t i = 0; fuse->content_scale && i < (size_t)rows * n; i++)
		weights[i] /= fuse->content_scale[i % n];
	return QMLA_OK;
}

void qmw_fuse_queries(const struct qmw_fuse *fuse, uint32_t heads, uint32_t nope_dim,
		      uint32_t columns, double *rows)
{
	size_t width = nope_dim + fuse->rope->dim;

	for (uint32_t h = 0; h < heads; h++)
		turn_pairs(fuse, true, columns, rows + (h * width + nope_dim) * columns);
}

static void narrow(double *wide, size_t count, float *values)
{
	for (size_t i = 0; i < count; i++)
		values[i] = (float)wide[i];
	free(wide);
}

qmla_status_t qmw_fuse_kv_a_float(const struct qmw_fuse *fuse, uint32_t columns, float *rows)
{
	size_t count = ((size_t)fuse->content_dim + fuse->rope->dim) * columns;
	double *wide = qmw_widen(rows, count);
	qmla_status_t status = wide ? qmw_fuse_kv_a(fuse, columns, wide) : QMLA_ERR_NO_MEMORY;

	if (status)
		free(wide);
	else
		narrow(wide, count, rows);
	return status;
}

qmla_status_t qmw_fuse_kv_b_float(const struct qmw_fuse *fuse, const float *gamma, uint32_t rows,
				  float *weights)
{
	size_t count = (size_t)rows * fuse->content_dim;
	double *wide = qmw_widen(weights, count), *factors = qmw_widen(gamma, fuse->content_dim);
	qmla_status_t status =
		wide && factors ? qmw_fuse_kv_b(fuse, factors, rows, wide) : QMLA_ERR_NO_MEMORY;

	free(factors);
	if (status)
		free(wide);
	else
		narrow(wide, count, weights);
	return status;
}

qmla_status_t qmw_fuse_queries_float(const struct qmw_fuse *fuse, uint32_t heads, uint32_t nope_dim,
				     uint32_t columns, float *rows)
{
	size_t count = (size_t)heads * (nope_dim + fuse->rope->dim) * columns;
	double *wide;

	if (!fuse->rope_angle && !fuse->rope_scale)
		return QMLA_OK;
	wide = qmw_widen(rows, count);
	if (!wide)
		return QMLA_ERR_NO_MEMORY;
	qmw_fuse_queries(fuse, heads, nope_dim, columns, wide);
	narrow(wide, count, rows);
	return QMLA_OK;
}
