/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/rope_loss.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/fake_paper.h"
#include "client/calibrate/learn.h"
#include "client/calibrate/pairs.h"
#include "kernels/layout.h"

#define ROPE_BITS 4

struct slot {
	double loss;
	double *angle, *log_scale; /* [d_r / 2] */
};

struct pass {
	const struct qmw_samples *samples;
	struct qmw_pairs pairs;
	struct qmw_fake_paper quantiser;
	bool gradient;
	uint32_t half; /* d_r / 2 */
	double *scale; /* [half] */
	double *all;   /* [slots + 1][2][half]: the workers', then the sums */
	struct slot *slots;
	double loss;
};

/* Rows of one sequence, all rotated by position except restored. */
struct rows {
	float *keys, *z, *stored, *restored, *gradient;
};

/* With khat = M^-1 key, dL/dkey = M^-T dL/dkhat, and M^-T = M / amplitude^2. */
static void chain_gradient(const struct pass *pass, const struct qmw_sample *sample,
			   const struct rows *rows, const struct slot *slot)
{
	size_t n = pass->samples->length;
	uint32_t dim = 2 * pass->half;
	float norm = pass->pairs.rope->amplitude * pass->pairs.rope->amplitude;

	qmw_passage_rotate(sample->passage, false, rows->gradient);
	for (size_t i = 0; i < n * dim; i++)
		rows->gradient[i] /= norm;
	memset(slot->angle, 0, 2 * pass->half * sizeof(double));
	qmw_pairs_gradient_inverse(&pass->pairs, n, rows->stored, rows->gradient, slot->angle,
				   slot->log_scale);
	qmw_fake_paper_gradient(&pass->quantiser, n, dim, rows->z, rows->gradient);
	qmw_pairs_gradient_forward(&pass->pairs, n, rows->keys, rows->gradient, slot->angle,
				   slot->log_scale);
}

static qmla_status_t evaluate(void *user, const struct qmw_sample *sample)
{
	const struct pass *pass = user;
	struct slot *slot = &pass->slots[sample->slot];
	size_t n = pass->samples->length, count = n * 2 * pass->half;
	float *all = malloc(5 * count * sizeof(*all));
	struct rows rows = {.keys = all};
	double error, energy;
	qmla_status_t status;

	if (!all)
		return QMLA_ERR_NO_MEMORY;
	rows.z = all + count;
	rows.stored = all + 2 * count;
	rows.restored = all + 3 * count;
	rows.gradient = all + 4 * count;
	memcpy(rows.keys, qmw_passage_key(sample->passage), count * sizeof(float));
	qmw_passage_rotate(sample->passage, false, rows.keys);
	memcpy(rows.z, rows.keys, count * sizeof(float));
	qmw_pairs_apply(&pass->pairs, false, n, rows.z);
	qmw_fake_paper_apply(&pass->quantiser, n, 2 * pass->half, rows.z, rows.stored);
	qmw_pairs_apply(&pass->pairs, true, n, rows.stored);
	memcpy(rows.restored, rows.stored, count * sizeof(float));
	qmw_passage_rotate(sample->passage, true, rows.restored);
	status = qmw_passage_positional(sample->passage, rows.restored, &error, &energy,
					pass->gradient ? rows.gradient : NULL);
	if (status == QMLA_OK) {
		slot->loss = energy > 0 ? error / energy : 0;
		if (pass->gradient)
			chain_gradient(pass, sample, &rows, slot);
	}
	free(all);
	return status;
}

static void take(void *user, uint32_t index, uint32_t slot)
{
	struct pass *pass = user;
	double *sum = pass->all + qmw_samples_slots(pass->samples) * 2 * (size_t)pass->half;

	(void)index;
	pass->loss += pass->slots[slot].loss;
	for (uint32_t i = 0; pass->gradient && i < 2 * pass->half; i++)
		sum[i] += pass->slots[slot].angle[i];
}

static qmla_status_t pass_init(const struct qmw_samples *samples, bool gradient, struct pass *pass)
{
	uint32_t slots = qmw_samples_slots(samples), dim = samples->config->rope_dim;
	uint32_t group = dim < QMK_PAPER_GROUP ? dim : QMK_PAPER_GROUP;

	*pass = (struct pass){.samples = samples,
			      .quantiser = {ROPE_BITS, group, false},
			      .gradient = gradient,
			      .half = dim / 2};
	pass->all = calloc((slots + 1) * (size_t)dim + dim, sizeof(double));
	pass->slots = calloc(slots, sizeof(*pass->slots));
	if (!pass->all || !pass->slots) {
		free(pass->all);
		free(pass->slots);
		return QMLA_ERR_NO_MEMORY;
	}
	pass->scale = pass->all + (slots + 1) * (size_t)dim;
	for (uint32_t i = 0; i < slots; i++) {
		pass->slots[i].angle = pass->all + i * (size_t)dim;
		pass->slots[i].log_scale = pass->slots[i].angle + dim / 2;
	}
	return QMLA_OK;
}

qmla_status_t qmw_rope_loss(const struct qmw_samples *samples, const uint32_t *indices,
			    uint32_t count, const double *angle, const double *log_scale,
			    double *loss, double *angle_gradient, double *log_scale_gradient)
{
	uint32_t slots = qmw_samples_slots(samples);
	struct pass pass;
	const double *sum;
	qmla_status_t status = pass_init(samples, angle_gradient != NULL, &pass);

	if (status != QMLA_OK)
		return status;
	qmw_learn_scales(log_scale, pass.half, pass.scale);
	pass.pairs = (struct qmw_pairs){samples->rope, angle, pass.scale};
	status = qmw_samples_each(samples, indices, count, evaluate, take, &pass);
	sum = pass.all + slots * 2 * (size_t)pass.half;
	if (status == QMLA_OK)
		*loss = pass.loss / count;
	for (uint32_t i = 0; status == QMLA_OK && angle_gradient && i < pass.half; i++) {
		angle_gradient[i] = sum[i] / count;
		log_scale_gradient[i] = sum[pass.half + i] / count;
	}
	free(pass.slots);
	free(pass.all);
	return status;
}
