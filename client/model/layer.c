/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "client/model/forward.h"
#include "client/model/mixture.h"
#include "client/model/numeric.h"

static const struct qmw_layer *layer_at(const struct qmw_context *context, uint32_t layer)
{
	return &context->model->weights.layer[layer];
}

static void project_queries(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
			    uint32_t count)
{
	const struct qmw_config *c = &context->model->config;
	const struct qmw_layer *layer = layer_at(context, context->layer);
	bool round = context->model->options.round_bf16;
	size_t stride = (size_t)c->heads * (c->nope_dim + c->rope_dim);
	float *query = context->query + first * stride;

	if (!c->q_rank) {
		qmw_context_product(context, &layer->query, lane->x, c->hidden, count, query,
				    stride);
	} else {
		qmw_context_product(context, &layer->query_a, lane->x, c->hidden, count,
				    lane->query_low, c->q_rank);
		qmw_round_rows(round, lane->query_low, (size_t)count * c->q_rank);
		for (uint32_t r = 0; r < count; r++)
			qmw_rms_norm(lane->query_low + (size_t)r * c->q_rank, layer->query_norm,
				     layer->query_norm_eps, c->q_rank, round,
				     lane->query_low + (size_t)r * c->q_rank);
		qmw_context_product(context, &layer->query_b, lane->query_low, c->q_rank, count,
				    query, stride);
	}
	qmw_round_rows(round, query, count * stride);
}

static void rotate_queries(struct qmw_context *context, uint32_t first, uint32_t count)
{
	const struct qmw_config *c = &context->model->config;
	uint32_t width = c->nope_dim + c->rope_dim, pairs = c->rope_dim / 2;
	bool round = context->model->options.round_bf16;

	for (uint32_t r = first; r < first + count; r++) {
		for (uint32_t h = 0; h < c->heads; h++) {
			float *q =
				context->query + ((size_t)r * c->heads + h) * width + c->nope_dim;

			qmw_rope_rotate(&context->model->rope, context->cosines + (size_t)r * pairs,
					context->sines + (size_t)r * pairs, q);
			qmw_round_rows(round, q, c->rope_dim);
		}
	}
}

static void store_bf16(const float *values, const float *mean, uint32_t count, uint16_t *row)
{
	for (uint32_t i = 0; i < count; i++)
		row[i] = qmk_float_to_bf16(mean ? values[i] - mean[i] : values[i]);
}

/* The row's normalised latent and key go to the cache in the form its kind holds. */
static void store_row(struct qmw_context *context, uint32_t row, float *latent)
{
	const struct qmw_model *model = context->model;
	const struct qmw_span *span = &context->spans[context->row_span[row]];
	const struct qmk_constants *constants = &model->attend_constants[context->layer];
	uint32_t content = model->config.content_dim, width = qmw_model_width(model);
	uint32_t position = span->total - span->count + (row - span->first_row);
	uint32_t pairs = model->config.rope_dim / 2;
	bool rotated = model->options.cache == QMW_CACHE_F32 ||
		       (model->options.cache == QMW_CACHE_PACKED && model->layout.rope_rotated);
	uint16_t *to;

	if (rotated)
		qmw_rope_rotate(&model->rope, context->cosines + (size_t)row * pairs,
				context->sines + (size_t)row * pairs, latent + content);
	if (model->options.cache == QMW_CACHE_F32 || model->options.cache == QMW_CACHE_STUDY) {
		memcpy(qmw_sequence_float_rows(span->sequence, context->layer) +
			       (size_t)position * width,
		       latent, width * sizeof(*latent));
		return;
	}
	to = qmw_span_rows(context, span, context->layer) +
	     (size_t)(position % QMK_PAGE_TOKENS) * width;
	store_bf16(latent, constants->content_mean, content, to);
	store_bf16(latent + content, constants->rope_mean, model->config.rope_dim, to + content);
}

/* The latents of a fused checkpoint are cached with their scale (constants.h). */
static void scale_latent(const struct qmw_context *context, float *latent)
{
	const struct qmw_model *model = context->model;
	const float *scale = model->constants.layers[context->layer].content_scale;

	for (uint32_t i = 0; scale && i < model->config.content_dim; i++)
		latent[i] *= scale[i];
	if (scale)
		qmw_round_rows(model->options.round_bf16, latent, model->config.content_dim);
}

static void project_latents(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
			    uint32_t count)
{
	const struct qmw_model *model = context->model;
	uint32_t width = qmw_model_width(model);
	bool round = model->options.round_bf16;

	qmw_context_product(context, &layer_at(context, context->layer)->kv_a, lane->x,
			    model->config.hidden, count, lane->latent, width);
	qmw_round_rows(round, lane->latent, (size_t)count * width);
	for (uint32_t r = 0; r < count; r++) {
		float *latent = lane->latent + (size_t)r * width;

		qmw_rms_norm(latent, NULL, layer_at(context, context->layer)->kv_norm_eps,
			     model->config.content_dim, round, latent);
		scale_latent(context, latent);
		store_row(context, first + r, latent);
	}
}

