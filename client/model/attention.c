/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "client/model/forward.h"
#include "client/model/numeric.h"

void qmw_attention_pack(struct qmw_context *context, struct qmw_lane *lane,
			const struct qmw_span *span)
{
	const struct qmw_model *model = context->model;
	const uint16_t *rows = qmw_span_rows(context, span, context->layer);
	struct qmk_pack_args args = {
		.layout = &model->layout,
		.constants = &model->pack_constants[context->layer],
		.pool = *context->pool,
		.layer = context->layer,
		.pages = 1,
		.slots = &span->sequence->slots[span->block],
		.content = rows,
		.rope = rows + model->config.content_dim,
		.content_stride = qmw_model_width(model),
		.rope_stride = qmw_model_width(model),
		.dtype = QMK_BF16,
	};
	size_t bytes = model->ops->pack_workspace(&args);
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	args.workspace = bytes ? qmw_lane_workspace(lane, bytes) : NULL;
	if (!bytes || args.workspace)
		status = model->ops->pack(&args);
	if (status)
		qmw_context_fail(context, status);
}

/* Queries into the cache's coordinates: content through W_UK, RoPE gathered densely. */
static void absorb(struct qmw_context *context, struct qmw_lane *lane, const struct qmw_span *span)
{
	const struct qmw_config *c = &context->model->config;
	const struct qmw_layer *layer = &context->model->weights.layer[context->layer];
	size_t width = c->nope_dim + c->rope_dim, stride = c->heads * width;
	const float *query = context->query + span->first_row * stride;

	for (uint32_t h = 0; h < c->heads; h++) {
		qmw_context_product(context, &layer->key_up[h], query + h * width, stride,
				    span->count, lane->query_content + (size_t)h * c->content_dim,
				    (size_t)c->heads * c->content_dim);
		for (uint32_t r = 0; r < span->count; r++)
			memcpy(lane->query_rope + ((size_t)r * c->heads + h) * c->rope_dim,
			       query + r * stride + h * width + c->nope_dim,
			       c->rope_dim * sizeof(*query));
	}
}

/* Output latents to the heads' values, through W_UV. */
static void project_values(struct qmw_context *context, struct qmw_lane *lane,
			   const struct qmw_span *span)
{
	const struct qmw_config *c = &context->model->config;
	const struct qmw_layer *layer = &context->model->weights.layer[context->layer];
	size_t stride = (size_t)c->heads * c->value_dim;
	float *heads = context->heads + span->first_row * stride;

	for (uint32_t h = 0; h < c->heads; h++)
		qmw_context_product(context, &layer->value_up[h],
				    lane->mixed + (size_t)h * c->content_dim,
				    (size_t)c->heads * c->content_dim, span->count,
				    heads + (size_t)h * c->value_dim, stride);
	qmw_round_rows(context->model->options.round_bf16, heads, span->count * stride);
}

static qmla_status_t attend(struct qmw_context *context, struct qmw_lane *lane,
			    const struct qmw_span *span)
{
	const struct qmw_model *model = context->model;
	bool packed = model->options.cache == QMW_CACHE_PACKED;
	struct qmk_sequence sequence = {
		.total = span->total,
		.queries = span->count,
		.packed_end = packed ? span->block * QMK_PAGE_TOKENS : 0,
		.recent_rows = qmw_span_rows(context, span, context->layer),
	};
	struct qmk_attend_args args = {
		.layout = &model->layout,
		.constants = &model->attend_constants[context->layer],
		.rope = &model->kernel_rope,
		.layer = context->layer,
		.batch = 1,
		.heads = model->config.heads,
		.rows = span->count,
		.sequences = &sequence,
		.block_table = span->sequence->slots,
		.query_content = lane->query_content,
		.query_rope = lane->query_rope,
		.scale = model->rope.softmax_scale,
		.output = lane->mixed,
	};

	if (packed && context->pool)
		args.pool = *context->pool;
	if (!packed)
		sequence.recent_rows -=
			(size_t)span->block * QMK_PAGE_TOKENS * qmw_model_width(model);
	args.workspace_bytes = model->ops->attend_workspace(&args);
	if (args.workspace_bytes) {
		args.workspace = qmw_lane_workspace(lane, args.workspace_bytes);
		if (!args.workspace)
			return QMLA_ERR_NO_MEMORY;
	}
	return model->ops->attend(&args);
}

void qmw_attention_run(struct qmw_context *context, struct qmw_lane *lane,
		       const struct qmw_span *span)
{
	qmla_status_t status;

	absorb(context, lane, span);
	if (context->model->options.cache == QMW_CACHE_F32)
		status = qmw_attention_float(context, lane, span);
	else
		status = attend(context, lane, span);
	if (status) {
		qmw_context_fail(context, status);
		return;
	}
	project_values(context, lane, span);
}
