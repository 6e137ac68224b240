/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/mixture.h"

#include <stdlib.h>
#include <string.h>

#include "client/model/forward.h"
#include "client/model/numeric.h"

qmla_status_t qmw_mixture_init(const struct qmw_config *config, uint32_t max_tokens,
			       struct qmw_mixture *mixture)
{
	const struct qmw_moe_config *moe = &config->moe;
	struct qmw_mixture m = {.band = max_tokens < QMW_BAND_ROWS ? max_tokens : QMW_BAND_ROWS};
	size_t slots = (size_t)m.band * moe->top_k;

	if (!moe->experts) {
		*mixture = (struct qmw_mixture){0};
		return QMLA_OK;
	}
	m.inputs = qmw_floats(m.band, config->hidden);
	m.outputs = qmw_floats(slots, config->hidden);
	m.routes = calloc(slots, sizeof(*m.routes));
	m.order = calloc(slots, sizeof(*m.order));
	m.begin = calloc((size_t)moe->experts + 1, sizeof(*m.begin));
	m.hit = calloc(moe->experts, sizeof(*m.hit));
	m.shortcut = moe->shortcut ? qmw_floats(max_tokens, config->hidden) : NULL;
	if (!m.inputs || !m.outputs || !m.routes || !m.order || !m.begin || !m.hit ||
	    (moe->shortcut && !m.shortcut)) {
		qmw_mixture_fini(&m);
		return QMLA_ERR_NO_MEMORY;
	}
	*mixture = m;
	return QMLA_OK;
}

void qmw_mixture_fini(struct qmw_mixture *mixture)
{
	free(mixture->inputs);
	free(mixture->outputs);
	free(mixture->routes);
	free(mixture->order);
	free(mixture->begin);
	free(mixture->hit);
	free(mixture->shortcut);
	*mixture = (struct qmw_mixture){0};
}

float *qmw_mixture_input(const struct qmw_context *context, uint32_t row)
{
	return context->mixture.inputs +
	       (size_t)(row - context->range_first) * context->model->config.hidden;
}

static struct qmw_route *routes_of(const struct qmw_context *context, uint32_t row)
{
	return context->mixture.routes +
	       (size_t)(row - context->range_first) * context->model->config.moe.top_k;
}

void qmw_mixture_route(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
		       uint32_t count)
{
	const struct qmw_config *c = &context->model->config;
	const struct qmw_moe *moe = &context->model->weights.layer[context->layer].moe;
	uint32_t all = c->moe.experts + c->moe.zero_experts;

	qmw_context_product(context, &moe->gate, qmw_mixture_input(context, first), c->hidden,
			    count, lane->scores, all);
	for (uint32_t r = 0; r < count; r++)
		qmw_moe_route(&c->moe, moe->correction, lane->scores + (size_t)r * all,
			      lane->choice, routes_of(context, first + r));
}

/* Sorts the band's slots by expert, in the order of rows, and lists the experts that have any. */
static void sort_slots(struct qmw_context *context)
{
	struct qmw_mixture *m = &context->mixture;
	uint32_t experts = context->model->config.moe.experts;
	uint32_t slots = context->range_rows * context->model->config.moe.top_k;
	uint32_t sum = 0;

	memset(m->begin, 0, ((size_t)experts + 1) * sizeof(*m->begin));
	for (uint32_t i = 0; i < slots; i++)
		if (m->routes[i].expert < experts)
			m->begin[m->routes[i].expert]++;
	m->hit_count = 0;
	for (uint32_t e = 0; e < experts; e++) {
		uint32_t count = m->begin[e];

		if (count)
			m->hit[m->hit_count++] = e;
		m->begin[e] = sum;
		sum += count;
	}
	m->begin[experts] = sum;
	for (uint32_t i = 0; i < slots; i++)
		if (m->routes[i].expert < experts)
			m->order[m->begin[m->routes[i].expert]++] = i;
	for (uint32_t e = experts; e > 0; e--)
		m->begin[e] = m->begin[e - 1];
	m->begin[0] = 0;
}

/* Up to 64 rows of one expert. */
static void run_slots(struct qmw_context *context, struct qmw_lane *lane, const struct qmw_mlp *mlp,
		      const uint32_t *slots, uint32_t count)
{
	struct qmw_mixture *m = &context->mixture;
	uint32_t hidden = context->model->config.hidden, top_k = context->model->config.moe.top_k;

	for (uint32_t i = 0; i < count; i++)
		memcpy(lane->x + (size_t)i * hidden,
		       m->inputs + (size_t)(slots[i] / top_k) * hidden, hidden * sizeof(*lane->x));
	qmw_layer_mlp(context, lane, mlp, lane->x, count, lane->sum);
	for (uint32_t i = 0; i < count; i++)
		memcpy(m->outputs + (size_t)slots[i] * hidden, lane->sum + (size_t)i * hidden,
		       hidden * sizeof(*lane->sum));
}

static void expert_task(void *argument, uint32_t index, uint32_t thread)
{
	struct qmw_context *context = argument;
	const struct qmw_mixture *m = &context->mixture;
	const struct qmw_moe *moe = &context->model->weights.layer[context->layer].moe;
	uint32_t expert = m->hit[index];

	for (uint32_t i = m->begin[expert]; i < m->begin[expert + 1]; i += QMW_TILE_ROWS) {
		uint32_t left = m->begin[expert + 1] - i;

		run_slots(context, &context->lanes[thread], &moe->expert[expert], m->order + i,
			  left < QMW_TILE_ROWS ? left : QMW_TILE_ROWS);
	}
}

void qmw_mixture_run(struct qmw_context *context)
{
	sort_slots(context);
	context->alone = context->mixture.hit_count == 1;
	qmw_team_run(context->team, context->mixture.hit_count, expert_task, context);
}

void qmw_mixture_sum(const struct qmw_context *context, uint32_t first, uint32_t count, float *sum)
{
	const struct qmw_config *c = &context->model->config;
	bool round = context->model->options.round_bf16;

	memset(sum, 0, (size_t)count * c->hidden * sizeof(*sum));
	for (uint32_t r = 0; r < count; r++) {
		const struct qmw_route *routes = routes_of(context, first + r);
		size_t slot = (size_t)(routes - context->mixture.routes);
		float *to = sum + (size_t)r * c->hidden;

		for (uint32_t k = 0; k < c->moe.top_k; k++) {
			const float *from =
				routes[k].expert < c->moe.experts
					? context->mixture.outputs + (slot + k) * c->hidden
					: qmw_mixture_input(context, first + r);

			qmw_add_weighted(from, routes[k].weight, c->hidden, round, to);
		}
	}
}
