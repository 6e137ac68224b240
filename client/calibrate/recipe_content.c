/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/recipe_content.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/feedback_model.h"
#include "client/calibrate/linear.h"
#include "kernels/numeric.h"

/* Scratch of one layer: [d_c][d_c] each. */
struct scratch {
	uint32_t n;
	double *sigma, *turned, *work;
	struct qmw_feedback_model model;
};

static void scratch_fini(struct scratch *s)
{
	qmw_feedback_model_fini(&s->model);
	free(s->sigma);
}

static qmla_status_t scratch_init(struct scratch *s, uint32_t n)
{
	size_t square = (size_t)n * n;
	qmla_status_t status = qmw_feedback_model_init(&s->model, n);

	s->n = n;
	s->sigma = NULL;
	if (status != QMLA_OK)
		return status;
	s->sigma = malloc(3 * square * sizeof(double));
	if (!s->sigma) {
		scratch_fini(s);
		return QMLA_ERR_NO_MEMORY;
	}
	s->turned = s->sigma + square;
	s->work = s->turned + square;
	return QMLA_OK;
}

static qmla_status_t alloc(const struct qmw_joint *joint, struct qmw_transform *t)
{
	size_t n = joint->content_dim;

	t->rotation = malloc(n * n * sizeof(double));
	t->content_feedback = malloc(n * n * sizeof(double));
	t->content_scale = malloc(n * sizeof(double));
	t->content_weight = malloc(n * sizeof(double));
	t->cross_feedback = malloc(n * joint->rope_dim * sizeof(double));
	return t->rotation && t->content_feedback && t->content_scale && t->content_weight &&
			       t->cross_feedback
		       ? QMLA_OK
		       : QMLA_ERR_NO_MEMORY;
}

/* out = R^T matrix R */
static void turn(struct scratch *s, const double *rotation, const double *matrix, double *out)
{
	qmw_square_product(s->n, true, rotation, false, matrix, s->work);
	qmw_square_product(s->n, false, s->work, false, rotation, out);
}

/* The scales become the weight of a norm that is stored as BF16: with its values from here on,
 * all that follows from them fits. */
static double as_stored(double scale)
{
	return qmk_bf16_to_float(qmk_float_to_bf16((float)scale));
}

/*
 * Every coordinate's scale makes its target as wide as all others': S_i = 1 / tau_i with a
 * geometric mean of one. In the scaled coordinates A is S A S^-1 and D is D / S^2.
 */
static void take_factors(struct scratch *s, double noise, struct qmw_transform *t)
{
	uint32_t n = s->n;
	double *tau2 = s->work, *variance = s->work + n, mean = 0, floor_of;
	double *scale = t->content_scale;

	floor_of = 1e-5 * qmw_trace(s->turned, n) / n;
	for (uint32_t i = 0; i < n; i++)
		variance[i] = s->turned[(size_t)i * n + i] + floor_of;
	qmw_feedback_scaled(&s->model, noise, variance, tau2);
	for (uint32_t i = 0; i < n; i++)
		mean += log(tau2[i]) / n;
	for (uint32_t i = 0; i < n; i++)
		scale[i] = as_stored(exp((mean - log(tau2[i])) / 2));
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < n; j++)
			t->content_feedback[(size_t)i * n + j] =
				s->model.a[(size_t)i * n + j] * (scale[i] / scale[j]);
		t->content_weight[i] = s->model.d[i] / (scale[i] * scale[i]);
	}
}

/* X = S D^-1 B^T (R^T H_x T^-T) */
static qmla_status_t take_cross(const struct qmw_joint *joint, const struct qmw_rope *rope,
				const struct scratch *s, struct qmw_transform *t)
{
	uint32_t n = joint->content_dim, m = joint->rope_dim;
	blasint d_c = (blasint)n, d_r = (blasint)m;
	double *turned = malloc((size_t)n * m * sizeof(*turned)), *x = t->cross_feedback;

	if (!turned)
		return QMLA_ERR_NO_MEMORY;
	memcpy(turned, joint->cross, (size_t)n * m * sizeof(*turned));
	qmw_joint_turn_rows(rope, t->rope_angle, t->rope_scale, n, turned);
	cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, d_c, d_r, d_c, 1, t->rotation, d_c,
		    turned, d_r, 0, x, d_r);
	cblas_dtrmm(CblasRowMajor, CblasLeft, CblasLower, CblasTrans, CblasUnit, d_c, d_r, 1,
		    s->model.b, d_c, x, d_r);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < m; j++)
			x[(size_t)i * m + j] *= t->content_scale[i] / s->model.d[i];
	free(turned);
	return QMLA_OK;
}

/* Rows' covariance, and what taking back RoPE errors adds to it. */
static void widened(const struct qmw_joint *joint, const double *noise, double *sigma)
{
	uint32_t n = joint->content_dim;
	blasint d_c = (blasint)n, d_r = (blasint)joint->rope_dim;

	memcpy(sigma, joint->content_covariance, (size_t)n * n * sizeof(*sigma));
	cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, d_c, d_c, d_r, 1, noise, d_r, noise,
		    d_r, 1, sigma, d_c);
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

qmla_status_t qmw_recipe_content(const struct qmw_joint *joint, const struct qmw_rope *rope,
				 const struct qmw_rotation_flow *flow, const double *noise,
				 struct qmw_transform *transform, struct qmw_layer_figures *figures)
{
	struct qmw_transform *t = transform;
	struct scratch s;
	qmla_status_t status = scratch_init(&s, joint->content_dim);

	if (status != QMLA_OK)
		return status;
	status = alloc(joint, t);
	if (status != QMLA_OK)
		goto out;
	widened(joint, noise, s.sigma);
	qmw_spreading_rotation(s.n, t->rotation);
	status = qmw_rotation_flow_run(flow, s.n, joint->content, s.sigma, t->rotation,
				       &figures->rotation_before, &figures->rotation_after);
	if (status == QMLA_OK) {
		turn(&s, t->rotation, joint->content, s.turned);
		status = qmw_feedback_model_set(&s.model, s.turned);
	}
	if (status == QMLA_OK) {
		turn(&s, t->rotation, s.sigma, s.turned);
		take_factors(&s, flow->noise, t);
		figures->content_condition = condition(t->content_weight, s.n);
		status = take_cross(joint, rope, &s, t);
	}
out:
	scratch_fini(&s);
	return status;
}

void qmw_recipe_content_mean(const struct qmw_transform *transform, const double *mean, double *out)
{
	uint32_t n = transform->content_dim;

	memset(out, 0, n * sizeof(*out));
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < n; j++)
			out[j] += mean[i] *
				  (transform->rotation ? transform->rotation[(size_t)i * n + j]
						       : i == j) *
				  (transform->content_scale ? transform->content_scale[j] : 1);
}
