/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/forward.h"

#include <string.h>

#include "client/model/attention_float.h"
#include "client/model/mixture.h"
#include "client/model/numeric.h"
#include "client/model/study_internal.h"

static void collect_tokens(struct qmw_context *context, const struct qmw_forward_item *items,
			   uint32_t count)
{
	uint32_t row = 0;

	for (uint32_t i = 0; i < count; i++) {
		memcpy(context->tokens + row, items[i].tokens, items[i].count * sizeof(uint32_t));
		row += items[i].count;
	}
}

/* The row's token and those before it, newest first, as far as embeddings read them. */
static uint32_t recent_tokens(const struct qmw_context *context, uint32_t row,
			      uint32_t recent[QMW_NEIGHBOURS_MAX])
{
	const struct qmw_span *span = &context->spans[context->row_span[row]];
	const struct qmw_sequence *sequence = span->sequence;
	uint32_t position = span->total - span->count + (row - span->first_row);
	uint32_t in_call = position - sequence->length; /* of them before this one */
	uint32_t history = qmw_config_history(&context->model->config), count = 0;

	for (uint32_t d = 0; d <= history && d <= position; d++)
		recent[count++] = d <= in_call ? context->tokens[row - d]
					       : sequence->history[d - in_call - 1];
	return count;
}

static void embed_rows(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
		       uint32_t count)
{
	const struct qmw_config *c = &context->model->config;
	const struct qmw_weights *weights = &context->model->weights;
	float *hidden = context->hidden + (size_t)first * c->hidden;
	bool round = context->model->options.round_bf16;
	qmla_status_t status;

	for (uint32_t r = 0; r < count; r++)
		memcpy(hidden + (size_t)r * c->hidden,
		       weights->embedding + (size_t)context->tokens[first + r] * c->hidden,
		       c->hidden * sizeof(float));
	qmw_round_rows(round && c->embedding_scale != 1, hidden, (size_t)count * c->hidden);
	if (!weights->ngram.tables)
		return;
	for (uint32_t r = 0; r < count; r++) {
		uint32_t recent[QMW_NEIGHBOURS_MAX];
		uint32_t known = recent_tokens(context, first + r, recent);

		qmw_ngram_ids(c, recent, known,
			      lane->ngram_ids + (size_t)r * weights->ngram.tables);
	}
	status = qmw_ngram_add(&weights->ngram, c, lane->ngram_ids, count, round, lane->ngram_rows,
			       lane->sum, hidden);
	if (status)
		qmw_context_fail(context, status);
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

/* What is done to rows [first, first + count), a tile's. */
typedef void tile_step(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
		       uint32_t count);

struct tiles {
	struct qmw_context *context;
	tile_step *step;
};

static void tile_task(void *argument, uint32_t index, uint32_t thread)
{
	const struct tiles *tiles = argument;
	struct qmw_context *context = tiles->context;
	uint32_t before = index * context->tile_rows, left = context->range_rows - before;

	tiles->step(context, &context->lanes[thread], context->range_first + before,
		    left < context->tile_rows ? left : context->tile_rows);
}

static void pack_task(void *argument, uint32_t index, uint32_t thread)
{
	struct qmw_context *context = argument;
	const struct qmw_span *span = &context->spans[index];

	if (qmw_span_fills(span))
		qmw_attention_pack(context, &context->lanes[thread], span);
}

static void study_task(void *argument, uint32_t index, uint32_t thread)
{
	struct qmw_context *context = argument;
	qmla_status_t status =
		qmw_study_quantise(context, &context->lanes[thread], &context->spans[index]);

	if (status)
		qmw_context_fail(context, status);
}

static void expand_task(void *argument, uint32_t index, uint32_t thread)
{
	struct qmw_context *context = argument;

	(void)thread;
	qmw_float_expand(context, &context->spans[index]);
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
static void run_tiles(struct qmw_context *context, uint32_t first, uint32_t rows, tile_step *step)
{
	struct tiles tiles = {context, step};

	context->range_first = first;
	context->range_rows = rows;
	context->alone = rows <= context->tile_rows;
	qmw_team_run(context->team, (rows + context->tile_rows - 1) / context->tile_rows, tile_task,
		     &tiles);
}

static void run_mixture(struct qmw_context *context)
{
	uint32_t band = context->mixture.band;

	for (uint32_t first = 0; first < context->rows; first += band) {
		uint32_t left = context->rows - first, rows = left < band ? left : band;

		run_tiles(context, first, rows, qmw_layer_route);
		qmw_mixture_run(context);
		run_tiles(context, first, rows, qmw_layer_mix);
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
	run_tiles(context, 0, context->rows, qmw_layer_begin);
	context->alone = context->span_count == 1;
	if (context->model->options.cache == QMW_CACHE_PACKED)
		qmw_team_run(context->team, context->span_count, pack_task, context);
	if (context->model->options.cache == QMW_CACHE_STUDY)
		qmw_team_run(context->team, context->span_count, study_task, context);
	if (context->model->options.cache == QMW_CACHE_STUDY ||
	    context->model->options.cache == QMW_CACHE_F32) {
		qmla_status_t status = qmw_float_prepare(context);

		if (status)
			return status;
		qmw_team_run(context->team, context->span_count, expand_task, context);
	}
	if (qmw_context_failure(context))
		return qmw_context_failure(context);
	qmw_team_run(context->team, context->span_count, attention_task, context);
	if (qmw_context_failure(context))
		return qmw_context_failure(context);
	if (context->model->weights.layer[layer].moe.count)
		run_mixture(context);
	else
		run_tiles(context, 0, context->rows, qmw_layer_finish);
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
	qmw_forward_begin(context);
	collect_tokens(context, items, count);
	run_tiles(context, 0, context->rows, embed_rows);
	status = qmw_context_failure(context);
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
