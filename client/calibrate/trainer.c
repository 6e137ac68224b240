/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/trainer.h"

#include <stdlib.h>
#include <string.h>

#include "client/calibrate/optimiser.h"

struct trainer {
	const struct qmw_learn_options *options;
	const struct qmw_trainee *trainee;
	size_t count;
	double *parameters, *initial, *gradient, *rates; /* [count] */
	double *best;                                    /* [count], the caller's */
	uint32_t *batch, *held_out;
	uint32_t held_out_count;
	struct qmw_optimiser *optimiser;
	struct qmw_learn_order order;
};

static void trainer_fini(struct trainer *t)
{
	qmw_learn_order_free(&t->order);
	qmw_optimiser_destroy(t->optimiser);
	free(t->held_out);
	free(t->batch);
	free(t->parameters);
}

static qmla_status_t trainer_init(const struct qmw_samples *samples,
				  const struct qmw_learn_options *options,
				  const struct qmw_trainee *trainee, double *best,
				  struct trainer *t)
{
	struct qmw_optimiser_options adam = qmw_optimiser_defaults(options->steps);
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	*t = (struct trainer){.options = options,
			      .trainee = trainee,
			      .count = trainee->own + trainee->scales,
			      .best = best,
			      .held_out_count = samples->held_out};
	t->parameters = calloc(4 * t->count, sizeof(double));
	t->batch = malloc(options->batch * sizeof(*t->batch));
	t->held_out = malloc(samples->held_out * sizeof(*t->held_out));
	if (!t->parameters || !t->batch || !t->held_out)
		goto err_fini;
	t->initial = t->parameters + t->count;
	t->gradient = t->initial + t->count;
	t->rates = t->gradient + t->count;
	for (size_t i = 0; i < t->count; i++)
		t->rates[i] = i < trainee->own ? trainee->own_rate : options->scale_rate;
	for (uint32_t i = 0; i < samples->held_out; i++)
		t->held_out[i] = samples->train + i;
	status = QMLA_OK;
	if (options->steps > 0)
		status = qmw_optimiser_create(&adam, t->count, t->rates, &t->optimiser);
	if (status == QMLA_OK)
		status = qmw_learn_order_init(&t->order, samples, trainee->order);
	if (status == QMLA_OK)
		return QMLA_OK;
err_fini:
	trainer_fini(t);
	return status;
}

/* Held-out loss of the parameters. */
static qmla_status_t validate(const struct trainer *t, double *loss)
{
	return t->trainee->loss(t->trainee->user, t->held_out, t->held_out_count, t->parameters,
				loss, NULL);
}

static qmla_status_t choose_initial(struct trainer *t, const double *amplitude,
				    struct qmw_learn_result *result)
{
	for (int i = 0; i < QMW_LEARN_ALPHAS; i++) {
		double loss;
		qmla_status_t status;

		qmw_learn_initial_scales(amplitude, t->trainee->scales, qmw_learn_alphas[i],
					 t->parameters + t->trainee->own);
		status = validate(t, &loss);
		if (status != QMLA_OK)
			return status;
		if (i == 0)
			result->plain = loss;
		if (i == 0 || loss < result->initial) {
			result->initial = result->best = loss;
			result->alpha = qmw_learn_alphas[i];
			memcpy(t->initial, t->parameters, t->count * sizeof(double));
		}
	}
	memcpy(t->parameters, t->initial, t->count * sizeof(double));
	memcpy(t->best, t->initial, t->count * sizeof(double));
	return QMLA_OK;
}

/* The anchor holds each kind of parameter to where it began: weight times mean squared move. */
static void add_anchor(struct trainer *t)
{
	for (size_t i = 0; i < t->count; i++) {
		double kind = i < t->trainee->own ? (double)t->trainee->own : t->trainee->scales;

		t->gradient[i] +=
			2 * t->options->anchor * (t->parameters[i] - t->initial[i]) / kind;
	}
}

static qmla_status_t step(struct trainer *t)
{
	double loss;
	qmla_status_t status;

	qmw_learn_order_batch(&t->order, t->options->batch, t->batch);
	status = t->trainee->loss(t->trainee->user, t->batch, t->options->batch, t->parameters,
				  &loss, t->gradient);
	if (status != QMLA_OK)
		return status;
	add_anchor(t);
	qmw_optimiser_step(t->optimiser, t->gradient, t->parameters);
	for (size_t i = t->trainee->own; i < t->count; i++)
		t->parameters[i] = qmw_learn_clamp(t->parameters[i]);
	return QMLA_OK;
}

static qmla_status_t run(struct trainer *t, struct qmw_learn_result *result)
{
	const struct qmw_learn_options *o = t->options;

	for (uint32_t done = 1; done <= o->steps; done++) {
		qmla_status_t status = step(t);
		double loss;

		if (status == QMLA_OK && (done % o->validate == 0 || done == o->steps)) {
			status = validate(t, &loss);
			if (status == QMLA_OK && loss < result->best) {
				result->best = loss;
				result->at_step = done;
				memcpy(t->best, t->parameters, t->count * sizeof(double));
			}
		}
		if (status != QMLA_OK)
			return status;
		if (o->progress)
			o->progress(o->user, t->trainee->name, done, o->steps);
	}
	return QMLA_OK;
}

qmla_status_t qmw_train(const struct qmw_samples *samples, const struct qmw_learn_options *options,
			const struct qmw_trainee *trainee, const double *amplitude, double *best,
			struct qmw_learn_result *result)
{
	struct qmw_learn_result found = {0};
	struct trainer t;
	qmla_status_t status = trainer_init(samples, options, trainee, best, &t);

	if (status != QMLA_OK)
		return status;
	status = choose_initial(&t, amplitude, &found);
	if (status == QMLA_OK)
		status = run(&t, &found);
	trainer_fini(&t);
	if (status == QMLA_OK)
		*result = found;
	return status;
}
