/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/learn_rope.h"

#include <stdlib.h>
#include <string.h>

#include "client/calibrate/optimiser.h"
#include "client/calibrate/rope_loss.h"

/* Parameters are the angles, then the log-scales. */
struct learner {
	const struct qmw_samples *samples;
	const struct qmw_learn_options *options;
	uint32_t half, count;
	double *parameters, *initial, *best, *gradient, *rates; /* [count] */
	uint32_t *batch, *held_out;
	struct qmw_optimiser *optimiser;
	struct qmw_learn_order order;
};

static void learner_fini(struct learner *l)
{
	qmw_learn_order_free(&l->order);
	qmw_optimiser_destroy(l->optimiser);
	free(l->held_out);
	free(l->batch);
	free(l->parameters);
}

static qmla_status_t learner_init(const struct qmw_samples *samples,
				  const struct qmw_learn_options *options, struct learner *l)
{
	struct qmw_optimiser_options adam = qmw_optimiser_defaults(options->steps);
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	*l = (struct learner){.samples = samples,
			      .options = options,
			      .half = samples->config->rope_dim / 2,
			      .count = samples->config->rope_dim};
	l->parameters = calloc(5 * (size_t)l->count, sizeof(double));
	l->batch = malloc(options->batch * sizeof(*l->batch));
	l->held_out = malloc(samples->held_out * sizeof(*l->held_out));
	if (!l->parameters || !l->batch || !l->held_out)
		goto err_fini;
	l->initial = l->parameters + l->count;
	l->best = l->initial + l->count;
	l->gradient = l->best + l->count;
	l->rates = l->gradient + l->count;
	for (uint32_t i = 0; i < l->count; i++)
		l->rates[i] = i < l->half ? options->angle_rate : options->scale_rate;
	for (uint32_t i = 0; i < samples->held_out; i++)
		l->held_out[i] = samples->train + i;
	status = QMLA_OK;
	if (options->steps > 0)
		status = qmw_optimiser_create(&adam, l->count, l->rates, &l->optimiser);
	if (status == QMLA_OK)
		status = qmw_learn_order_init(&l->order, samples, 2);
	if (status == QMLA_OK)
		return QMLA_OK;
err_fini:
	learner_fini(l);
	return status;
}

static qmla_status_t validate(const struct learner *l, double *loss)
{
	return qmw_rope_loss(l->samples, l->held_out, l->samples->held_out, l->parameters,
			     l->parameters + l->half, loss, NULL, NULL);
}

static qmla_status_t choose_initial(struct learner *l, const double *amplitude,
				    struct qmw_learn_result *result)
{
	for (int i = 0; i < QMW_LEARN_ALPHAS; i++) {
		double loss;
		qmla_status_t status;

		qmw_learn_initial_scales(amplitude, l->half, qmw_learn_alphas[i],
					 l->parameters + l->half);
		status = validate(l, &loss);
		if (status != QMLA_OK)
			return status;
		if (i == 0)
			result->plain = loss;
		if (i == 0 || loss < result->initial) {
			result->initial = result->best = loss;
			result->alpha = qmw_learn_alphas[i];
			memcpy(l->initial, l->parameters, l->count * sizeof(double));
		}
	}
	memcpy(l->parameters, l->initial, l->count * sizeof(double));
	memcpy(l->best, l->initial, l->count * sizeof(double));
	return QMLA_OK;
}

static qmla_status_t step(struct learner *l)
{
	double *log_scale = l->parameters + l->half, loss;
	qmla_status_t status;

	qmw_learn_order_batch(&l->order, l->options->batch, l->batch);
	status = qmw_rope_loss(l->samples, l->batch, l->options->batch, l->parameters, log_scale,
			       &loss, l->gradient, l->gradient + l->half);
	if (status != QMLA_OK)
		return status;
	/* The anchor: weight times the mean squared move of each kind. */
	for (uint32_t i = 0; i < l->count; i++)
		l->gradient[i] +=
			2 * l->options->anchor * (l->parameters[i] - l->initial[i]) / l->half;
	qmw_optimiser_step(l->optimiser, l->gradient, l->parameters);
	for (uint32_t i = 0; i < l->half; i++)
		log_scale[i] = qmw_learn_clamp(log_scale[i]);
	return QMLA_OK;
}

static qmla_status_t train(struct learner *l, struct qmw_learn_result *result)
{
	const struct qmw_learn_options *o = l->options;

	for (uint32_t done = 1; done <= o->steps; done++) {
		qmla_status_t status = step(l);
		double loss;

		if (status == QMLA_OK && (done % o->validate == 0 || done == o->steps)) {
			status = validate(l, &loss);
			if (status == QMLA_OK && loss < result->best) {
				result->best = loss;
				result->at_step = done;
				memcpy(l->best, l->parameters, l->count * sizeof(double));
			}
		}
		if (status != QMLA_OK)
			return status;
		if (o->progress)
			o->progress(o->user, "RoPE", done, o->steps);
	}
	return QMLA_OK;
}

static qmla_status_t keep_best(const struct learner *l, struct qmw_transform *transform)
{
	transform->rope_angle = malloc(l->half * sizeof(double));
	transform->rope_scale = malloc(l->half * sizeof(double));
	if (!transform->rope_angle || !transform->rope_scale)
		return QMLA_ERR_NO_MEMORY;
	memcpy(transform->rope_angle, l->best, l->half * sizeof(double));
	qmw_learn_scales(l->best + l->half, l->half, transform->rope_scale);
	return QMLA_OK;
}

qmla_status_t qmw_learn_rope(const struct qmw_samples *samples,
			     const struct qmw_learn_options *options, const double *amplitude,
			     struct qmw_transform *transform, struct qmw_learn_result *result)
{
	struct qmw_learn_result found = {0};
	struct learner l;
	qmla_status_t status = learner_init(samples, options, &l);

	if (status != QMLA_OK)
		return status;
	status = choose_initial(&l, amplitude, &found);
	if (status == QMLA_OK)
		status = train(&l, &found);
	if (status == QMLA_OK)
		status = keep_best(&l, transform);
	learner_fini(&l);
	if (status == QMLA_OK)
		*result = found;
	return status;
}
