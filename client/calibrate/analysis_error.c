/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/analysis_error.h"

#include <math.h>
#include <string.h>

#include "client/calibrate/fake_paper.h"

#define GROUP 64u /* coordinates that share a scale in the paper */

double qmw_sum_of_squares(const float *values, size_t count)
{
	double sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += (double)values[i] * (double)values[i];
	return sum;
}

void qmw_error_quantise(const struct qmw_cache_rows *rows, uint32_t bits, float *error)
{
	const struct qmw_fake_paper quantiser = {
		.bits = bits,
		.group = rows->dim % GROUP == 0 ? GROUP : rows->dim,
		.bf16_scale = rows->path == QMW_PATH_CONTENT,
	};

	qmw_fake_paper_apply(&quantiser, rows->n, rows->dim, rows->values, error);
	for (size_t i = 0; i < (size_t)rows->n * rows->dim; i++)
		error[i] -= rows->values[i];
}

/* Box and Muller, 1958: two normal numbers from two uniform ones. */
void qmw_error_gaussian(const struct qmw_cache_rows *rows, struct qmw_random *random, float *error)
{
	size_t count = (size_t)rows->n * rows->dim;

	for (size_t i = 0; i < count; i += 2) {
		double u = (double)((qmw_random_next(random) >> 11) + 1) * 0x1p-53; /* (0, 1] */
		double angle = M_PI * qmw_random_real(random), radius = sqrt(-2 * log(u));

		error[i] = (float)(radius * cos(angle));
		if (i + 1 < count)
			error[i + 1] = (float)(radius * sin(angle));
	}
}

void qmw_error_permute(const struct qmw_cache_rows *rows, const float *from,
		       struct qmw_random *random, uint32_t *order, float *to)
{
	for (uint32_t t = 0; t < rows->n; t++)
		order[t] = t;
	qmw_random_shuffle(random, order, rows->n);
	for (uint32_t t = 0; t < rows->n; t++)
		memcpy(to + (size_t)t * rows->dim, from + (size_t)order[t] * rows->dim,
		       rows->dim * sizeof(*to));
}

void qmw_error_sign(const struct qmw_cache_rows *rows, const float *from, struct qmw_random *random,
		    float *to)
{
	for (uint32_t t = 0; t < rows->n; t++) {
		float sign;

		qmw_random_signs(random, &sign, 1);
		for (size_t i = (size_t)t * rows->dim; i < (size_t)(t + 1) * rows->dim; i++)
			to[i] = sign * from[i];
	}
}

void qmw_error_match(const struct qmw_cache_rows *rows, double nmse, float *error)
{
	size_t count = (size_t)rows->n * rows->dim;
	double size = qmw_sum_of_squares(error, count);
	double factor = size > 0 ? sqrt(nmse * qmw_sum_of_squares(rows->values, count) / size) : 0;

	for (size_t i = 0; i < count; i++)
		error[i] = (float)((double)error[i] * factor);
}
