/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/content_loss.h"

#include <stdbool.h>
#include <stdlib.h>

#include "client/calibrate/content_map.h"
#include "client/calibrate/fake_paper.h"
#include "client/calibrate/learn.h"
#include "kernels/layout.h"

struct slot {
	double loss;
	float *forward, *back; /* [d_c][d_c] gradients of F and B */
};

struct pass {
	const struct qmw_samples *samples;
	struct qmw_content_map map;
	struct qmw_fake_paper quantiser;
	bool gradient;
	struct slot *slots;
	double loss;
	double *forward, *back; /* [d_c][d_c] sums */
};

/* Rows of one sequence on their way through the cache. */
struct rows {
	float *z, *stored, *restored, *gradient, *output;
};

static qmla_status_t rows_alloc(const struct pass *pass, struct rows *rows)
{
	size_t n = pass->samples->length, count = n * pass->map.dim;
	size_t outputs = n * pass->samples->config->hidden;

	rows->z = malloc((4 * count + outputs) * sizeof(float));
	if (!rows->z)
		return QMLA_ERR_NO_MEMORY;
	rows->stored = rows->z + count;
	rows->restored = rows->stored + count;
	rows->gradient = rows->restored + count;
	rows->output = rows->gradient + count;
	return QMLA_OK;
}

/* restored's memory is free once the loss is known: it takes dL/dz. */
static void chain_gradient(const struct pass *pass, const struct qmw_sample *sample,
			   const struct rows *rows, const struct slot *slot)
{
	size_t n = pass->samples->length;
	uint32_t dim = pass->map.dim;

	qmw_content_map_gradient_product(dim, n, rows->stored, rows->gradient, slot->back);
	qmw_content_map_gradient_rows(&pass->map, n, rows->gradient, rows->restored);
	qmw_fake_paper_gradient(&pass->quantiser, n, dim, rows->z, rows->restored);
	qmw_content_map_gradient_product(dim, n, qmw_passage_content(sample->passage),
					 rows->restored, slot->forward);
}

static qmla_status_t evaluate(void *user, const struct qmw_sample *sample)
{
	const struct pass *pass = user;
	struct slot *slot = &pass->slots[sample->slot];
	size_t n = pass->samples->length;
	struct qmw_rows cache = {0};
	struct rows rows;
	qmla_status_t status = rows_alloc(pass, &rows);

	if (status != QMLA_OK)
		return status;
	qmw_content_map_forward(&pass->map, n, qmw_passage_content(sample->passage), rows.z);
	qmw_fake_paper_apply(&pass->quantiser, n, pass->map.dim, rows.z, rows.stored);
	qmw_content_map_back(&pass->map, n, rows.stored, rows.restored);
	cache.content = rows.restored;
	status = qmw_row_file_read(pass->samples->outputs, sample->index, rows.output);
	if (status == QMLA_OK)
		status = qmw_passage_loss(sample->passage, &cache, rows.output, &slot->loss,
					  pass->gradient ? rows.gradient : NULL, NULL);
	if (status == QMLA_OK && pass->gradient)
		chain_gradient(pass, sample, &rows, slot);
	free(rows.z);
	return status;
}

static void take(void *user, uint32_t index, uint32_t slot)
{
	struct pass *pass = user;
	size_t count = (size_t)pass->map.dim * pass->map.dim;

	(void)index;
	pass->loss += pass->slots[slot].loss;
	for (size_t i = 0; pass->gradient && i < count; i++) {
		pass->forward[i] += pass->slots[slot].forward[i];
		pass->back[i] += pass->slots[slot].back[i];
	}
}

static void pass_fini(struct pass *pass)
{
	uint32_t slots = qmw_samples_slots(pass->samples);

	for (uint32_t i = 0; pass->slots && i < slots; i++)
		free(pass->slots[i].forward);
	free(pass->slots);
	free(pass->forward);
	qmw_content_map_fini(&pass->map);
}

static qmla_status_t pass_init(const struct qmw_samples *samples, uint32_t bits, bool gradient,
			       struct pass *pass)
{
	uint32_t slots = qmw_samples_slots(samples), dim = samples->config->content_dim;
	size_t count = (size_t)dim * dim;
	qmla_status_t status;

	*pass = (struct pass){.samples = samples,
			      .quantiser = {bits, QMK_PAPER_GROUP, true},
			      .gradient = gradient};
	status = qmw_content_map_init(&pass->map, dim);
	if (status != QMLA_OK)
		return status;
	pass->slots = calloc(slots, sizeof(*pass->slots));
	pass->forward = gradient ? calloc(2 * count, sizeof(double)) : NULL;
	if (!pass->slots || (gradient && !pass->forward))
		goto err_fini;
	for (uint32_t i = 0; gradient && i < slots; i++) {
		pass->slots[i].forward = malloc(2 * count * sizeof(float));
		if (!pass->slots[i].forward)
			goto err_fini;
		pass->slots[i].back = pass->slots[i].forward + count;
	}
	pass->back = gradient ? pass->forward + count : NULL;
	return QMLA_OK;
err_fini:
	pass_fini(pass);
	return QMLA_ERR_NO_MEMORY;
}

qmla_status_t qmw_content_loss(const struct qmw_samples *samples, const uint32_t *indices,
			       uint32_t count, uint32_t content_bits, const double *rotation,
			       const double *log_scale, double *loss, double *rotation_gradient,
			       double *log_scale_gradient)
{
	uint32_t dim = samples->config->content_dim;
	double *scale = malloc(dim * sizeof(*scale));
	struct pass pass;
	qmla_status_t status;

	if (!scale)
		return QMLA_ERR_NO_MEMORY;
	status = pass_init(samples, content_bits, rotation_gradient != NULL, &pass);
	if (status != QMLA_OK) {
		free(scale);
		return status;
	}
	qmw_learn_scales(log_scale, dim, scale);
	qmw_content_map_set(&pass.map, rotation, scale);
	status = qmw_samples_each(samples, indices, count, evaluate, take, &pass);
	if (status == QMLA_OK)
		*loss = pass.loss / count;
	if (status == QMLA_OK && rotation_gradient && log_scale_gradient) {
		for (size_t i = 0; i < 2 * (size_t)dim * dim; i++)
			pass.forward[i] /= count;
		qmw_content_map_gradient(dim, rotation, scale, pass.forward, pass.back,
					 rotation_gradient, log_scale_gradient);
	}
	pass_fini(&pass);
	free(scale);
	return status;
}
