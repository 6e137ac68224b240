/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/method.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/amplitude.h"
#include "client/calibrate/learn_content.h"
#include "client/calibrate/learn_rope.h"
#include "client/calibrate/linear.h"
#include "client/calibrate/recipe.h"
#include "common/log.h"

#define COMPONENT         "calibrate"
#define SMOOTHQUANT_ALPHA 0.5
/* Further dampings that are tried, and the factor between them. */
#define RETRIES      3
#define RETRY_FACTOR 10

static const struct {
	const char *name, *recipe;
} methods[] = {
	[QMW_METHOD_DEFAULT] = {"default", QMW_RECIPE_TEXT},
	[QMW_METHOD_PAPER] = {"paper",
			      "QuantMLA, arXiv 2609.36760: learned rotation, scales, angles"},
	[QMW_METHOD_RTN] = {"rtn", "round to nearest, no transform"},
	[QMW_METHOD_SMOOTHQUANT] = {"smoothquant",
				    "diagonal scales, alpha 0.5, tied in RoPE pairs"},
	[QMW_METHOD_QUAROT] = {"quarot", "Hadamard on the content, RoPE untouched"},
};

#define METHODS (sizeof(methods) / sizeof(methods[0]))

qmla_status_t qmw_method_parse(const char *text, enum qmw_method *method)
{
	for (size_t i = 0; i < METHODS; i++) {
		if (strcmp(text, methods[i].name) == 0) {
			*method = (enum qmw_method)i;
			return QMLA_OK;
		}
	}
	return QMLA_ERR_INVALID_ARGUMENT;
}

const char *qmw_method_name(enum qmw_method method)
{
	return methods[method].name;
}

enum qmw_quantiser qmw_method_quantiser(enum qmw_method method)
{
	return method == QMW_METHOD_DEFAULT ? QMW_QUANTISER_DEFAULT : QMW_QUANTISER_PAPER;
}

const char *qmw_method_recipe(enum qmw_method method)
{
	return methods[method].recipe;
}

/* Percentiles of both paths: [d_c] and behind it [d_r / 2]. */
static qmla_status_t measure_amplitudes(const struct qmw_samples *samples, double **amplitude)
{
	size_t d_c = samples->config->content_dim, half = samples->config->rope_dim / 2;
	double *both = malloc((d_c + half) * sizeof(*both));
	qmla_status_t status;

	if (!both)
		return QMLA_ERR_NO_MEMORY;
	status = qmw_amplitude_measure(samples, NULL, both, both + d_c);
	if (status != QMLA_OK) {
		free(both);
		return status;
	}
	*amplitude = both;
	return QMLA_OK;
}

static qmla_status_t learn_paper(const struct qmw_samples *samples,
				 const struct qmw_method_options *options,
				 struct qmw_transform *transform, struct qmw_layer_figures *figures)
{
	struct qmw_learn_options learn = qmw_learn_defaults(options->steps, options->content_bits);
	double *amplitude = NULL;
	qmla_status_t status = measure_amplitudes(samples, &amplitude);

	learn.progress = options->progress;
	learn.user = options->user;
	if (learn.batch > samples->train)
		learn.batch = samples->train;
	if (status == QMLA_OK)
		status = qmw_learn_rope(samples, &learn, amplitude + samples->config->content_dim,
					transform, &figures->rope);
	if (status == QMLA_OK)
		status =
			qmw_learn_content(samples, &learn, amplitude, transform, &figures->content);
	free(amplitude);
	return status;
}

static double *initial_scales(const double *amplitude, uint32_t n)
{
	double *scale = malloc(n * sizeof(*scale));

	if (scale) {
		qmw_learn_initial_scales(amplitude, n, SMOOTHQUANT_ALPHA, scale);
		qmw_learn_scales(scale, n, scale);
	}
	return scale;
}

static qmla_status_t learn_smoothquant(const struct qmw_samples *samples,
				       struct qmw_transform *transform)
{
	uint32_t d_c = transform->content_dim;
	double *amplitude = NULL;
	qmla_status_t status = measure_amplitudes(samples, &amplitude);

	if (status != QMLA_OK)
		return status;
	transform->content_scale = initial_scales(amplitude, d_c);
	transform->rope_scale = initial_scales(amplitude + d_c, transform->rope_dim / 2);
	free(amplitude);
	return transform->content_scale && transform->rope_scale ? QMLA_OK : QMLA_ERR_NO_MEMORY;
}

static qmla_status_t learn_quarot(struct qmw_transform *transform)
{
	uint32_t n = transform->content_dim;

	transform->rotation = malloc((size_t)n * n * sizeof(double));
	if (!transform->rotation)
		return QMLA_ERR_NO_MEMORY;
	qmw_spreading_rotation(n, transform->rotation);
	return QMLA_OK;
}

