/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/recipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/factor.h"
#include "client/calibrate/feedback_model.h"
#include "client/calibrate/linear.h"
#include "client/calibrate/pair_flow.h"
#include "client/calibrate/rotation_flow.h"

/* What is added to the diagonals: few probes leave directions unseen, coarse codes more so. */
#define CONTENT_DAMPING_4 1e-3
#define CONTENT_DAMPING_2 1e-2

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

/* Second moments less the mean's; a share of the mean variance keeps it positive definite. */
static void covariance(const double *mean, const double *moment, uint32_t n, double *out)
{
	double floor_of;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < n; j++)
			out[(size_t)i * n + j] = moment[(size_t)i * n + j] - mean[i] * mean[j];
	floor_of = 1e-9 * fmax(trace(out, n), 0) / n;
	for (uint32_t i = 0; i < n; i++)
		out[(size_t)i * n + i] = fmax(out[(size_t)i * n + i], 0) + floor_of;
}

static double condition(const double *weight, uint32_t n)
{
	double low = HUGE_VAL, high = 0;

	for (uint32_t i = 0; i < n; i++) {
		low = fmin(low, weight[i]);
		high = fmax(high, weight[i]);
	}
	return high / low;
}

/* ---- content ---- */

struct content {
	const struct qmw_sensitivity *sensitivity;
	uint32_t n, bits;
	double *h, *sigma, *turned, *work; /* [d_c][d_c] */
	struct qmw_feedback_model model;
	bool (*go_on)(void *user);
	void *user;
};

static bool flow_progress(void *user, uint32_t done, uint32_t of)
{
	const struct content *content = user;

	(void)done;
	(void)of;
	return !content->go_on || content->go_on(content->user);
}

static qmla_status_t content_alloc(struct content *c, struct qmw_transform *t)
{
	size_t square = (size_t)c->n * c->n;
	qmla_status_t status = qmw_feedback_model_init(&c->model, c->n);

	if (status != QMLA_OK)
		return status;
	c->h = malloc(4 * square * sizeof(double));
	t->rotation = malloc(square * sizeof(double));
	t->content_feedback = malloc(square * sizeof(double));
	t->content_scale = malloc(c->n * sizeof(double));
	t->content_weight = malloc(c->n * sizeof(double));
	if (!c->h || !t->rotation || !t->content_feedback || !t->content_scale ||
	    !t->content_weight)
		return QMLA_ERR_NO_MEMORY;
	c->sigma = c->h + square;
	c->turned = c->sigma + square;
	c->work = c->turned + square;
	return QMLA_OK;
}

/* out = R^T matrix R */
static void turn(struct content *c, const double *rotation, const double *matrix, double *out)
{
	qmw_square_product(c->n, true, rotation, false, matrix, c->work);
	qmw_square_product(c->n, false, c->work, false, rotation, out);
}

/*
 * Every coordinate's scale makes its target as wide as all others': S_i = 1 / tau_i with a
 * geometric mean of one. In the scaled coordinates A is S A S^-1 and D is D / S^2.
 */
static void take_factors(struct content *c, double noise, struct qmw_transform *t)
{
	uint32_t n = c->n;
	double *tau2 = c->work, *variance = c->work + n, mean = 0;

	for (uint32_t i = 0; i < n; i++)
		variance[i] = c->turned[(size_t)i * n + i];
	qmw_feedback_scaled(&c->model, noise, variance, tau2);
	for (uint32_t i = 0; i < n; i++)
		mean += log(tau2[i]) / n;
	for (uint32_t i = 0; i < n; i++)
		t->content_scale[i] = exp((mean - log(tau2[i])) / 2);
	for (uint32_t i = 0; i < n; i++) {
		const double *s = t->content_scale;

		for (uint32_t j = 0; j < n; j++)
			t->content_feedback[(size_t)i * n + j] =
				c->model.a[(size_t)i * n + j] * (s[i] / s[j]);
		t->content_weight[i] = c->model.d[i] / (s[i] * s[i]);
	}
}

static qmla_status_t solve_rotation(struct content *c, struct qmw_transform *t,
				    struct qmw_layer_figures *figures)
{
	struct qmw_rotation_flow flow = qmw_rotation_flow_defaults(c->bits);
	qmla_status_t status;

	flow.progress = flow_progress;
	flow.user = c;
	qmw_spreading_rotation(c->n, t->rotation);
	status = qmw_rotation_flow_run(&flow, c->n, c->h, c->sigma, t->rotation,
				       &figures->rotation_before, &figures->rotation_after);
	if (status != QMLA_OK)
		return status;
	turn(c, t->rotation, c->h, c->turned);
	status = qmw_feedback_model_set(&c->model, c->turned);
	if (status != QMLA_OK)
		return status;
	turn(c, t->rotation, c->sigma, c->turned);
	take_factors(c, flow.noise, t);
	figures->content_condition = condition(t->content_weight, c->n);
	return QMLA_OK;
}

/* mean R S */
static qmla_status_t content_mean(const struct qmw_sensitivity *s, struct qmw_transform *t)
{
	uint32_t n = s->content_dim;

	t->content_mean = calloc(n, sizeof(double));
	if (!t->content_mean)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < n; j++)
			t->content_mean[j] +=
				s->content_mean[i] *
				(t->rotation ? t->rotation[(size_t)i * n + j] : i == j) *
				(t->content_scale ? t->content_scale[j] : 1);
	return QMLA_OK;
}

