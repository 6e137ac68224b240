/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/pairs.h"

#include <math.h>

/* One pair's transform and where its coordinates stand in a row. */
struct turn {
	uint32_t a, b;
	double cosine, sine, scale;
};

static struct turn turn_of(const struct qmw_pairs *pairs, uint32_t j)
{
	double angle = pairs->angle ? pairs->angle[j] : 0;
	struct turn turn = {.cosine = cos(angle),
			    .sine = sin(angle),
			    .scale = pairs->scale ? pairs->scale[j] : 1};

	qmw_rope_pair(pairs->rope, j, &turn.a, &turn.b);
	return turn;
}

void qmw_pairs_apply(const struct qmw_pairs *pairs, bool inverse, size_t rows, float *keys)
{
	uint32_t dim = pairs->rope->dim;

	for (uint32_t j = 0; j < dim / 2; j++) {
		struct turn turn = turn_of(pairs, j);
		double scale = inverse ? 1 / turn.scale : turn.scale;
		double sine = inverse ? -turn.sine : turn.sine;

		for (size_t t = 0; t < rows; t++) {
			float *row = keys + t * dim;
			double a = row[turn.a], b = row[turn.b];

			row[turn.a] = (float)(scale * (turn.cosine * a - sine * b));
			row[turn.b] = (float)(scale * (sine * a + turn.cosine * b));
		}
	}
}

/*
 * khat = Rot(-phi) zhat / s, and J turns by a right angle: dkhat/dphi = -J khat,
 * dkhat/dlog s = -khat, dL/dzhat = Rot(phi) dL/dkhat / s.
 */
void qmw_pairs_gradient_inverse(const struct qmw_pairs *pairs, size_t rows, const float *restored,
				float *gradient, double *angle, double *log_scale)
{
	uint32_t dim = pairs->rope->dim;

	for (uint32_t j = 0; j < dim / 2; j++) {
		struct turn turn = turn_of(pairs, j);

		for (size_t t = 0; t < rows; t++) {
			const float *k = restored + t * dim;
			float *row = gradient + t * dim;
			double a = row[turn.a], b = row[turn.b];

			angle[j] -= b * k[turn.a] - a * k[turn.b];
			log_scale[j] -= a * k[turn.a] + b * k[turn.b];
			row[turn.a] = (float)((turn.cosine * a - turn.sine * b) / turn.scale);
			row[turn.b] = (float)((turn.sine * a + turn.cosine * b) / turn.scale);
		}
	}
}

/* z = s Rot(phi) k: dz/dphi = J z, dz/dlog s = z. */
void qmw_pairs_gradient_forward(const struct qmw_pairs *pairs, size_t rows, const float *keys,
				const float *gradient, double *angle, double *log_scale)
{
	uint32_t dim = pairs->rope->dim;

	for (uint32_t j = 0; j < dim / 2; j++) {
		struct turn turn = turn_of(pairs, j);

		for (size_t t = 0; t < rows; t++) {
			const float *k = keys + t * dim, *g = gradient + t * dim;
			double a = turn.scale * (turn.cosine * k[turn.a] - turn.sine * k[turn.b]);
			double b = turn.scale * (turn.sine * k[turn.a] + turn.cosine * k[turn.b]);

			angle[j] += g[turn.b] * a - g[turn.a] * b;
			log_scale[j] += g[turn.a] * a + g[turn.b] * b;
		}
	}
}
