/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client/calibrate/random_transform.h"

#include <math.h>
#include <stdlib.h>

static double uniform(uint64_t *seed)
{
	*seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (double)(int32_t)(*seed >> 32) / 0x1p31;
}

static double *fill(uint32_t count, double from, double size, uint64_t *seed)
{
	double *values = calloc(count, sizeof(*values));

	for (uint32_t i = 0; i < count; i++)
		values[i] = from + size * uniform(seed);
	return values;
}

static double *factors(uint32_t count, double size, uint64_t *seed)
{
	double *values = fill(count, 0, size, seed);

	for (uint32_t i = 0; i < count; i++)
		values[i] = exp(values[i]);
	return values;
}

/* Gram-Schmidt, twice for orthogonality to the last bits. */
static double *rotation(uint32_t n, uint64_t *seed)
{
	double *r = fill(n * n, 0, 1, seed);

	for (uint32_t k = 0; k < 2 * n; k++) {
		uint32_t i = k / 2;
		double *row = r + (size_t)i * n, norm = 0;

		for (uint32_t j = 0; j < i; j++) {
			const double *other = r + (size_t)j * n;
			double dot = 0;

			for (uint32_t x = 0; x < n; x++)
				dot += row[x] * other[x];
			for (uint32_t x = 0; x < n; x++)
				row[x] -= dot * other[x];
		}
		for (uint32_t x = 0; x < n; x++)
			norm += row[x] * row[x];
		for (uint32_t x = 0; x < n; x++)
			row[x] /= sqrt(norm);
	}
	return r;
}

static double *feedback(uint32_t n, uint64_t *seed)
{
	double *a = fill(n * n, 0, 0.02, seed);

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = i; j < n; j++)
			a[(size_t)i * n + j] = i == j;
	return a;
}

struct qmw_transform *random_transforms(const struct qmw_config *config, unsigned what,
					uint64_t seed)
{
	struct qmw_transform *all = calloc(config->layers, sizeof(*all));
	uint32_t n = config->content_dim, r = config->rope_dim;

	for (uint32_t i = 0; i < config->layers; i++) {
		struct qmw_transform *t = &all[i];

		t->content_dim = n;
		t->rope_dim = r;
		if (what & RANDOM_ROTATION)
			t->rotation = rotation(n, &seed);
		if (what & RANDOM_SCALE)
			t->content_scale = factors(n, 1, &seed);
		if (what & RANDOM_ROPE) {
			t->rope_angle = fill(r / 2, 0, 3, &seed);
			t->rope_scale = factors(r / 2, 1, &seed);
		}
		if (!(what & RANDOM_CONSTANTS))
			continue;
		t->content_mean = fill(n, 0, 0.3, &seed);
		t->rope_mean = fill(r, 0, 0.3, &seed);
		t->content_feedback = feedback(n, &seed);
		t->content_weight = factors(n, 1, &seed);
		t->rope_feedback = feedback(r, &seed);
		t->rope_weight = factors(r, 1, &seed);
		t->cross_feedback = fill(n * r, 0, 0.02, &seed);
	}
	return all;
}

void random_transforms_free(struct qmw_transform *transforms, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		qmw_transform_free(&transforms[i]);
	free(transforms);
}
