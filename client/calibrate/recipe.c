/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/recipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/amplitude.h"
#include "client/calibrate/factor.h"
#include "client/calibrate/linear.h"
#include "client/calibrate/pairs.h"

/* The power in the scales' closed form (quantisation.md, 5): 0 is SmoothQuant with alpha 1. */
#define PAIR_POWER 6.0

static double trace(const double *matrix, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += matrix[(size_t)i * n + i];
	return sum;
}

static double mean_share(const double *mean, const double *moment, uint32_t n)
{
	double squares = 0, energy = trace(moment, n);

	for (uint32_t i = 0; i < n; i++)
		squares += mean[i] * mean[i];
	return energy > 0 ? squares / energy : 0;
}

/* Rounding matrices of one path; a sensitivity of zero leaves plain rounding. */
static qmla_status_t factor(const double *h, uint32_t n, double **feedback, double **weight,
			    double *condition)
{
	qmla_status_t status;

	if (!(trace(h, n) > 0))
		return QMLA_OK;
	*feedback = malloc((size_t)n * n * sizeof(double));
	*weight = malloc(n * sizeof(double));
	if (!*feedback || !*weight)
		return QMLA_ERR_NO_MEMORY;
	status = qmw_factor(h, n, QMW_FACTOR_DAMPING, *feedback, *weight, condition);
	return status;
}

static qmla_status_t solve_content(const struct qmw_sensitivity *s, struct qmw_transform *t,
				   struct qmw_layer_figures *figures)
{
	uint32_t n = s->content_dim;
	size_t square = (size_t)n * n;
	double *work = malloc(2 * square * sizeof(*work));
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	t->rotation = malloc(square * sizeof(double));
	t->content_mean = calloc(n, sizeof(double));
	if (!work || !t->rotation || !t->content_mean)
		goto out;
	qmw_spreading_rotation(n, t->rotation);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < n; j++)
			t->content_mean[j] += s->content_mean[i] * t->rotation[(size_t)i * n + j];
	/* An error e of z is an error e R^T of u: H in cache coordinates is R^T H R. */
	qmw_square_product(n, true, t->rotation, false, s->content, work);
	qmw_square_product(n, false, work, false, t->rotation, work + square);
	status = factor(work + square, n, &t->content_feedback, &t->content_weight,
			&figures->content_condition);
out:
	free(work);
	return status;
}

/* s_j = (h_j a_j^2)^(1 / (p + 2)) / a_j, with a geometric mean of one. */
static void pair_scales(const struct qmw_sensitivity *s, const struct qmw_rope *rope,
			const double *amplitude, double *scale)
{
	uint32_t half = rope->dim / 2, n = rope->dim, a, b;
	double floor_h = 1e-6 * trace(s->rope, n) / n, floor_a = 0, mean = 0;

	for (uint32_t j = 0; j < half; j++)
		floor_a = fmax(floor_a, 1e-6 * amplitude[j]);
	if (!(floor_a > 0) || !(floor_h > 0)) {
		for (uint32_t j = 0; j < half; j++)
			scale[j] = 1;
		return;
	}
	for (uint32_t j = 0; j < half; j++) {
		double h, size = fmax(amplitude[j], floor_a);

		qmw_rope_pair(rope, j, &a, &b);
		h = fmax((s->rope[(size_t)a * n + a] + s->rope[(size_t)b * n + b]) / 2, floor_h);
		scale[j] = log(h * size * size) / (PAIR_POWER + 2) - log(size);
		mean += scale[j] / half;
	}
	for (uint32_t j = 0; j < half; j++)
		scale[j] = exp(scale[j] - mean);
}

static qmla_status_t solve_rope(const struct qmw_sensitivity *s, const struct qmw_rope *rope,
				const double *amplitude, struct qmw_transform *t,
				struct qmw_layer_figures *figures)
{
	uint32_t n = s->rope_dim, a, b;
	double *h = malloc((size_t)n * n * sizeof(*h)), *inverse = malloc(n * sizeof(*inverse));
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	t->rope_scale = malloc(n / 2 * sizeof(double));
	t->rope_mean = malloc(n * sizeof(double));
	if (!h || !inverse || !t->rope_scale || !t->rope_mean)
		goto out;
	pair_scales(s, rope, amplitude, t->rope_scale);
	for (uint32_t j = 0; j < n / 2; j++) {
		qmw_rope_pair(rope, j, &a, &b);
		inverse[a] = inverse[b] = 1 / t->rope_scale[j];
	}
	for (uint32_t i = 0; i < n; i++) {
		t->rope_mean[i] = s->rope_mean[i] / inverse[i];
		for (uint32_t j = 0; j < n; j++)
			h[(size_t)i * n + j] = s->rope[(size_t)i * n + j] * inverse[i] * inverse[j];
	}
	status = factor(h, n, &t->rope_feedback, &t->rope_weight, &figures->rope_condition);
out:
	free(inverse);
	free(h);
	return status;
}

qmla_status_t qmw_recipe_solve(const struct qmw_sensitivity *sensitivity,
			       const struct qmw_rope *rope, const double *amplitude,
			       struct qmw_transform *transform, struct qmw_layer_figures *figures)
{
	const struct qmw_sensitivity *s = sensitivity;
	qmla_status_t status = solve_content(s, transform, figures);

	if (status == QMLA_OK)
		status = solve_rope(s, rope, amplitude, transform, figures);
	figures->content_mean_share =
		mean_share(s->content_mean, s->content_moment, s->content_dim);
	figures->rope_mean_share = mean_share(s->rope_mean, s->rope_moment, s->rope_dim);
	figures->content_sensitivity = trace(s->content, s->content_dim) / s->content_dim;
	figures->rope_sensitivity = trace(s->rope, s->rope_dim) / s->rope_dim;
	return status;
}

qmla_status_t qmw_recipe_learn(const struct qmw_samples *samples,
			       const struct qmw_method_options *options,
			       struct qmw_transform *transform, struct qmw_layer_figures *figures)
{
	double *amplitude = malloc(samples->config->rope_dim / 2 * sizeof(*amplitude));
	struct qmw_sensitivity sensitivity = {0};
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (amplitude)
		status = qmw_sensitivity_measure(samples, options->probes, &sensitivity);
	if (status == QMLA_OK)
		status = qmw_amplitude_measure(samples, sensitivity.rope_mean, NULL, amplitude);
	if (status == QMLA_OK)
		status = qmw_recipe_solve(&sensitivity, samples->rope, amplitude, transform,
					  figures);
	qmw_sensitivity_free(&sensitivity);
	free(amplitude);
	return status;
}
