/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/factor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * Eliminates from the last coordinate to the first: H = U D U^T with U unit upper
 * triangular, and A = U^T. Rows of A are filled as they are found.
 */
static qmla_status_t eliminate(uint32_t n, double *h, double *feedback, double *weight)
{
	for (uint32_t k = n; k-- > 0;) {
		const double *row = h + (size_t)k * n;
		double pivot = row[k];

		if (!(pivot > 0) || !isfinite(pivot))
			return QMLA_ERR_INVALID_ARGUMENT;
		weight[k] = pivot;
		for (uint32_t i = 0; i < k; i++)
			feedback[(size_t)k * n + i] = row[i] / pivot;
		feedback[(size_t)k * n + k] = 1;
		for (uint32_t i = 0; i < k; i++) {
			double *target = h + (size_t)i * n;
			double factor = feedback[(size_t)k * n + i];

			for (uint32_t j = 0; j <= i; j++)
				target[j] -= factor * row[j];
		}
	}
	return QMLA_OK;
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
	memset(feedback, 0, count * sizeof(*feedback));
	status = eliminate(n, h, feedback, weight);
	free(h);
	for (uint32_t i = 0; status == QMLA_OK && i < n; i++) {
		low = fmin(low, weight[i]);
		high = fmax(high, weight[i]);
	}
	if (status == QMLA_OK)
		*condition = high / low;
	return status;
}
