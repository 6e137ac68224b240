/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/optimiser.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct qmw_optimiser {
	struct qmw_optimiser_options options;
	size_t count;
	uint32_t step;
	double *rates, *first, *second; /* [count]; one allocation */
};

struct qmw_optimiser_options qmw_optimiser_defaults(uint32_t steps)
{
	return (struct qmw_optimiser_options){.steps = steps,
					      .warm_up = 0.1,
					      .beta1 = 0.9,
					      .beta2 = 0.999,
					      .epsilon = 1e-8,
					      .clip_norm = 1.0};
}

qmla_status_t qmw_optimiser_create(const struct qmw_optimiser_options *options, size_t count,
				   const double *rates, struct qmw_optimiser **optimiser)
{
	struct qmw_optimiser *self;

	if (options->steps == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	self = malloc(sizeof(*self));
	if (!self)
		return QMLA_ERR_NO_MEMORY;
	*self = (struct qmw_optimiser){.options = *options, .count = count};
	self->rates = calloc(3 * count + 1, sizeof(double));
	if (!self->rates) {
		free(self);
		return QMLA_ERR_NO_MEMORY;
	}
	self->first = self->rates + count;
	self->second = self->first + count;
	memcpy(self->rates, rates, count * sizeof(double));
	*optimiser = self;
	return QMLA_OK;
}

void qmw_optimiser_destroy(struct qmw_optimiser *optimiser)
{
	if (optimiser)
		free(optimiser->rates);
	free(optimiser);
}

double qmw_optimiser_schedule(const struct qmw_optimiser_options *options, uint32_t step)
{
	double warm = ceil(options->warm_up * options->steps);
	double done = step + 1.0;
	double rest = fmax(options->steps - warm, 1);

	if (done <= warm)
		return done / warm;
	return 0.5 * (1 + cos(acos(-1.0) * fmin((done - warm) / rest, 1)));
}

static double clip(const struct qmw_optimiser *self, double *gradient)
{
	double squares = 0, norm;

	for (size_t i = 0; i < self->count; i++)
		squares += gradient[i] * gradient[i];
	norm = sqrt(squares);
	if (self->options.clip_norm > 0 && norm > self->options.clip_norm)
		for (size_t i = 0; i < self->count; i++)
			gradient[i] *= self->options.clip_norm / norm;
	return norm;
}

double qmw_optimiser_step(struct qmw_optimiser *optimiser, double *gradient, double *parameters)
{
	const struct qmw_optimiser_options *o = &optimiser->options;
	double norm = clip(optimiser, gradient);
	double schedule = qmw_optimiser_schedule(o, optimiser->step);
	double bias1, bias2;

	optimiser->step++;
	bias1 = 1 - pow(o->beta1, optimiser->step);
	bias2 = 1 - pow(o->beta2, optimiser->step);
	for (size_t i = 0; i < optimiser->count; i++) {
		double rate = schedule * optimiser->rates[i], g = gradient[i];
		double *first = &optimiser->first[i], *second = &optimiser->second[i];

		*first = o->beta1 * *first + (1 - o->beta1) * g;
		*second = o->beta2 * *second + (1 - o->beta2) * g * g;
		parameters[i] -= rate * o->decay * parameters[i];
		parameters[i] -= rate * (*first / bias1) / (sqrt(*second / bias2) + o->epsilon);
	}
	return norm;
}
