/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "client/model/attention_float.h"
#include "client/model/forward.h"
#include "client/model/numeric.h"
#include "client/model/study_internal.h"

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

	args.workspace = bytes ? qmw_buffer_reserve(&lane->workspace, bytes) : NULL;
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
static void project_values(struct qmw_context *context, const struct qmw_lane *lane,
			   const struct qmw_span *span, float *heads)
{
	const struct qmw_config *c = &context->model->config;
	const struct qmw_layer *layer = &context->model->weights.layer[context->layer];
	size_t stride = (size_t)c->heads * c->value_dim;

	for (uint32_t h = 0; h < c->heads; h++)
		qmw_context_product(context, &layer->value_up[h],
				    lane->mixed + (size_t)h * c->content_dim,
				    (size_t)c->heads * c->content_dim, span->count,
				    heads + (size_t)h * c->value_dim, stride);
	qmw_round_rows(context->model->options.round_bf16, heads, span->count * stride);
}

/* One part of a span's keys. */
struct part {
	struct qmw_context *context;
	const struct qmw_lane *queries; /**< the lane that absorbed them */
	const struct qmw_span *span;
	uint32_t count; /**< parts in all */
	float *outputs; /**< [count][rows][d_c] */
	float *lse;     /**< [count][rows]; NULL for a single part */
};

static struct qmk_sequence describe_keys(const struct qmw_context *context,
					 const struct qmw_span *span, uint32_t part)
{
	bool packed = context->model->options.cache == QMW_CACHE_PACKED;
	uint32_t begin = part * QMW_ATTENTION_PART;
	uint32_t left = span->total - begin;
	struct qmk_sequence keys = {
		.total = span->total,
		.queries = span->count,
		.packed_end = packed ? span->block * QMK_PAGE_TOKENS : 0,
		.recent_rows = qmw_span_rows(context, span, context->layer),
		.key_begin = begin,
		.key_end = begin + (left < QMW_ATTENTION_PART ? left : QMW_ATTENTION_PART),
	};

	if (!packed)
		keys.recent_rows -=
			(size_t)span->block * QMK_PAGE_TOKENS * qmw_model_width(context->model);
	return keys;
}

static qmla_status_t attend_part(const struct part *p, struct qmw_lane *lane, uint32_t index)
{
	const struct qmw_model *model = p->context->model;
	size_t rows = (size_t)p->span->count * model->config.heads;
	struct qmk_sequence keys = describe_keys(p->context, p->span, index);
	struct qmk_attend_args args = {
		.layout = &model->layout,
		.constants = &model->attend_constants[p->context->layer],
		.rope = &model->kernel_rope,
		.layer = p->context->layer,
		.batch = 1,
		.heads = model->config.heads,
		.rows = p->span->count,
		.sequences = &keys,
		.block_table = p->span->sequence->slots,
		.query_content = p->queries->query_content,
		.query_rope = p->queries->query_rope,
		.scale = model->rope.softmax_scale,
		.output = p->outputs + index * rows * model->config.content_dim,
		.lse = p->lse ? p->lse + index * rows : NULL,
	};

	if (p->context->pool)
		args.pool = *p->context->pool;
	args.workspace_bytes = model->ops->attend_workspace(&args);
	args.workspace = qmw_buffer_reserve(&lane->workspace, args.workspace_bytes);
	return args.workspace ? model->ops->attend(&args) : QMLA_ERR_NO_MEMORY;
}

static void part_task(void *argument, uint32_t index, uint32_t thread)
{
	const struct part *p = argument;
	qmla_status_t status = attend_part(p, &p->context->lanes[thread], index);

	if (status)
		qmw_context_fail(p->context, status);
}

static qmla_status_t attend_parts(struct part *p, struct qmw_lane *lane)
{
	const struct qmw_config *c = &p->context->model->config;
	size_t rows = (size_t)p->span->count * c->heads;
	struct qmk_merge_args merge = {.parts = p->count,
				       .rows = (uint32_t)rows,
				       .content_dim = c->content_dim,
				       .output = lane->mixed};
	qmla_status_t status = QMLA_OK;

	p->outputs = qmw_buffer_reserve(&lane->parts, p->count * rows * (c->content_dim + 1) *
							      sizeof(*p->outputs));
	if (!p->outputs)
		return QMLA_ERR_NO_MEMORY;
	p->lse = p->outputs + p->count * rows * c->content_dim;
	merge.outputs = p->outputs;
	merge.lse = p->lse;
	if (p->context->alone)
		qmw_team_run(p->context->team, p->count, part_task, p);
	for (uint32_t i = 0; i < p->count && !p->context->alone && !status; i++)
		status = attend_part(p, lane, i);
	if (status || qmw_context_failure(p->context))
		return status; /* a task's failure is noted already */
	return p->context->model->ops->merge(&merge);
}

static qmla_status_t attend(struct qmw_context *context, struct qmw_lane *lane,
			    const struct qmw_span *span)
{
	struct part p = {.context = context,
			 .queries = lane,
			 .span = span,
			 .count = (span->total + QMW_ATTENTION_PART - 1) / QMW_ATTENTION_PART,
			 .outputs = lane->mixed};

	return p.count == 1 ? attend_part(&p, lane, 0) : attend_parts(&p, lane);
}

static qmla_status_t run_absorbed(struct qmw_context *context, struct qmw_lane *lane,
				  const struct qmw_span *span, float *heads)
{
	qmla_status_t status;

	absorb(context, lane, span);
	status = attend(context, lane, span);
	if (!status)
		project_values(context, lane, span, heads);
	return status;
}

void qmw_attention_run(struct qmw_context *context, struct qmw_lane *lane,
		       const struct qmw_span *span)
{
	const struct qmw_config *c = &context->model->config;
	float *heads = context->heads + (size_t)span->first_row * c->heads * c->value_dim;
	qmla_status_t status;

	switch (context->model->options.cache) {
	case QMW_CACHE_F32:
		status = qmw_attention_float(context, lane, span, heads);
		break;
	case QMW_CACHE_STUDY:
		status = qmw_study_attend(context, lane, span, heads);
		break;
	default:
		status = run_absorbed(context, lane, span, heads);
	}
	if (status)
		qmw_context_fail(context, status);
}