static qmla_status_t solve_content(struct content *c, struct qmw_transform *t,
				   struct qmw_layer_figures *figures)
{
	const struct qmw_sensitivity *s = c->sensitivity;
	double damping = c->bits == 2 ? CONTENT_DAMPING_2 : CONTENT_DAMPING_4, mean;
	qmla_status_t status;

	if (!(trace(s->content, c->n) > 0))
		return content_mean(s, t);
	status = content_alloc(c, t);
	if (status != QMLA_OK)
		return status;
	covariance(s->content_mean, s->content_moment, c->n, c->sigma);
	mean = trace(s->content, c->n) / c->n;
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t j = 0; j < c->n; j++)
			c->h[(size_t)i * c->n + j] =
				s->content[(size_t)i * c->n + j] / mean + (i == j ? damping : 0);
	status = solve_rotation(c, t, figures);
	return status == QMLA_OK ? content_mean(s, t) : status;
}

/* ---- RoPE ---- */

/* The mean key through the pairs' transform. */
static void rope_mean(const struct qmw_sensitivity *s, const struct qmw_rope *rope,
		      struct qmw_transform *t)
{
	uint32_t a, b;

	for (uint32_t j = 0; j < rope->dim / 2; j++) {
		double c = cos(t->rope_angle[j]), sine = sin(t->rope_angle[j]);

		qmw_rope_pair(rope, j, &a, &b);
		t->rope_mean[a] = t->rope_scale[j] * (c * s->rope_mean[a] - sine * s->rope_mean[b]);
		t->rope_mean[b] = t->rope_scale[j] * (sine * s->rope_mean[a] + c * s->rope_mean[b]);
	}
}

static qmla_status_t rope_alloc(uint32_t n, struct qmw_transform *t)
{
	t->rope_angle = calloc(n / 2, sizeof(double));
	t->rope_scale = malloc(n / 2 * sizeof(double));
	t->rope_mean = malloc(n * sizeof(double));
	if (!t->rope_angle || !t->rope_scale || !t->rope_mean)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t j = 0; j < n / 2; j++)
		t->rope_scale[j] = 1;
	return QMLA_OK;
}

/* @matrices: [2][d_r][d_r], the sensitivity that counts and scratch. */
static qmla_status_t solve_pairs(const struct qmw_sensitivity *s, const struct qmw_rope *rope,
				 double *matrices, struct qmw_transform *t,
				 struct qmw_layer_figures *figures)
{
	struct qmw_pair_flow flow = qmw_pair_flow_defaults();
	uint32_t n = rope->dim;
	double *sigma = matrices, *turned = matrices + (size_t)n * n;
	qmla_status_t status;

	covariance(s->rope_mean, s->rope_moment, n, sigma);
	if (!(trace(sigma, n) > 0))
		return QMLA_OK;
	status = qmw_pair_flow_run(&flow, rope, s->rope, sigma, t->rope_angle, t->rope_scale);
	if (status != QMLA_OK)
		return status;
	t->rope_feedback = malloc((size_t)n * n * sizeof(double));
	t->rope_weight = malloc(n * sizeof(double));
	if (!t->rope_feedback || !t->rope_weight)
		return QMLA_ERR_NO_MEMORY;
	qmw_pair_flow_sensitivity(rope, t->rope_angle, t->rope_scale, s->rope, turned);
	return qmw_factor(turned, n, flow.damping, t->rope_feedback, t->rope_weight,
			  &figures->rope_condition);
}

static qmla_status_t solve_rope(const struct qmw_sensitivity *s, const struct qmw_rope *rope,
				struct qmw_transform *t, struct qmw_layer_figures *figures)
{
	uint32_t n = s->rope_dim;
	qmla_status_t status = rope_alloc(n, t);
	double *matrices;

	if (status != QMLA_OK)
		return status;
	if (trace(s->rope, n) > 0) {
		matrices = malloc(2 * (size_t)n * n * sizeof(*matrices));
		if (!matrices)
			return QMLA_ERR_NO_MEMORY;
		status = solve_pairs(s, rope, matrices, t, figures);
		free(matrices);
	}
	if (status == QMLA_OK)
		rope_mean(s, rope, t);
	return status;
}

/* ---- both ---- */

qmla_status_t qmw_recipe_solve(const struct qmw_sensitivity *sensitivity,
			       const struct qmw_rope *rope, uint32_t content_bits,
			       bool (*go_on)(void *user), void *user,
			       struct qmw_transform *transform, struct qmw_layer_figures *figures)
{
	const struct qmw_sensitivity *s = sensitivity;
	struct content content = {.sensitivity = s,
				  .n = s->content_dim,
				  .bits = content_bits,
				  .go_on = go_on,
				  .user = user};
	qmla_status_t status = solve_content(&content, transform, figures);

	qmw_feedback_model_fini(&content.model);
	free(content.h);
	if (status == QMLA_OK)
		status = solve_rope(s, rope, transform, figures);
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
	struct qmw_sensitivity sensitivity = {0};
	qmla_status_t status = qmw_sensitivity_measure(samples, options->probes, &sensitivity);

	if (status == QMLA_OK)
		status = qmw_recipe_solve(&sensitivity, samples->rope, options->content_bits,
					  samples->go_on, samples->user, transform, figures);
	qmw_sensitivity_free(&sensitivity);
	return status;
}
