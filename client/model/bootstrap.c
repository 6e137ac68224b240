/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/bootstrap.h"

#include <math.h>
#include <stdlib.h>

#include "common/splitmix.h"

#define RESAMPLES 2000u
#define TAIL      (RESAMPLES / 40) /* 2.5 % */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double resample(const double *numerator, const double *denominator, uint32_t n,
		       uint64_t *state)
{
	double sum = 0, weight = 0;

	for (uint32_t i = 0; i < n; i++) {
		/* The bias of the multiplication is below n / 2^32. */
		uint32_t k = (uint32_t)((qmc_splitmix_next(state) >> 32) * n >> 32);

		sum += numerator[k];
		weight += denominator ? denominator[k] : 1;
	}
	return weight > 0 ? sum / weight : 0;
}

qmla_status_t qmw_bootstrap(const double *numerator, const double *denominator, uint32_t n,
			    uint64_t seed, struct qmw_interval *interval)
{
	uint64_t state = seed;
	double *means;

	*interval = (struct qmw_interval){(double)NAN, (double)NAN};
	if (n < 2)
		return QMLA_OK;
	means = malloc(RESAMPLES * sizeof(*means));
	if (!means)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t i = 0; i < RESAMPLES; i++)
		means[i] = resample(numerator, denominator, n, &state);
	qsort(means, RESAMPLES, sizeof(*means), compare);
	interval->low = means[TAIL];
	interval->high = means[RESAMPLES - 1 - TAIL];
	free(means);
	return QMLA_OK;
}
