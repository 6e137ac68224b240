/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/pair_flow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/feedback_model.h"
#include "client/calibrate/optimiser.h"

/* The closed form's power. */
#define START_POWER 6.0

struct qmw_pair_flow qmw_pair_flow_defaults(void)
{
	return (struct qmw_pair_flow){.steps = 150, .rate = 0.02, .noise = 0.014, .damping = 2e-3};
}

/*
 * matrix = L matrix L^T with L turning each pair by its angle and multiplying by its factor:
 * rows z = k T have T^T = L for factor s (covariances), and T^-1 = L for 1 / s (sensitivities).
 */
static void transform(const struct qmw_rope *rope, const double *angle, const double *factor,
		      double *matrix)
{
	uint32_t n = rope->dim, a, b;

	for (uint32_t j = 0; j < n / 2; j++) {
		double c = cos(angle[j]) * factor[j], s = sin(angle[j]) * factor[j];

		qmw_rope_pair(rope, j, &a, &b);
		for (uint32_t i = 0; i < n; i++) {
			double x = matrix[(size_t)a * n + i], y = matrix[(size_t)b * n + i];

			matrix[(size_t)a * n + i] = c * x - s * y;
			matrix[(size_t)b * n + i] = s * x + c * y;
		}
		for (uint32_t i = 0; i < n; i++) {
			double x = matrix[(size_t)i * n + a], y = matrix[(size_t)i * n + b];

			matrix[(size_t)i * n + a] = c * x - s * y;
			matrix[(size_t)i * n + b] = s * x + c * y;
		}
	}
}

void qmw_pair_flow_sensitivity(const struct qmw_rope *rope, const double *angle,
			       const double *scale, const double *h, double *out)
{
	double inverse[QMK_MAX_ROPE_DIM / 2];

	for (uint32_t j = 0; j < rope->dim / 2; j++)
		inverse[j] = 1 / scale[j];
	memcpy(out, h, (size_t)rope->dim * rope->dim * sizeof(*out));
	transform(rope, angle, inverse, out);
}

/* Matrices of one evaluation, [n][n] each. */
struct scratch {
	struct qmw_feedback_model model;
	double *h, *damped, *sigma, *to_h, *product;
};

static void scratch_fini(struct scratch *s)
{
	qmw_feedback_model_fini(&s->model);
	free(s->h);
}

static qmla_status_t scratch_init(struct scratch *s, uint32_t n)
{
	size_t square = (size_t)n * n;
	qmla_status_t status;

	memset(s, 0, sizeof(*s));
	status = qmw_feedback_model_init(&s->model, n);
	if (status != QMLA_OK)
		return status;
	s->h = malloc(5 * square * sizeof(double));
	if (!s->h) {
		scratch_fini(s);
		return QMLA_ERR_NO_MEMORY;
	}
	s->damped = s->h + square;
	s->sigma = s->damped + square;
	s->to_h = s->sigma + square;
	s->product = s->to_h + square;
	return QMLA_OK;
}

static double mean_diagonal(const double *matrix, uint32_t n)
{
	double mean = 0;

	for (uint32_t i = 0; i < n; i++)
		mean += matrix[(size_t)i * n + i] / n;
	return mean;
}

/*
 * H0 = L H L^T moves by dL H0 + H0 dL^T with dL = dphi J - dlog s I in a pair, J a right
 * angle; the covariance by the same with + dlog s. The gradient to H0 has the damping's part:
 * H' = H0 + damping mean(diag H0) I.
 */
static void chain(const struct qmw_pair_flow *flow, const struct qmw_rope *rope, struct scratch *s,
		  const double *to_variance, double *angle, double *log_scale)
{
	uint32_t n = rope->dim, a, b;
	double spread = flow->damping * mean_diagonal(s->to_h, n);
	const double *sigma = s->sigma;

	for (uint32_t i = 0; i < n; i++)
		s->to_h[(size_t)i * n + i] += spread;
	for (uint32_t j = 0; j < n / 2; j++) {
		double q[2][2] = {{0}};
		uint32_t at[2];

		qmw_rope_pair(rope, j, &a, &b);
		at[0] = a;
		at[1] = b;
		for (int x = 0; x < 2; x++)
			for (int y = 0; y < 2; y++)
				for (uint32_t i = 0; i < n; i++)
					q[x][y] += s->to_h[(size_t)at[x] * n + i] *
						   s->h[(size_t)i * n + at[y]];
		angle[j] = 2 * (q[1][0] - q[0][1]) +
			   2 * sigma[(size_t)a * n + b] * (to_variance[b] - to_variance[a]);
		log_scale[j] =
			-2 * (q[0][0] + q[1][1]) + 2 * (to_variance[a] * sigma[(size_t)a * n + a] +
							to_variance[b] * sigma[(size_t)b * n + b]);
	}
}

