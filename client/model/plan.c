/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "client/model/forward.h"
#include "common/log.h"

#define COMPONENT "model"

static qmla_status_t refuse(uint32_t index, const char *what)
{
	qmc_error(COMPONENT, "forward item %" PRIu32 ": %s", index, what);
	return QMLA_ERR_INVALID_ARGUMENT;
}

static qmla_status_t check_tokens(const struct qmw_model *model, uint32_t index,
				  const struct qmw_forward_item *item)
{
	for (uint32_t i = 0; i < item->count; i++) {
		if (item->tokens[i] < model->config.vocab)
			continue;
		qmc_error(COMPONENT,
			  "forward item %" PRIu32 ": token %" PRIu32 " at %" PRIu32
			  " is outside the vocabulary of %" PRIu32,
			  index, item->tokens[i], i, model->config.vocab);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

/* Every block that is full after the call needs a slot. */
static qmla_status_t check_slots(const struct qmw_context *context, uint32_t index,
				 const struct qmw_forward_item *item)
{
	uint32_t blocks = (item->sequence->length + item->count) / QMK_PAGE_TOKENS;
	const struct qmk_pool *pool = context->pool;

	if (context->model->options.cache != QMW_CACHE_PACKED || blocks == 0)
		return QMLA_OK;
	if (!pool || !pool->base || pool->stride < context->model->layout.block_bytes)
		return refuse(index, "a pool is missing, or its stride is smaller than a block");
	for (uint32_t i = 0; i < blocks; i++)
		if (item->sequence->slots[i] == UINT32_MAX)
			return refuse(index, "a block has no slot yet");
	return QMLA_OK;
}

static qmla_status_t check_item(const struct qmw_context *context,
				const struct qmw_forward_item *items, uint32_t index)
{
	const struct qmw_forward_item *item = &items[index];
	const struct qmw_sequence *s = item->sequence;
	qmla_status_t status;

	if (!s || !item->tokens || item->count == 0)
		return refuse(index, "has no sequence or no tokens");
	if (s->model != context->model)
		return refuse(index, "its sequence belongs to another model");
	for (uint32_t i = 0; i < index; i++)
		if (items[i].sequence == s)
			return refuse(index, "its sequence is in the call twice");
	if (s->known < qmw_config_history(&context->model->config) && s->known < s->length)
		return refuse(index, "its sequence was not told the tokens before (qmw_sequence_"
				     "remember)");
	if (item->count > s->max_tokens - s->length)
		return refuse(index, "its sequence is too short for these tokens");
	status = check_tokens(context->model, index, item);
	return status ? status : check_slots(context, index, item);
}

/* A block that the call begins and leaves unfilled goes to the half that holds nothing yet. */
static enum qmw_place place_of(const struct qmw_context *context, const struct qmw_sequence *s,
			       uint32_t block, uint32_t end)
{
	if (context->model->options.cache != QMW_CACHE_PACKED)
		return QMW_PLACE_ALL;
	if (block == s->length / QMK_PAGE_TOKENS && s->length % QMK_PAGE_TOKENS)
		return QMW_PLACE_TAIL;
	if (end % QMK_PAGE_TOKENS == 0)
		return QMW_PLACE_SCRATCH;
	return s->length % QMK_PAGE_TOKENS ? QMW_PLACE_SPARE : QMW_PLACE_TAIL;
}

static void add_spans(struct qmw_context *context, const struct qmw_forward_item *item,
		      uint32_t row, uint32_t *scratch)
{
	struct qmw_sequence *s = item->sequence;
	uint32_t position = s->length, end = s->length + item->count;

	while (position < end) {
		uint32_t block = position / QMK_PAGE_TOKENS;
		uint32_t stop =
			(block + 1) * QMK_PAGE_TOKENS < end ? (block + 1) * QMK_PAGE_TOKENS : end;
		struct qmw_span *span = &context->spans[context->span_count];

		*span = (struct qmw_span){.sequence = s,
					  .block = block,
					  .first_row = row,
					  .count = stop - position,
					  .total = stop};
		span->place = place_of(context, s, block, stop);
		if (span->place == QMW_PLACE_SCRATCH)
			span->scratch = (*scratch)++;
		for (uint32_t i = 0; i < span->count; i++)
			context->row_span[row + i] = context->span_count;
		context->span_count++;
		row += span->count;
		position = stop;
	}
}

static void add_wanted(struct qmw_context *context, const struct qmw_forward_item *item,
		       uint32_t row)
{
	uint32_t first = item->all_logits ? 0 : item->count - 1;

	if (!item->logits)
		return;
	for (uint32_t i = first; i < item->count; i++)
		context->wanted[context->wanted_count++] = (struct qmw_logit_row){
			row + i, item->logits + (size_t)(i - first) * context->model->config.vocab};
}

qmla_status_t qmw_plan(struct qmw_context *context, const struct qmk_pool *pool,
		       const struct qmw_forward_item *items, uint32_t count)
{
	uint32_t scratch = 0, row = 0;

	context->pool = pool;
	context->rows = context->span_count = context->wanted_count = 0;
	for (uint32_t i = 0; i < count; i++) {
		qmla_status_t status = check_item(context, items, i);

		if (status)
			return status;
		if (items[i].count > context->max_tokens - context->rows)
			return refuse(i, "the call has more tokens than its context");
		context->rows += items[i].count;
	}
	for (uint32_t i = 0; i < count; i++) {
		add_spans(context, &items[i], row, &scratch);
		add_wanted(context, &items[i], row);
		row += items[i].count;
	}
	return QMLA_OK;
}

void qmw_plan_commit(struct qmw_context *context, const struct qmw_forward_item *items,
		     uint32_t count)
{
	for (uint32_t i = 0; i < context->span_count; i++)
		if (context->spans[i].place == QMW_PLACE_SPARE)
			context->spans[i].sequence->tail ^= 1;
	for (uint32_t i = 0; i < count; i++) {
		qmw_sequence_remember(items[i].sequence, items[i].tokens, items[i].count);
		items[i].sequence->length += items[i].count;
	}
}
