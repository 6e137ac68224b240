/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/learn_content.h"

#include <stdlib.h>

#include "client/calibrate/cayley.h"
#include "client/calibrate/content_loss.h"
#include "client/calibrate/trainer.h"

/* Parameters are the Cayley triangle, then the log-scales. */
struct content {
	const struct qmw_samples *samples;
	uint32_t dim, bits;
	size_t triangle;
	double *rotation, *rotation_gradient; /* [d_c][d_c] */
	struct qmw_cayley *cayley;
};

static qmla_status_t content_loss(void *user, const uint32_t *indices, uint32_t count,
				  const double *parameters, double *loss, double *gradient)
{
	struct content *c = user;
	qmla_status_t status = qmw_cayley_rotation(c->cayley, parameters, c->rotation);

	if (status == QMLA_OK)
		status = qmw_content_loss(c->samples, indices, count, c->bits, c->rotation,
					  parameters + c->triangle, loss,
					  gradient ? c->rotation_gradient : NULL,
					  gradient ? gradient + c->triangle : NULL);
	if (status == QMLA_OK && gradient)
		status = qmw_cayley_gradient(c->cayley, c->rotation_gradient, gradient);
	return status;
}

static void content_fini(struct content *c)
{
	qmw_cayley_destroy(c->cayley);
	free(c->rotation_gradient);
	free(c->rotation);
}

static qmla_status_t content_init(const struct qmw_samples *samples, uint32_t bits,
				  struct content *c)
{
	uint32_t dim = samples->config->content_dim;
	size_t square = (size_t)dim * dim;
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	*c = (struct content){.samples = samples,
			      .dim = dim,
			      .bits = bits,
			      .triangle = qmw_cayley_parameters(dim),
			      .rotation = malloc(square * sizeof(double)),
			      .rotation_gradient = malloc(square * sizeof(double))};
	if (c->rotation && c->rotation_gradient)
		status = qmw_cayley_create(dim, NULL, &c->cayley);
	if (status != QMLA_OK)
		content_fini(c);
	return status;
}

/* The rotation's array becomes the transform's. */
static qmla_status_t take_over(struct content *c, const double *best,
			       struct qmw_transform *transform)
{
	qmla_status_t status = qmw_cayley_rotation(c->cayley, best, c->rotation);

	if (status != QMLA_OK)
		return status;
	transform->content_scale = malloc(c->dim * sizeof(double));
	if (!transform->content_scale)
		return QMLA_ERR_NO_MEMORY;
	qmw_learn_scales(best + c->triangle, c->dim, transform->content_scale);
	transform->rotation = c->rotation;
	c->rotation = NULL;
	return QMLA_OK;
}

static qmla_status_t learn(struct content *c, const struct qmw_learn_options *options,
			   const double *amplitude, struct qmw_transform *transform,
			   struct qmw_learn_result *result)
{
	const struct qmw_trainee trainee = {.name = "content",
					    .order = 1,
					    .own = c->triangle,
					    .scales = c->dim,
					    .own_rate = options->rotation_rate,
					    .user = c,
					    .loss = content_loss};
	struct qmw_learn_result found;
	double *best = malloc((c->triangle + c->dim) * sizeof(*best));
	qmla_status_t status =
		best ? qmw_train(c->samples, options, &trainee, amplitude, best, &found)
		     : QMLA_ERR_NO_MEMORY;

	if (status == QMLA_OK)
		status = take_over(c, best, transform);
	free(best);
	if (status == QMLA_OK)
		*result = found;
	return status;
}

qmla_status_t qmw_learn_content(const struct qmw_samples *samples,
				const struct qmw_learn_options *options, const double *amplitude,
				struct qmw_transform *transform, struct qmw_learn_result *result)
{
	struct content content;
	qmla_status_t status = content_init(samples, options->content_bits, &content);

	if (status != QMLA_OK)
		return status;
	status = learn(&content, options, amplitude, transform, result);
	content_fini(&content);
	return status;
}
