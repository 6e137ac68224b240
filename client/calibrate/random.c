/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/random.h"

#include "common/splitmix.h"

void qmw_random_init(struct qmw_random *random, uint64_t seed, enum qmw_purpose purpose,
		     uint64_t index)
{
	random->state = qmc_splitmix_mix(
		qmc_splitmix_mix(qmc_splitmix_mix(seed + QMC_SPLITMIX_GAMMA) + (uint64_t)purpose) +
		index * QMC_SPLITMIX_GAMMA);
}

uint64_t qmw_random_next(struct qmw_random *random)
{
	return qmc_splitmix_next(&random->state);
}

uint32_t qmw_random_below(struct qmw_random *random, uint32_t n)
{
	/* The top of the range that would make low values likelier is drawn again. */
	uint64_t limit = UINT64_MAX - UINT64_MAX % n;
	uint64_t drawn;

	do {
		drawn = qmw_random_next(random);
	} while (drawn >= limit);
	return (uint32_t)(drawn % n);
}

double qmw_random_real(struct qmw_random *random)
{
	return (double)(qmw_random_next(random) >> 11) * 0x1p-52 - 1;
}

void qmw_random_signs(struct qmw_random *random, float *signs, size_t count)
{
	uint64_t bits = 0;

	for (size_t i = 0; i < count; i++) {
		if (i % 64 == 0)
			bits = qmw_random_next(random);
		signs[i] = (bits >> (i % 64)) & 1 ? 1.0f : -1.0f;
	}
}

void qmw_random_shuffle(struct qmw_random *random, uint32_t *values, uint32_t n)
{
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = qmw_random_below(random, i);
		uint32_t kept = values[i - 1];

		values[i - 1] = values[j];
		values[j] = kept;
	}
}