static qmla_status_t learn(const struct qmw_samples *samples,
			   const struct qmw_method_options *options,
			   struct qmw_transform *transform, struct qmw_layer_figures *figures)
{
	switch (options->method) {
	case QMW_METHOD_PAPER:
		return learn_paper(samples, options, transform, figures);
	case QMW_METHOD_SMOOTHQUANT:
		return learn_smoothquant(samples, transform);
	case QMW_METHOD_QUAROT:
		return learn_quarot(transform);
	case QMW_METHOD_RTN:
		return QMLA_OK;
	default:
		return qmw_recipe_learn(samples, options, transform, figures);
	}
}

static qmla_status_t measure(const struct qmw_samples *samples,
			     const struct qmw_method_options *options,
			     const struct qmw_transform *transform,
			     struct qmw_layer_figures *figures)
{
	const struct qmw_storage storage = {qmw_method_quantiser(options->method),
					    options->content_bits};
	const struct qmw_transform none = {.content_dim = transform->content_dim,
					   .rope_dim = transform->rope_dim};
	struct qmw_stored *stored[2] = {NULL, NULL};
	struct qmw_held_out errors[2];
	qmla_status_t status =
		qmw_stored_create(samples->config, samples->rope, &none, &storage, &stored[0]);

	if (status == QMLA_OK)
		status = qmw_stored_create(samples->config, samples->rope, transform, &storage,
					   &stored[1]);
	if (status == QMLA_OK)
		status = qmw_held_out_measure(
			samples, (const struct qmw_stored *const[]){stored[0], stored[1]}, 2,
			errors);
	qmw_stored_destroy(stored[0]);
	qmw_stored_destroy(stored[1]);
	if (status != QMLA_OK)
		return status;
	figures->before = errors[0];
	figures->after = errors[1];
	return QMLA_OK;
}

/*
 * One try: learned and measured. Sensitivities that have no factors (of few tokens, whose
 * rounding is as large as they are) count as a try that lost everything.
 */
static qmla_status_t attempt(const struct qmw_samples *samples,
			     const struct qmw_method_options *options,
			     struct qmw_transform *transform, struct qmw_layer_figures *figures)
{
	qmla_status_t status;

	memset(figures, 0, sizeof(*figures));
	transform->content_dim = samples->config->content_dim;
	transform->rope_dim = samples->config->rope_dim;
	figures->tokens = (double)samples->train * samples->length;
	figures->damping = options->damping;
	status = learn(samples, options, transform, figures);
	if (status == QMLA_OK)
		status = measure(samples, options, transform, figures);
	if (status == QMLA_ERR_INVALID_ARGUMENT && options->method == QMW_METHOD_DEFAULT) {
		figures->after.both = HUGE_VAL;
		status = QMLA_OK;
	}
	return status;
}

/*
 * Sensitivities of too few tokens fit those and no others: what comes out may be worse than
 * nothing. The held-out sequences show it; more damping leans less on what was measured.
 */
static qmla_status_t damp_more(const struct qmw_samples *samples,
			       const struct qmw_method_options *options,
			       struct qmw_transform *transform, struct qmw_layer_figures *figures)
{
	struct qmw_method_options stronger = *options;
	qmla_status_t status = QMLA_OK;

	qmc_warn(
		COMPONENT,
		"cache layer %u: %.0f tokens are too few for latents of %u numbers: the held-out "
		"error is larger than without calibration; damping is raised, more text helps more",
		samples->cache_layer, figures->tokens, transform->content_dim);
	for (int i = 0; status == QMLA_OK && i < RETRIES; i++) {
		struct qmw_transform found = {0};
		struct qmw_layer_figures measured;

		stronger.damping *= RETRY_FACTOR;
		status = attempt(samples, &stronger, &found, &measured);
		if (status == QMLA_OK && measured.after.both < figures->after.both) {
			qmw_transform_free(transform);
			*transform = found;
			*figures = measured;
		} else {
			qmw_transform_free(&found);
		}
	}
	return status;
}

qmla_status_t qmw_method_learn(const struct qmw_samples *samples,
			       const struct qmw_method_options *options,
			       struct qmw_transform *transform, struct qmw_layer_figures *figures)
{
	bool chosen = options->method == QMW_METHOD_DEFAULT && options->damping <= 0;
	struct qmw_method_options tried = *options;
	qmla_status_t status;

	if (tried.damping <= 0)
		tried.damping = 1;
	status = attempt(samples, &tried, transform, figures);
	if (status == QMLA_OK && chosen && figures->after.both > figures->before.both)
		status = damp_more(samples, &tried, transform, figures);
	if (status == QMLA_OK && !isfinite(figures->after.both)) {
		qmc_error(COMPONENT,
			  "cache layer %u: the sensitivities of %.0f tokens have no factors: give "
			  "more text",
			  samples->cache_layer, figures->tokens);
		status = QMLA_ERR_INVALID_ARGUMENT;
	}
	return status;
}
