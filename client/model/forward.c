/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/forward.h"

#include <string.h>

#include "client/model/mixture.h"
#include "client/model/numeric.h"

static void embed(struct qmw_context *context, const struct qmw_forward_item *items, uint32_t count)
{
	const struct qmw_config *c = &context->model->config;
	uint32_t row = 0;

	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t t = 0; t < items[i].count; t++, row++)
			memcpy(context->hidden + (size_t)row * c->hidden,
			       context->model->weights.embedding +
				       (size_t)items[i].tokens[t] * c->hidden,
			       c->hidden * sizeof(float));
	}
	qmw_round_rows(context->model->options.round_bf16 && c->embedding_scale != 1,
		       context->hidden, (size_t)row * c->hidden);
}

static void fill_angles(struct qmw_context *context)
{
	const struct qmw_model *model = context->model;
	uint32_t pairs = model->config.rope_dim / 2;

	for (uint32_t r = 0; r < context->rows; r++) {
		const struct qmw_span *span = &context->spans[context->row_span[r]];
		float *cosines = context->cosines + (size_t)r * pairs;
		float *sines = context->sines + (size_t)r * pairs;

		qmw_rope_angles(&model->rope, span->total - span->count + (r - span->first_row),
				cosines, sines);
		/* The V3 implementation rounds the table, the V2 one multiplies in float32. */
		qmw_round_rows(model->options.round_bf16 && model->config.v3, cosines, pairs);
		qmw_round_rows(model->options.round_bf16 && model->config.v3, sines, pairs);
	}
}

/* The rows of tile @p index. */
static uint32_t tile_rows(const struct qmw_context *context, uint32_t index, uint32_t *first)
{
	uint32_t left = context->range_rows - index * context->tile_rows;

	*first = context->range_first + index * context->tile_rows;
	return left < context->tile_rows ? left : context->tile_rows;
}

static void begin_task(void *argument, uint32_t index, uint32_t thread)
{
	struct qmw_context *context = argument;
	uint32_t first, count = tile_rows(context, index, &first);

	qmw_layer_begin(context, &context->lanes[thread], first, count);
}

static void finish_task(void *argument, uint32_t index, uint32_t thread)
{
	struct qmw_context *context = argument;
	uint32_t first, count = tile_rows(context, index, &first);

	qmw_layer_finish(context, &context->lanes[thread], first, count);
}

static void route_task(void *argument, uint32_t index, uint32_t thread)
{
	struct qmw_context *context = argument;
	uint32_t first, count = tile_rows(context, index, &first);

	qmw_layer_route(context, &context->lanes[thread], first, count);
}

static void mix_task(void *argument, uint32_t index, uint32_t thread)
{
	struct qmw_context *context = argument;
	uint32_t first, count = tile_rows(context, index, &first);

	qmw_layer_mix(context, &context->lanes[thread], first, count);
}

static void pack_task(void *argument, uint32_t index, uint32_t thread)
{
	struct qmw_context *context = argument;
	const struct qmw_span *span = &context->spans[index];

	if (qmw_span_fills(span))
		qmw_attention_pack(context, &context->lanes[thread], span);
}

/* Last first: the spans with the longest past, so that the threads end together. */
static void attention_task(void *argument, uint32_t index, uint32_t thread)
{
	struct qmw_context *context = argument;

	qmw_attention_run(context, &context->lanes[thread],
			  &context->spans[context->span_count - 1 - index]);
}

/* A tile for each thread, of whole groups of eight rows; few rows are one tile, divided otherwise.
 */
static void choose_tiles(struct qmw_context *context)
{
	uint32_t threads = qmw_team_threads(context->team);
	uint32_t share = ((context->rows + threads - 1) / threads + 7) / 8 * 8;

	if (context->rows <= QMW_TILE_ROWS / 2 || share > QMW_TILE_ROWS)
		share = QMW_TILE_ROWS;
	context->tile_rows = share;
}

