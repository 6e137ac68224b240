/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/recipe.h"

#include <stdlib.h>
#include <string.h>

#include "client/calibrate/joint.h"
#include "client/calibrate/recipe_content.h"
#include "client/calibrate/recipe_rope.h"
#include "client/calibrate/rotation_flow.h"

/* Added to the content sensitivity's diagonal, whose mean is 1: few probes leave directions
 * unseen, and coarse codes lean on the matrix more. */
#define DAMPING_4 1e-3
#define DAMPING_2 1e-2

static double mean_share(const double *mean, const double *moment, uint32_t n)
{
	double squares = 0, energy = qmw_trace(moment, n);

	for (uint32_t i = 0; i < n; i++)
		squares += mean[i] * mean[i];
	return energy > 0 ? squares / energy : 0;
}

static qmla_status_t solve_both(const struct qmw_sensitivity *s, const struct qmw_rope *rope,
				const struct qmw_rotation_flow *flow, double damping,
				struct qmw_transform *t, struct qmw_layer_figures *figures)
{
	struct qmw_joint joint = {0};
	double *noise = calloc((size_t)s->content_dim * s->rope_dim, sizeof(*noise));
	qmla_status_t status = noise ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (status == QMLA_OK)
		status = qmw_joint_init(s, damping, &joint);
	if (status == QMLA_OK)
		status = qmw_recipe_rope(&joint, rope, t, figures, noise);
	if (status == QMLA_OK)
		status = qmw_recipe_content(&joint, rope, flow, noise, t, figures);
	qmw_joint_fini(&joint);
	free(noise);
	return status;
}

/* Both paths matter and move: what the error model needs to say anything. */
static bool is_alive(const struct qmw_sensitivity *s)
{
	double rope_mean = 0;

	for (uint32_t i = 0; i < s->rope_dim; i++)
		rope_mean += s->rope_mean[i] * s->rope_mean[i];
	return qmw_trace(s->content, s->content_dim) > 0 && qmw_trace(s->rope, s->rope_dim) > 0 &&
	       qmw_trace(s->rope_moment, s->rope_dim) > rope_mean;
}

static qmla_status_t take_means(const struct qmw_sensitivity *s, const struct qmw_rope *rope,
				struct qmw_transform *t)
{
	t->content_mean = malloc(s->content_dim * sizeof(double));
	t->rope_mean = malloc(s->rope_dim * sizeof(double));
	if (!t->content_mean || !t->rope_mean)
		return QMLA_ERR_NO_MEMORY;
	qmw_recipe_content_mean(t, s->content_mean, t->content_mean);
	if (t->rope_angle)
		qmw_recipe_rope_mean(rope, t, s->rope_mean, t->rope_mean);
	else
		memcpy(t->rope_mean, s->rope_mean, s->rope_dim * sizeof(double));
	return QMLA_OK;
}

qmla_status_t qmw_recipe_solve(const struct qmw_sensitivity *sensitivity,
			       const struct qmw_rope *rope, uint32_t content_bits, double damping,
			       bool (*go_on)(void *user), void *user,
			       struct qmw_transform *transform, struct qmw_layer_figures *figures)
{
	const struct qmw_sensitivity *s = sensitivity;
	struct qmw_rotation_flow flow = qmw_rotation_flow_defaults(content_bits);
	qmla_status_t status = QMLA_OK;

	flow.go_on = go_on;
	flow.user = user;
	figures->content_mean_share =
		mean_share(s->content_mean, s->content_moment, s->content_dim);
	figures->rope_mean_share = mean_share(s->rope_mean, s->rope_moment, s->rope_dim);
	figures->content_sensitivity = qmw_trace(s->content, s->content_dim) / s->content_dim;
	figures->rope_sensitivity = qmw_trace(s->rope, s->rope_dim) / s->rope_dim;
	if (is_alive(s))
		status = solve_both(s, rope, &flow,
				    damping * (content_bits == 2 ? DAMPING_2 : DAMPING_4),
				    transform, figures);
	return status == QMLA_OK ? take_means(s, rope, transform) : status;
}

qmla_status_t qmw_recipe_learn(const struct qmw_samples *samples,
			       const struct qmw_method_options *options,
			       struct qmw_transform *transform, struct qmw_layer_figures *figures)
{
	struct qmw_sensitivity sensitivity = {0};
	qmla_status_t status = qmw_sensitivity_measure(samples, options->probes, &sensitivity);

	if (status == QMLA_OK)
		status = qmw_recipe_solve(&sensitivity, samples->rope, options->content_bits,
					  options->damping, samples->go_on, samples->user,
					  transform, figures);
	qmw_sensitivity_free(&sensitivity);
	return status;
}
