/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/amplitude.h"

#include <stdlib.h>
#include <string.h>

#include "client/calibrate/largest.h"

struct slot {
	float *content; /* [n][d_c]; NULL: not wanted */
	float *rope;    /* [n][d_r] */
};

struct pass {
	const struct qmw_samples *samples;
	const double *rope_mean;
	struct slot *slots;
	struct qmw_largest *content, *rope;
};

static qmla_status_t copy_rows(void *user, const struct qmw_sample *sample)
{
	const struct pass *pass = user;
	const struct slot *slot = &pass->slots[sample->slot];
	size_t n = pass->samples->length;
	uint32_t d_c = pass->samples->config->content_dim, d_r = pass->samples->config->rope_dim;

	if (slot->content)
		memcpy(slot->content, qmw_passage_content(sample->passage),
		       n * d_c * sizeof(float));
	if (!slot->rope)
		return QMLA_OK;
	memcpy(slot->rope, qmw_passage_key(sample->passage), n * d_r * sizeof(float));
	if (!pass->rope_mean) {
		qmw_passage_rotate(sample->passage, false, slot->rope);
		return QMLA_OK;
	}
	for (size_t i = 0; i < n * d_r; i++)
		slot->rope[i] -= (float)pass->rope_mean[i % d_r];
	return QMLA_OK;
}

static void take(void *user, uint32_t index, uint32_t number)
{
	struct pass *pass = user;
	const struct slot *slot = &pass->slots[number];
	const struct qmw_rope *rope = pass->samples->rope;
	uint32_t d_c = pass->samples->config->content_dim, a, b;

	(void)index;
	for (size_t t = 0; t < pass->samples->length; t++) {
		for (uint32_t i = 0; slot->content && i < d_c; i++)
			qmw_largest_add(pass->content, i, slot->content[t * d_c + i]);
		for (uint32_t j = 0; slot->rope && j < rope->dim / 2; j++) {
			qmw_rope_pair(rope, j, &a, &b);
			qmw_largest_add(pass->rope, j, slot->rope[t * rope->dim + a]);
			qmw_largest_add(pass->rope, j, slot->rope[t * rope->dim + b]);
		}
	}
}

static qmla_status_t make_slots(struct pass *pass, uint32_t slots)
{
	size_t n = pass->samples->length;
	const struct qmw_config *config = pass->samples->config;

	pass->slots = calloc(slots, sizeof(*pass->slots));
	for (uint32_t i = 0; pass->slots && i < slots; i++) {
		struct slot *slot = &pass->slots[i];

		if (pass->content)
			slot->content = malloc(n * config->content_dim * sizeof(float));
		if (pass->rope)
			slot->rope = malloc(n * config->rope_dim * sizeof(float));
		if (!slot->content != !pass->content || !slot->rope != !pass->rope)
			return QMLA_ERR_NO_MEMORY;
	}
	return pass->slots ? QMLA_OK : QMLA_ERR_NO_MEMORY;
}

qmla_status_t qmw_amplitude_measure(const struct qmw_samples *samples, const double *rope_mean,
				    double *content, double *rope)
{
	struct pass pass = {.samples = samples, .rope_mean = rope_mean};
	uint32_t slots = qmw_samples_slots(samples), d_c = samples->config->content_dim;
	uint32_t half = samples->config->rope_dim / 2;
	uint64_t tokens = (uint64_t)samples->train * samples->length;
	qmla_status_t status = QMLA_OK;

	if (content)
		status = qmw_largest_create(d_c, tokens, &pass.content);
	if (status == QMLA_OK && rope)
		status = qmw_largest_create(half, 2 * tokens, &pass.rope);
	if (status == QMLA_OK)
		status = make_slots(&pass, slots);
	if (status == QMLA_OK)
		status = qmw_samples_range(samples, 0, samples->train, copy_rows, take, &pass);
	for (uint32_t i = 0; status == QMLA_OK && content && i < d_c; i++)
		content[i] = qmw_largest_percentile(pass.content, i);
	for (uint32_t i = 0; status == QMLA_OK && rope && i < half; i++)
		rope[i] = qmw_largest_percentile(pass.rope, i);
	for (uint32_t i = 0; pass.slots && i < slots; i++) {
		free(pass.slots[i].content);
		free(pass.slots[i].rope);
	}
	free(pass.slots);
	qmw_largest_destroy(pass.rope);
	qmw_largest_destroy(pass.content);
	return status;
}