/* One task for each tile of rows [first, first + rows). */
static void run_tiles(struct qmw_context *context, uint32_t first, uint32_t rows,
		      qmw_team_function *task)
{
	context->range_first = first;
	context->range_rows = rows;
	context->alone = rows <= context->tile_rows;
	qmw_team_run(context->team, (rows + context->tile_rows - 1) / context->tile_rows, task,
		     context);
}

static void run_mixture(struct qmw_context *context)
{
	uint32_t band = context->mixture.band;

	for (uint32_t first = 0; first < context->rows; first += band) {
		uint32_t left = context->rows - first, rows = left < band ? left : band;

		run_tiles(context, first, rows, route_task);
		qmw_mixture_run(context);
		run_tiles(context, first, rows, mix_task);
	}
}

void qmw_forward_begin(struct qmw_context *context)
{
	atomic_store_explicit(&context->status, QMLA_OK, memory_order_relaxed);
	fill_angles(context);
	choose_tiles(context);
}

qmla_status_t qmw_forward_layer(struct qmw_context *context, uint32_t layer)
{
	context->layer = layer;
	run_tiles(context, 0, context->rows, begin_task);
	context->alone = context->span_count == 1;
	if (context->model->options.cache == QMW_CACHE_PACKED)
		qmw_team_run(context->team, context->span_count, pack_task, context);
	if (qmw_context_failure(context))
		return qmw_context_failure(context);
	qmw_team_run(context->team, context->span_count, attention_task, context);
	if (qmw_context_failure(context))
		return qmw_context_failure(context);
	if (context->model->weights.layer[layer].moe.count)
		run_mixture(context);
	else
		run_tiles(context, 0, context->rows, finish_task);
	return qmw_context_failure(context);
}

/* Final norm and head for @p count of the wanted rows. */
static void compute_logits(struct qmw_context *context, uint32_t first, uint32_t count)
{
	const struct qmw_model *model = context->model;
	uint32_t hidden = model->config.hidden, vocab = model->config.vocab;
	float *x = context->lanes[0].x;

	for (uint32_t i = 0; i < count; i++)
		qmw_rms_norm(context->hidden + (size_t)context->wanted[first + i].row * hidden,
			     model->weights.norm, model->config.norm_eps, hidden,
			     model->options.round_bf16, x + (size_t)i * hidden);
	if (model->config.head_scale != 1) {
		for (size_t i = 0; i < (size_t)count * hidden; i++)
			x[i] *= model->config.head_scale;
		qmw_round_rows(model->options.round_bf16, x, (size_t)count * hidden);
	}
	qmw_context_product(context, &model->weights.head, x, hidden, count, context->logits,
			    vocab);
	qmw_round_rows(model->options.round_bf16, context->logits, (size_t)count * vocab);
	for (uint32_t i = 0; i < count; i++)
		memcpy(context->wanted[first + i].logits, context->logits + (size_t)i * vocab,
		       vocab * sizeof(float));
}

qmla_status_t qmw_model_forward(const struct qmw_model *model, struct qmw_context *context,
				const struct qmk_pool *pool, const struct qmw_forward_item *items,
				uint32_t count)
{
	qmla_status_t status;

	if (context->model != model || count == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qmw_plan(context, pool, items, count);
	if (status)
		return status;
	embed(context, items, count);
	qmw_forward_begin(context);
	for (uint32_t i = 0; i < model->config.layers && !status; i++)
		status = qmw_forward_layer(context, i);
	if (status)
		return status;
	context->alone = true;
	for (uint32_t i = 0; i < context->wanted_count; i += QMW_LOGIT_ROWS)
		compute_logits(context, i,
			       context->wanted_count - i < QMW_LOGIT_ROWS
				       ? context->wanted_count - i
				       : QMW_LOGIT_ROWS);
	qmw_plan_commit(context, items, count);
	return QMLA_OK;
}
