/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/learn.h"

#include <math.h>
#include <stdlib.h>

#include "client/calibrate/random.h"

const double qmw_learn_alphas[QMW_LEARN_ALPHAS] = {0, 0.125, 0.25, 0.5, 0.75, 1};

struct qmw_learn_options qmw_learn_defaults(uint32_t steps, uint32_t content_bits)
{
	return (struct qmw_learn_options){.steps = steps,
					  .batch = 4,
					  .validate = 20,
					  .content_bits = content_bits,
					  .rotation_rate = 3e-3,
					  .angle_rate = 1e-3,
					  .scale_rate = 1e-3,
					  .anchor = 1e-4};
}

double qmw_learn_clamp(double log_scale)
{
	return fmax(-QMW_LEARN_LOG_SCALE_MAX, fmin(QMW_LEARN_LOG_SCALE_MAX, log_scale));
}

void qmw_learn_initial_scales(const double *amplitude, uint32_t n, double alpha, double *log_scale)
{
	double mean = 0;

	for (uint32_t i = 0; i < n; i++)
		mean += log(fmax(amplitude[i], 1e-12)) / n;
	for (uint32_t i = 0; i < n; i++)
		log_scale[i] = qmw_learn_clamp(alpha * (mean - log(fmax(amplitude[i], 1e-12))));
}

static void reshuffle(struct qmw_learn_order *order)
{
	struct qmw_random random;

	qmw_random_init(&random, order->seed, QMW_PURPOSE_ORDER, order->epoch++);
	qmw_random_shuffle(&random, order->indices, order->count);
	order->next = 0;
}

qmla_status_t qmw_learn_order_init(struct qmw_learn_order *order, const struct qmw_samples *samples,
				   uint64_t path)
{
	*order = (struct qmw_learn_order){
		.count = samples->train,
		.seed = samples->seed,
		.epoch = (path << 32 | samples->cache_layer) << 24,
	};
	order->indices = malloc(samples->train * sizeof(*order->indices));
	if (!order->indices)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t i = 0; i < samples->train; i++)
		order->indices[i] = i;
	reshuffle(order);
	return QMLA_OK;
}

void qmw_learn_order_free(struct qmw_learn_order *order)
{
	free(order->indices);
	order->indices = NULL;
}

void qmw_learn_order_batch(struct qmw_learn_order *order, uint32_t count, uint32_t *batch)
{
	for (uint32_t i = 0; i < count; i++) {
		if (order->next == order->count)
			reshuffle(order);
		batch[i] = order->indices[order->next++];
	}
}

void qmw_learn_scales(const double *log_scale, uint32_t n, double *scale)
{
	for (uint32_t i = 0; i < n; i++)
		scale[i] = exp(log_scale[i]);
}
