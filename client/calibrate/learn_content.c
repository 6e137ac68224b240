/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/learn_content.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/cayley.h"
#include "client/calibrate/content_loss.h"
#include "client/calibrate/optimiser.h"

/* Everything of one run: parameters are the Cayley triangle, then the log-scales. */
struct learner {
	const struct qmw_samples *samples;
	const struct qmw_learn_options *options;
	uint32_t dim;
	size_t triangle, count;
	double *parameters, *initial, *best, *gradient, *rates; /* [count] */
	double *rotation, *rotation_gradient;                   /* [d_c][d_c] */
	uint32_t *batch, *held_out;
	struct qmw_cayley *cayley;
	struct qmw_optimiser *optimiser;
	struct qmw_learn_order order;
};

static void learner_fini(struct learner *l)
{
	qmw_learn_order_free(&l->order);
	qmw_optimiser_destroy(l->optimiser);
	qmw_cayley_destroy(l->cayley);
	free(l->held_out);
	free(l->batch);
	free(l->rotation);
	free(l->parameters);
}

static qmla_status_t learner_init(const struct qmw_samples *samples,
				  const struct qmw_learn_options *options, struct learner *l)
{
	uint32_t dim = samples->config->content_dim;
	size_t square = (size_t)dim * dim;
	struct qmw_optimiser_options adam = qmw_optimiser_defaults(options->steps);
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	*l = (struct learner){.samples = samples, .options = options, .dim = dim};
	l->triangle = qmw_cayley_parameters(dim);
	l->count = l->triangle + dim;
	l->parameters = calloc(5 * l->count, sizeof(double));
	l->rotation = malloc(2 * square * sizeof(double));
	l->batch = malloc(options->batch * sizeof(*l->batch));
	l->held_out = malloc(samples->held_out * sizeof(*l->held_out));
	if (!l->parameters || !l->rotation || !l->batch || !l->held_out)
		goto err_fini;
	l->initial = l->parameters + l->count;
	l->best = l->initial + l->count;
	l->gradient = l->best + l->count;
	l->rates = l->gradient + l->count;
	l->rotation_gradient = l->rotation + square;
	for (size_t i = 0; i < l->count; i++)
		l->rates[i] = i < l->triangle ? options->rotation_rate : options->scale_rate;
	for (uint32_t i = 0; i < samples->held_out; i++)
		l->held_out[i] = samples->train + i;
	status = qmw_cayley_create(dim, NULL, &l->cayley);
	if (status == QMLA_OK && options->steps > 0)
		status = qmw_optimiser_create(&adam, l->count, l->rates, &l->optimiser);
	if (status == QMLA_OK)
		status = qmw_learn_order_init(&l->order, samples, 1);
	if (status == QMLA_OK)
		return QMLA_OK;
err_fini:
	learner_fini(l);
	return status;
}

/* Held-out loss of the parameters. */
static qmla_status_t validate(struct learner *l, double *loss)
{
	qmla_status_t status = qmw_cayley_rotation(l->cayley, l->parameters, l->rotation);

	if (status != QMLA_OK)
		return status;
	return qmw_content_loss(l->samples, l->held_out, l->samples->held_out,
				l->options->content_bits, l->rotation, l->parameters + l->triangle,
				loss, NULL, NULL);
}

static qmla_status_t choose_initial(struct learner *l, const double *amplitude,
				    struct qmw_learn_result *result)
{
	double *log_scale = l->parameters + l->triangle;

	for (int i = 0; i < QMW_LEARN_ALPHAS; i++) {
		double loss;
		qmla_status_t status;

		qmw_learn_initial_scales(amplitude, l->dim, qmw_learn_alphas[i], log_scale);
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

/* The anchor holds each kind of parameter to where it began: weight times mean squared move. */
static void add_anchor(struct learner *l)
{
	for (size_t i = 0; i < l->count; i++) {
		double kind = i < l->triangle ? (double)l->triangle : l->dim;

		l->gradient[i] +=
			2 * l->options->anchor * (l->parameters[i] - l->initial[i]) / kind;
	}
}

static qmla_status_t step(struct learner *l)
{
	double *log_scale = l->parameters + l->triangle, loss;
	qmla_status_t status = qmw_cayley_rotation(l->cayley, l->parameters, l->rotation);

	qmw_learn_order_batch(&l->order, l->options->batch, l->batch);
	if (status == QMLA_OK)
		status = qmw_content_loss(l->samples, l->batch, l->options->batch,
					  l->options->content_bits, l->rotation, log_scale, &loss,
					  l->rotation_gradient, l->gradient + l->triangle);
	if (status == QMLA_OK)
		status = qmw_cayley_gradient(l->cayley, l->rotation_gradient, l->gradient);
	if (status != QMLA_OK)
		return status;
	add_anchor(l);
	qmw_optimiser_step(l->optimiser, l->gradient, l->parameters);
	for (uint32_t i = 0; i < l->dim; i++)
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
			o->progress(o->user, "content", done, o->steps);
	}
	return QMLA_OK;
}

/* The transform takes over the rotation's array. */
static qmla_status_t keep_best(struct learner *l, struct qmw_transform *transform)
{
	size_t square = (size_t)l->dim * l->dim;
	qmla_status_t status = qmw_cayley_rotation(l->cayley, l->best, l->rotation);

	if (status != QMLA_OK)
		return status;
	transform->rotation = malloc(square * sizeof(double));
	transform->content_scale = malloc(l->dim * sizeof(double));
	if (!transform->rotation || !transform->content_scale)
		return QMLA_ERR_NO_MEMORY;
	memcpy(transform->rotation, l->rotation, square * sizeof(double));
	qmw_learn_scales(l->best + l->triangle, l->dim, transform->content_scale);
	return QMLA_OK;
}

qmla_status_t qmw_learn_content(const struct qmw_samples *samples,
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
