/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/factor.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* LAPACK's Fortran name, in Debian's OpenBLAS. */
extern void dpotrf_(const char *uplo, const blasint *n, double *a, const blasint *lda,
		    blasint *info, size_t uplo_length);

/*
 * H = A^T D A eliminates from the last coordinate to the first. With the order of the
 * coordinates reversed that is an ordinary Cholesky factorisation, which LAPACK blocks:
 * H' = L L^T, and A_kj = L'_jk / L'_kk read back in reverse.
 */
qmla_status_t qmw_factor_exact(const double *h, uint32_t n, double *feedback, double *weight)
{
	size_t square = (size_t)n * n;
	double *reversed = malloc(square * sizeof(*reversed));
	blasint size = (blasint)n, info = 0;

	if (!reversed)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j <= i; j++)
			reversed[(size_t)(n - 1 - j) * n + n - 1 - i] = h[(size_t)i * n + j];
	/* A row-major lower triangle is an upper one by columns. */
	dpotrf_("U", &size, reversed, &size, &info, 1);
	memset(feedback, 0, square * sizeof(*feedback));
	for (uint32_t k = 0; info == 0 && k < n; k++) {
		double pivot = reversed[(size_t)(n - 1 - k) * n + n - 1 - k];

		weight[k] = pivot * pivot;
		if (!(weight[k] > 0) || !isfinite(weight[k]))
			info = 1;
		for (uint32_t j = 0; j < k; j++)
			feedback[(size_t)k * n + j] =
				reversed[(size_t)(n - 1 - j) * n + n - 1 - k] / pivot;
		feedback[(size_t)k * n + k] = 1;
	}
	free(reversed);
	return info == 0 ? QMLA_OK : QMLA_ERR_INVALID_ARGUMENT;
}

qmla_status_t qmw_factor(const double *sensitivity, uint32_t n, double damping, double *feedback,
			 double *weight, double *condition)
{
	size_t count = (size_t)n * n;
	double *h = malloc(count * sizeof(*h));
	double mean = 0, low = HUGE_VAL, high = 0;
	qmla_status_t status;

	if (!h)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t i = 0; i < n; i++)
		mean += sensitivity[(size_t)i * n + i] / n;
	if (!(mean > 0) || !isfinite(mean)) {
		free(h);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < n; j++)
			h[(size_t)i * n + j] =
				(sensitivity[(size_t)i * n + j] + sensitivity[(size_t)j * n + i]) /
					(2 * mean) +
				(i == j ? damping : 0);
	status = qmw_factor_exact(h, n, feedback, weight);
	free(h);
	for (uint32_t i = 0; status == QMLA_OK && i < n; i++) {
		low = fmin(low, weight[i]);
		high = fmax(high, weight[i]);
	}
	if (status == QMLA_OK)
		*condition = high / low;
	return status;
}
