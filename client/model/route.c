/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "client/model/moe.h"

static void softmax(float *values, uint32_t count)
{
	float max = -INFINITY, sum = 0;

	for (uint32_t i = 0; i < count; i++)
		max = fmaxf(max, values[i]);
	for (uint32_t i = 0; i < count; i++) {
		values[i] = expf(values[i] - max);
		sum += values[i];
	}
	for (uint32_t i = 0; i < count; i++)
		values[i] /= sum;
}

static void score(const struct qmw_moe_config *config, float *values, uint32_t count)
{
	if (config->gate == QMW_GATE_SOFTMAX) {
		softmax(values, count);
		return;
	}
	for (uint32_t i = 0; i < count; i++)
		values[i] = 1 / (1 + expf(-values[i]));
}

static float group_score(const struct qmw_moe_config *config, const float *choice, uint32_t size)
{
	float best = -INFINITY, second = -INFINITY;

	for (uint32_t i = 0; i < size; i++) {
		if (choice[i] > best) {
			second = best;
			best = choice[i];
		} else if (choice[i] > second) {
			second = choice[i];
		}
	}
	return config->group_score == QMW_GROUP_TOP2 ? best + second : best;
}

/* Experts outside the best groups are no choice: a group stays when fewer than top_groups beat it.
 */
static void limit_groups(const struct qmw_moe_config *config, float *choice, uint32_t count)
{
	uint32_t size = count / config->groups;
	float scores[QMW_EXPERTS_MAX];

	for (uint32_t g = 0; g < config->groups; g++)
		scores[g] = group_score(config, choice + (size_t)g * size, size);
	for (uint32_t g = 0; g < config->groups; g++) {
		uint32_t better = 0;

		for (uint32_t k = 0; k < config->groups; k++)
			better += scores[k] > scores[g] || (k < g && scores[k] == scores[g]);
		for (uint32_t i = 0; better >= config->top_groups && i < size; i++)
			choice[g * size + i] = -INFINITY;
	}
}

/* Marks the best of @choice, one after another, by making them NaN. */
static void choose(float *choice, uint32_t count, uint32_t top_k)
{
	for (uint32_t k = 0; k < top_k; k++) {
		uint32_t best = count;

		for (uint32_t i = 0; i < count; i++)
			if (!isnan(choice[i]) && (best == count || choice[i] > choice[best]))
				best = i;
		choice[best] = NAN;
	}
}

/* From the chosen experts' scores to what their outputs are multiplied by. */
static void scale(const struct qmw_moe_config *config, struct qmw_route *routes)
{
	float sum = 1e-20f;

	for (uint32_t k = 0; k < config->top_k; k++)
		sum += routes[k].weight;
	for (uint32_t k = 0; k < config->top_k; k++)
		routes[k].weight = (config->normalise ? routes[k].weight / sum : routes[k].weight) *
				   config->scale;
}

void qmw_moe_route(const struct qmw_moe_config *config, const float *correction, float *scores,
		   float *choice, struct qmw_route *routes)
{
	uint32_t count = config->experts + config->zero_experts, k = 0;

	score(config, scores, count);
	for (uint32_t i = 0; i < count; i++) {
		choice[i] = correction ? scores[i] + correction[i] : scores[i];
		if (isnan(choice[i]))
			choice[i] = -INFINITY; /* of activations that overflowed: still a choice */
	}
	if (config->groups > 1)
		limit_groups(config, choice, count);
	choose(choice, count, config->top_k);
	for (uint32_t i = 0; i < count && k < config->top_k; i++)
		if (isnan(choice[i]))
			routes[k++] = (struct qmw_route){i, scores[i]};
	scale(config, routes);
}