static qmla_status_t evaluate(const struct qmw_pair_flow *flow, const struct qmw_rope *rope,
			      const double *h, const double *covariance, const double *angle,
			      const double *log_scale, struct scratch *s, double *loss,
			      double *angle_gradient, double *log_scale_gradient)
{
	double scale[QMK_MAX_ROPE_DIM / 2] = {0}, variance[QMK_MAX_ROPE_DIM],
					to_variance[QMK_MAX_ROPE_DIM];
	uint32_t n = rope->dim;
	size_t square = (size_t)n * n;
	qmla_status_t status;

	for (uint32_t j = 0; j < n / 2; j++)
		scale[j] = exp(log_scale[j]);
	qmw_pair_flow_sensitivity(rope, angle, scale, h, s->h);
	memcpy(s->damped, s->h, square * sizeof(double));
	for (uint32_t i = 0; i < n; i++)
		s->damped[(size_t)i * n + i] += flow->damping * mean_diagonal(s->h, n);
	memcpy(s->sigma, covariance, square * sizeof(double));
	transform(rope, angle, scale, s->sigma);
	for (uint32_t i = 0; i < n; i++)
		variance[i] = fmax(s->sigma[(size_t)i * n + i], 0);
	status = qmw_feedback_model_set(&s->model, s->damped);
	if (status != QMLA_OK)
		return status;
	*loss = qmw_feedback_common(&s->model, flow->noise, variance,
				    angle_gradient ? s->to_h : NULL, to_variance);
	if (angle_gradient)
		chain(flow, rope, s, to_variance, angle_gradient, log_scale_gradient);
	return QMLA_OK;
}

qmla_status_t qmw_pair_flow_loss(const struct qmw_pair_flow *flow, const struct qmw_rope *rope,
				 const double *h, const double *covariance, const double *angle,
				 const double *log_scale, double *loss, double *angle_gradient,
				 double *log_scale_gradient)
{
	struct scratch scratch;
	qmla_status_t status = scratch_init(&scratch, rope->dim);

	if (status != QMLA_OK)
		return status;
	status = evaluate(flow, rope, h, covariance, angle, log_scale, &scratch, loss,
			  angle_gradient, log_scale_gradient);
	scratch_fini(&scratch);
	return status;
}

/* Pairs that are nowhere, or nowhere felt, count as a millionth of the largest. */
static void start(const struct qmw_rope *rope, const double *h, const double *covariance,
		  double *log_scale)
{
	double felt[QMK_MAX_ROPE_DIM / 2], size[QMK_MAX_ROPE_DIM / 2];
	double most_felt = 0, largest = 0;
	uint32_t n = rope->dim, half = n / 2, a, b;

	for (uint32_t j = 0; j < half; j++) {
		qmw_rope_pair(rope, j, &a, &b);
		felt[j] = h[(size_t)a * n + a] + h[(size_t)b * n + b];
		size[j] = covariance[(size_t)a * n + a] + covariance[(size_t)b * n + b];
		most_felt = fmax(most_felt, felt[j]);
		largest = fmax(largest, size[j]);
	}
	for (uint32_t j = 0; j < half; j++) {
		double f = fmax(felt[j], 1e-6 * most_felt), v = fmax(size[j], 1e-6 * largest);

		log_scale[j] = log(f * v) / (START_POWER + 2) - log(v) / 2;
	}
}

/* The common factor of all scales does nothing: out with it. */
static void center(double *log_scale, uint32_t half)
{
	double mean = 0;

	for (uint32_t j = 0; j < half; j++)
		mean += log_scale[j] / half;
	for (uint32_t j = 0; j < half; j++)
		log_scale[j] -= mean;
}

/* Parameters: angles, then log-scales. */
static qmla_status_t descend(const struct qmw_pair_flow *flow, const struct qmw_rope *rope,
			     const double *h, const double *covariance, struct scratch *s,
			     struct qmw_optimiser *optimiser, double *parameters, double *best)
{
	double gradient[QMK_MAX_ROPE_DIM], least = HUGE_VAL, loss;
	uint32_t half = rope->dim / 2;

	for (uint32_t step = 0; step <= flow->steps; step++) {
		qmla_status_t status =
			evaluate(flow, rope, h, covariance, parameters, parameters + half, s, &loss,
				 gradient, gradient + half);

		if (status != QMLA_OK)
			return status;
		if (loss < least) {
			least = loss;
			memcpy(best, parameters, rope->dim * sizeof(*best));
		}
		if (step < flow->steps)
			qmw_optimiser_step(optimiser, gradient, parameters);
	}
	return QMLA_OK;
}

qmla_status_t qmw_pair_flow_run(const struct qmw_pair_flow *flow, const struct qmw_rope *rope,
				const double *h, const double *covariance, double *angle,
				double *scale)
{
	double parameters[QMK_MAX_ROPE_DIM] = {0}, best[QMK_MAX_ROPE_DIM], rates[QMK_MAX_ROPE_DIM];
	struct qmw_optimiser_options adam = qmw_optimiser_defaults(flow->steps);
	struct qmw_optimiser *optimiser = NULL;
	uint32_t half = rope->dim / 2;
	struct scratch scratch;
	qmla_status_t status = scratch_init(&scratch, rope->dim);

	if (status != QMLA_OK)
		return status;
	adam.warm_up = adam.clip_norm = 0;
	for (uint32_t i = 0; i < rope->dim; i++)
		rates[i] = flow->rate;
	start(rope, h, covariance, parameters + half);
	status = qmw_optimiser_create(&adam, rope->dim, rates, &optimiser);
	if (status == QMLA_OK)
		status = descend(flow, rope, h, covariance, &scratch, optimiser, parameters, best);
	qmw_optimiser_destroy(optimiser);
	scratch_fini(&scratch);
	if (status != QMLA_OK)
		return status;
	center(best + half, half);
	for (uint32_t j = 0; j < half; j++) {
		angle[j] = best[j];
		scale[j] = exp(best[half + j]);
	}
	return QMLA_OK;
}