void qmw_layer_begin(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
		     uint32_t count)
{
	const struct qmw_config *c = &context->model->config;
	const struct qmw_layer *layer = layer_at(context, context->layer);

	for (uint32_t r = 0; r < count; r++)
		qmw_rms_norm(context->hidden + (size_t)(first + r) * c->hidden, layer->input_norm,
			     c->norm_eps, c->hidden, context->model->options.round_bf16,
			     lane->x + (size_t)r * c->hidden);
	project_queries(context, lane, first, count);
	rotate_queries(context, first, count);
	project_latents(context, lane, first, count);
}

/* hidden += scale x, rounded as a BF16 implementation rounds all of it. */
static void add_residual(struct qmw_context *context, float *x, uint32_t first, uint32_t count)
{
	const struct qmw_config *c = &context->model->config;
	bool round = context->model->options.round_bf16;
	size_t n = (size_t)count * c->hidden;
	float *hidden = context->hidden + (size_t)first * c->hidden;

	qmw_round_rows(round, x, n);
	if (c->residual_scale != 1) {
		for (size_t i = 0; i < n; i++)
			x[i] *= c->residual_scale;
		qmw_round_rows(round, x, n);
	}
	for (size_t i = 0; i < n; i++)
		hidden[i] += x[i];
	qmw_round_rows(round, hidden, n);
}

/* Output projection, residual, and the norm of what is then there: @x [count][hidden]. */
static void finish_attention(struct qmw_context *context, uint32_t first, uint32_t count, float *x)
{
	const struct qmw_config *c = &context->model->config;
	const struct qmw_layer *l = layer_at(context, context->layer);
	size_t heads = (size_t)c->heads * c->value_dim;

	qmw_context_product(context, &l->output, context->heads + first * heads, heads, count, x,
			    c->hidden);
	add_residual(context, x, first, count);
	for (uint32_t r = 0; r < count; r++)
		qmw_rms_norm(context->hidden + (size_t)(first + r) * c->hidden, l->post_norm,
			     c->norm_eps, c->hidden, context->model->options.round_bf16,
			     x + (size_t)r * c->hidden);
}

void qmw_layer_mlp(struct qmw_context *context, struct qmw_lane *lane, const struct qmw_mlp *mlp,
		   const float *x, uint32_t count, float *y)
{
	uint32_t hidden = context->model->config.hidden;
	bool round = context->model->options.round_bf16;
	size_t wide = 2 * (size_t)mlp->width;

	qmw_context_product(context, &mlp->gate_up, x, hidden, count, lane->gate_up, wide);
	qmw_round_rows(round, lane->gate_up, count * wide);
	for (uint32_t r = 0; r < count; r++)
		qmw_silu_product(lane->gate_up + r * wide, lane->gate_up + r * wide + mlp->width,
				 mlp->width, round, lane->gate_up + r * wide);
	qmw_context_product(context, &mlp->down, lane->gate_up, wide, count, y, hidden);
	qmw_round_rows(round, y, (size_t)count * hidden);
}

/* What the experts of an earlier sub-layer left to be added. */
static void join_shortcut(struct qmw_context *context, uint32_t first, uint32_t count)
{
	const struct qmw_config *c = &context->model->config;
	size_t n = (size_t)count * c->hidden, at = (size_t)first * c->hidden;

	if (!qmw_config_joins(c, context->layer))
		return;
	for (size_t i = 0; i < n; i++)
		context->hidden[at + i] += context->mixture.shortcut[at + i];
	qmw_round_rows(context->model->options.round_bf16, context->hidden + at, n);
}

void qmw_layer_finish(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
		      uint32_t count)
{
	finish_attention(context, first, count, lane->x);
	qmw_layer_mlp(context, lane, &layer_at(context, context->layer)->mlp, lane->x, count,
		      lane->x);
	add_residual(context, lane->x, first, count);
	join_shortcut(context, first, count);
}

void qmw_layer_route(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
		     uint32_t count)
{
	finish_attention(context, first, count, qmw_mixture_input(context, first));
	qmw_mixture_route(context, lane, first, count);
}

void qmw_layer_mix(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
		   uint32_t count)
{
	const struct qmw_layer *l = layer_at(context, context->layer);
	const float *inputs = qmw_mixture_input(context, first);
	uint32_t hidden = context->model->config.hidden;

	qmw_mixture_sum(context, first, count, lane->sum);
	if (l->moe.shared.width) {
		qmw_layer_mlp(context, lane, &l->moe.shared, inputs, count, lane->x);
		qmw_add_weighted(lane->x, 1, count * hidden, context->model->options.round_bf16,
				 lane->sum);
	}
	if (!l->mlp.width) {
		add_residual(context, lane->sum, first, count);
		return;
	}
	memcpy(context->mixture.shortcut + (size_t)first * hidden, lane->sum,
	       (size_t)count * hidden * sizeof(*lane->sum));
	qmw_layer_mlp(context, lane, &l->mlp, inputs, count, lane->x);
	add_residual(context, lane->x, first, count);
	join_shortcut(context, first, count);
}
