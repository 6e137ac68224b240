/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/attention_float.h"
#include "client/model/internal.h"
#include "client/model/study_internal.h"
#include "common/log.h"

#define COMPONENT "model"

static qmla_status_t allocate_rows(struct qmw_sequence *self)
{
	const struct qmw_model *model = self->model;
	size_t layer = (size_t)qmw_model_width(model) * model->config.layers;

	switch (model->options.cache) {
	case QMW_CACHE_PACKED:
		self->rows = calloc(2 * QMK_PAGE_TOKENS * layer, sizeof(*self->rows));
		break;
	case QMW_CACHE_BF16:
		self->rows = calloc(self->max_tokens * layer, sizeof(*self->rows));
		break;
	case QMW_CACHE_F32:
		self->float_rows = calloc(self->max_tokens * layer, sizeof(*self->float_rows));
		break;
	case QMW_CACHE_STUDY:
		self->float_rows = calloc(2 * self->max_tokens * layer, sizeof(*self->float_rows));
		break;
	}
	if (self->float_rows) {
		layer = (size_t)model->config.layers * qmw_float_width(&model->config);
		self->expanded = calloc((model->options.cache == QMW_CACHE_STUDY ? 2 : 1) *
						self->max_tokens * layer,
					sizeof(*self->expanded));
	}
	return self->rows || self->expanded ? QMLA_OK : QMLA_ERR_NO_MEMORY;
}

qmla_status_t qmw_sequence_create(const struct qmw_model *model, uint32_t max_tokens,
				  struct qmw_sequence **sequence)
{
	struct qmw_sequence *self;

	if (max_tokens == 0 || max_tokens > model->config.max_position) {
		qmc_error(COMPONENT,
			  "a sequence of %" PRIu32 " tokens is outside 1 … %" PRIu32
			  ", the model's max_position_embeddings",
			  max_tokens, model->config.max_position);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	self = calloc(1, sizeof(*self));
	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->model = model;
	self->max_tokens = max_tokens;
	self->capacity = max_tokens / QMK_PAGE_TOKENS;
	self->slots = malloc((self->capacity + 1) * sizeof(*self->slots));
	if (!self->slots || allocate_rows(self)) {
		qmw_sequence_destroy(self);
		return QMLA_ERR_NO_MEMORY;
	}
	/* An entry that was never set is noticed. */
	memset(self->slots, 0xff, (self->capacity + 1) * sizeof(*self->slots));
	*sequence = self;
	return QMLA_OK;
}

void qmw_sequence_destroy(struct qmw_sequence *sequence)
{
	if (!sequence)
		return;
	free(sequence->slots);
	free(sequence->rows);
	free(sequence->float_rows);
	free(sequence->expanded);
	qmw_study_free(sequence->study);
	free(sequence);
}

uint32_t qmw_sequence_length(const struct qmw_sequence *sequence)
{
	return sequence->length;
}

uint32_t *qmw_sequence_slots(struct qmw_sequence *sequence, uint32_t *capacity)
{
	*capacity = sequence->capacity;
	return sequence->slots;
}

qmla_status_t qmw_sequence_adopt(struct qmw_sequence *sequence, uint32_t blocks)
{
	if (sequence->length != 0 || sequence->model->options.cache != QMW_CACHE_PACKED ||
	    blocks > sequence->capacity) {
		qmc_error(COMPONENT,
			  "cannot adopt %" PRIu32 " blocks into a sequence of %" PRIu32
			  " tokens and room for %" PRIu32 " blocks of packed cache",
			  blocks, sequence->length, sequence->capacity);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	sequence->length = blocks * QMK_PAGE_TOKENS;
	return QMLA_OK;
}

void qmw_sequence_remember(struct qmw_sequence *sequence, const uint32_t *tokens, uint32_t count)
{
	uint32_t most = qmw_config_history(&sequence->model->config);
	uint32_t taken = count < most ? count : most, kept = most - taken;

	/* Older ones move back, the new ones come to the front. */
	kept = kept < sequence->known ? kept : sequence->known;
	memmove(sequence->history + taken, sequence->history, kept * sizeof(*sequence->history));
	for (uint32_t i = 0; i < taken; i++)
		sequence->history[i] = tokens[count - 1 - i];
	sequence->known = taken + kept;
}

float *qmw_sequence_float_rows(const struct qmw_sequence *sequence, uint32_t layer)
{
	return sequence->float_rows +
	       (size_t)layer * sequence->max_tokens * qmw_model_width(sequence->model);
}

uint16_t *qmw_span_rows(const struct qmw_context *context, const struct qmw_span *span,
			uint32_t layer)
{
	const struct qmw_sequence *s = span->sequence;
	size_t block = (size_t)QMK_PAGE_TOKENS * qmw_model_width(s->model);
	uint32_t layers = s->model->config.layers;

	switch (span->place) {
	case QMW_PLACE_TAIL:
		return s->rows + ((size_t)s->tail * layers + layer) * block;
	case QMW_PLACE_SPARE:
		return s->rows + ((size_t)(1 - s->tail) * layers + layer) * block;
	case QMW_PLACE_SCRATCH:
		return context->scratch + span->scratch * block;
	default:
		return s->rows + ((size_t)layer * s->max_tokens) * qmw_model_width(s->model) +
		       span->block * block;
	}
}
