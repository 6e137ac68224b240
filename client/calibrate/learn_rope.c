/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/learn_rope.h"

#include <stdlib.h>
#include <string.h>

#include "client/calibrate/rope_loss.h"
#include "client/calibrate/trainer.h"

/* Parameters are the angles, then the log-scales. */
static qmla_status_t rope_loss(void *user, const uint32_t *indices, uint32_t count,
			       const double *parameters, double *loss, double *gradient)
{
	const struct qmw_samples *samples = user;
	uint32_t half = samples->config->rope_dim / 2;

	return qmw_rope_loss(samples, indices, count, parameters, parameters + half, loss, gradient,
			     gradient ? gradient + half : NULL);
}

static qmla_status_t take_over(const double *best, uint32_t half, struct qmw_transform *transform)
{
	transform->rope_angle = malloc(half * sizeof(double));
	transform->rope_scale = malloc(half * sizeof(double));
	if (!transform->rope_angle || !transform->rope_scale)
		return QMLA_ERR_NO_MEMORY;
	memcpy(transform->rope_angle, best, half * sizeof(double));
	qmw_learn_scales(best + half, half, transform->rope_scale);
	return QMLA_OK;
}

qmla_status_t qmw_learn_rope(const struct qmw_samples *samples,
			     const struct qmw_learn_options *options, const double *amplitude,
			     struct qmw_transform *transform, struct qmw_learn_result *result)
{
	uint32_t half = samples->config->rope_dim / 2;
	const struct qmw_trainee trainee = {.name = "RoPE",
					    .order = 2,
					    .own = half,
					    .scales = half,
					    .own_rate = options->angle_rate,
					    .user = (void *)(uintptr_t)samples,
					    .loss = rope_loss};
	struct qmw_learn_result found;
	double *best = malloc(2 * half * sizeof(*best));
	qmla_status_t status = best ? qmw_train(samples, options, &trainee, amplitude, best, &found)
				    : QMLA_ERR_NO_MEMORY;

	if (status == QMLA_OK)
		status = take_over(best, half, transform);
	free(best);
	if (status == QMLA_OK)
		*result = found;
	return status;
}
