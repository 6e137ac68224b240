/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/recipe_rope.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/factor.h"
#include "client/calibrate/feedback_model.h"
#include "client/calibrate/pair_flow.h"

void qmw_recipe_rope_mean(const struct qmw_rope *rope, const struct qmw_transform *transform,
			  const double *mean, double *out)
{
	uint32_t a, b;

	for (uint32_t j = 0; j < rope->dim / 2; j++) {
		double c = cos(transform->rope_angle[j]), s = sin(transform->rope_angle[j]);

		qmw_rope_pair(rope, j, &a, &b);
		out[a] = transform->rope_scale[j] * (c * mean[a] - s * mean[b]);
		out[b] = transform->rope_scale[j] * (s * mean[a] + c * mean[b]);
	}
}

/* Variances of the transformed keys' coordinates. */
static void variances(const struct qmw_joint *joint, const struct qmw_rope *rope,
		      const struct qmw_transform *t, double *variance)
{
	const double *sigma = joint->rope_covariance;
	uint32_t n = rope->dim, a, b;

	for (uint32_t j = 0; j < n / 2; j++) {
		double c = cos(t->rope_angle[j]), s = sin(t->rope_angle[j]), aa, ab, bb;
		double square = t->rope_scale[j] * t->rope_scale[j];

		qmw_rope_pair(rope, j, &a, &b);
		aa = sigma[(size_t)a * n + a];
		ab = sigma[(size_t)a * n + b];
		bb = sigma[(size_t)b * n + b];
		variance[a] = square * (c * c * aa - 2 * c * s * ab + s * s * bb);
		variance[b] = square * (s * s * aa + 2 * c * s * ab + c * c * bb);
	}
}

/* noise = G T^-T B, times the size of a rounding error. */
static void response_noise(const struct qmw_joint *joint, const struct qmw_rope *rope,
			   const struct qmw_transform *t, const struct qmw_feedback_model *model,
			   double size, double *noise)
{
	blasint d_c = (blasint)joint->content_dim, d_r = (blasint)joint->rope_dim;

	memcpy(noise, joint->response,
	       (size_t)joint->content_dim * joint->rope_dim * sizeof(*noise));
	qmw_joint_turn_rows(rope, t->rope_angle, t->rope_scale, joint->content_dim, noise);
	cblas_dtrmm(CblasRowMajor, CblasRight, CblasLower, CblasNoTrans, CblasUnit, d_c, d_r, size,
		    model->b, d_r, noise, d_r);
}

static qmla_status_t alloc(uint32_t n, struct qmw_transform *t)
{
	t->rope_angle = calloc(n / 2, sizeof(double));
	t->rope_scale = malloc(n / 2 * sizeof(double));
	t->rope_feedback = malloc((size_t)n * n * sizeof(double));
	t->rope_weight = malloc(n * sizeof(double));
	return t->rope_angle && t->rope_scale && t->rope_feedback && t->rope_weight
		       ? QMLA_OK
		       : QMLA_ERR_NO_MEMORY;
}

qmla_status_t qmw_recipe_rope(const struct qmw_joint *joint, const struct qmw_rope *rope,
			      struct qmw_transform *transform, struct qmw_layer_figures *figures,
			      double *noise)
{
	struct qmw_pair_flow flow = qmw_pair_flow_defaults();
	struct qmw_feedback_model model = {0};
	double variance[QMK_MAX_ROPE_DIM], *damped;
	uint32_t n = rope->dim;
	qmla_status_t status = alloc(n, transform);

	if (status != QMLA_OK)
		return status;
	damped = malloc((size_t)n * n * sizeof(*damped));
	status = damped ? qmw_feedback_model_init(&model, n) : QMLA_ERR_NO_MEMORY;
	if (status == QMLA_OK)
		status = qmw_pair_flow_run(&flow, rope, joint->rope, joint->rope_covariance,
					   transform->rope_angle, transform->rope_scale);
	if (status == QMLA_OK) {
		qmw_pair_flow_sensitivity(rope, transform->rope_angle, transform->rope_scale,
					  joint->rope, damped);
		status = qmw_factor(damped, n, flow.damping, transform->rope_feedback,
				    transform->rope_weight, &figures->rope_condition);
	}
	if (status == QMLA_OK) {
		double mean = qmw_trace(damped, n) / n;

		for (uint32_t i = 0; i < n; i++)
			damped[(size_t)i * n + i] += flow.damping * mean;
		status = qmw_feedback_model_set(&model, damped);
	}
	if (status == QMLA_OK) {
		variances(joint, rope, transform, variance);
		response_noise(
			joint, rope, transform, &model,
			sqrt(flow.noise * qmw_feedback_common_width(&model, flow.noise, variance)),
			noise);
	}
	qmw_feedback_model_fini(&model);
	free(damped);
	return status;
}
