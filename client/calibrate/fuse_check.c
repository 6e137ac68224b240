/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/fuse_check.h"

#include <cblas.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/log.h"

#define COMPONENT  "fuse"
#define ORTHOGONAL 1e-6

static qmla_status_t refuse(uint32_t layer, const char *what)
{
	qmc_error(COMPONENT, "transform of layer %" PRIu32 ": %s", layer, what);
	return QMLA_ERR_INVALID_ARGUMENT;
}

static bool all_positive(const double *values, uint32_t count)
{
	for (uint32_t i = 0; values && i < count; i++)
		if (!(values[i] > 0) || !isfinite(values[i]))
			return false;
	return true;
}

static bool all_finite(const double *values, uint32_t count)
{
	for (uint32_t i = 0; values && i < count; i++)
		if (!isfinite(values[i]))
			return false;
	return true;
}

/* Largest |R R^T - I|; a NaN is as good as infinite. */
static double departure(const double *rotation, uint32_t n, double *gram)
{
	double worst = 0;

	cblas_dsyrk(CblasRowMajor, CblasLower, CblasNoTrans, (blasint)n, (blasint)n, 1, rotation,
		    (blasint)n, 0, gram, (blasint)n);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j <= i; j++) {
			double distance = fabs(gram[(size_t)i * n + j] - (i == j));

			if (!(distance <= worst))
				worst = isnan(distance) ? (double)INFINITY : distance;
		}
	return worst;
}

qmla_status_t qmw_fuse_check(const struct qmw_config *config, const struct qmw_transform *t,
			     uint32_t layer)
{
	uint32_t n = config->content_dim, pairs = config->rope_dim / 2;
	double *gram, worst;

	if (t->content_dim != n || t->rope_dim != config->rope_dim)
		return refuse(layer, "its dimensions are not the model's");
	if (!all_positive(t->content_scale, n) || !all_positive(t->rope_scale, pairs))
		return refuse(layer, "a scale is not positive");
	if (!all_finite(t->rope_angle, pairs))
		return refuse(layer, "an angle is not finite");
	if (!t->rotation)
		return QMLA_OK;
	gram = malloc((size_t)n * n * sizeof(*gram));
	if (!gram)
		return QMLA_ERR_NO_MEMORY;
	worst = departure(t->rotation, n, gram);
	free(gram);
	return worst <= ORTHOGONAL ? QMLA_OK : refuse(layer, "its rotation is not orthogonal");
}
