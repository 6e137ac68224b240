/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/step.h"

#include <stdlib.h>

#include "client/model/sample.h"
#include "common/log.h"

#define COMPONENT "scheduler"

struct qmw_step {
	struct qmw_step_config config;
	struct qmw_context *context;
	uint32_t vocab;
	int64_t eos;
	uint32_t turn; /* which prefilling request is served first: moves on every step */
	struct qmw_forward_item *items;    /* [max_batch] */
	struct qmw_forward_item *packed;   /* [max_batch]: those of them that have tokens */
	struct qmw_step_outcome *outcomes; /* [max_batch] */
	float *logits;                     /* [max_batch][vocab] */
	uint32_t *scratch;                 /* [vocab] */
};

qmla_status_t qmw_step_create(const struct qmw_step_config *config, struct qmw_step **step)
{
	const struct qmw_model_info *info = qmw_model_info(config->model);
	struct qmw_step *s = calloc(1, sizeof(*s));
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (!s)
		return status;
	s->config = *config;
	s->vocab = info->vocab;
	s->eos = info->eos;
	s->items = calloc(config->max_batch, sizeof(*s->items));
	s->packed = calloc(config->max_batch, sizeof(*s->packed));
	s->outcomes = calloc(config->max_batch, sizeof(*s->outcomes));
	s->logits = calloc((size_t)config->max_batch * s->vocab, sizeof(*s->logits));
	s->scratch = calloc(s->vocab, sizeof(*s->scratch));
	if (s->items && s->packed && s->outcomes && s->logits && s->scratch)
		status = qmw_context_create(config->model, config->chunk + config->max_batch,
					    &s->context);
	if (status != QMLA_OK) {
		qmw_step_destroy(s);
		return status;
	}
	*step = s;
	return QMLA_OK;
}

void qmw_step_destroy(struct qmw_step *step)
{
	if (!step)
		return;
	qmw_context_destroy(step->context);
	free(step->items);
	free(step->packed);
	free(step->outcomes);
	free(step->logits);
	free(step->scratch);
	free(step);
}

static uint32_t tokens_left(const struct qmw_request *request)
{
	return request->length - qmw_sequence_length(request->sequence);
}

static bool is_prefilling(const struct qmw_request *request)
{
	return request->length == request->prompt;
}

/*
 * Shares the chunk evenly among those that prefill, at least a block each, from
 * `turn` on: a long prompt does not hold up a short one for longer than its share.
 */
static void plan_prefill(struct qmw_step *s, struct qmw_request *const *requests, uint32_t count)
{
	uint32_t budget = s->config.chunk;
	uint32_t left = 0;

	for (uint32_t i = 0; i < count; i++)
		left += is_prefilling(requests[i]);
	for (uint32_t n = 0; n < count && budget > 0; n++) {
		uint32_t i = (s->turn + n) % count;
		uint32_t share;

		if (!is_prefilling(requests[i]))
			continue;
		share = budget / left--;
		if (share < QMLA_BLOCK_TOKENS)
			share = QMLA_BLOCK_TOKENS;
		if (share > budget)
			share = budget;
		if (share > tokens_left(requests[i]))
			share = tokens_left(requests[i]);
		s->items[i].count = share;
		budget -= share;
	}
	s->turn++;
}

static void plan(struct qmw_step *s, struct qmw_request *const *requests, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct qmw_request *request = requests[i];

		s->outcomes[i] = (struct qmw_step_outcome){QMW_FINISH_NONE, QMLA_OK};
		s->items[i] = (struct qmw_forward_item){
			.sequence = request->sequence,
			.tokens = request->tokens + qmw_sequence_length(request->sequence),
			.count = is_prefilling(request) ? 0 : 1,
		};
	}
	plan_prefill(s, requests, count);
	for (uint32_t i = 0; i < count; i++) {
		bool last = s->items[i].count > 0 && s->items[i].count == tokens_left(requests[i]);

		if (last && requests[i]->max_tokens > 0)
			s->items[i].logits = s->logits + (size_t)i * s->vocab;
	}
}

/* Blocks that this item fills need their slots before the call. */
static void take_slots(struct qmw_step *s, struct qmw_request *request, uint32_t count)
{
	uint32_t after = (qmw_sequence_length(request->sequence) + count) / QMLA_BLOCK_TOKENS;
	uint32_t capacity;
	uint32_t *table = qmw_sequence_slots(request->sequence, &capacity);

	while (request->blocks < after) {
		uint32_t slot = qmw_pool_take(s->config.pool, &request->grant);

		request->slots[request->blocks] = slot;
		table[request->blocks++] = slot;
	}
}

static void hand_out_blocks(struct qmw_step *s, struct qmw_request *request, uint32_t from,
			    struct qmw_step_result *result)
{
	uint32_t until = qmw_sequence_length(request->sequence) / QMLA_BLOCK_TOKENS;
	uint32_t capacity;
	uint32_t *table = qmw_sequence_slots(request->sequence, &capacity);

	for (uint32_t block = from; block < until; block++) {
		uint32_t slot = request->slots[block];

		if (s->config.block_done)
			slot = s->config.block_done(s->config.user, request, block, slot);
		request->slots[block] = slot;
		table[block] = slot;
	}
	result->blocks += until - from;
}

static struct qmw_step_outcome sample(struct qmw_step *s, struct qmw_request *request,
				      float *logits, struct qmw_step_result *result)
{
	uint32_t token = qmw_sample(&request->sampler, logits, s->scratch, s->vocab);

	if ((int64_t)token == s->eos && !request->ignore_eos)
		return (struct qmw_step_outcome){QMW_FINISH_EOS, QMLA_OK};
	if (is_prefilling(request))
		qmw_request_set_state(request, QMW_REQUEST_DECODING);
	qmw_request_append(request, token);
	result->generated++;
	if (request->length - request->prompt == request->max_tokens)
		return (struct qmw_step_outcome){QMW_FINISH_LENGTH, QMLA_OK};
	return (struct qmw_step_outcome){QMW_FINISH_NONE, QMLA_OK};
}

static struct qmw_step_outcome advance(struct qmw_step *s, struct qmw_request *request,
				       const struct qmw_forward_item *item,
				       struct qmw_step_result *result)
{
	uint32_t before = qmw_sequence_length(request->sequence) - item->count;

	if (is_prefilling(request))
		result->prefilled += item->count;
	hand_out_blocks(s, request, before / QMLA_BLOCK_TOKENS, result);
	if (item->logits)
		return sample(s, request, item->logits, result);
	if (request->max_tokens == 0 && tokens_left(request) == 0)
		return (struct qmw_step_outcome){QMW_FINISH_LENGTH, QMLA_OK};
	return (struct qmw_step_outcome){QMW_FINISH_NONE, QMLA_OK};
}

static void forward_alone(struct qmw_step *s, const struct qmk_pool *pool, uint32_t index)
{
	qmla_status_t status =
		qmw_model_forward(s->config.model, s->context, pool, &s->items[index], 1);

	if (status != QMLA_OK) {
		qmc_warn(COMPONENT, "a request was ended: the model failed on it: %s",
			 qmla_status_text(status));
		s->outcomes[index] = (struct qmw_step_outcome){QMW_FINISH_FAILED, status};
	}
}

/* Runs the items that have tokens. */
static void forward(struct qmw_step *s, uint32_t count)
{
	struct qmk_pool pool = qmw_pool_kernel(s->config.pool);
	qmla_status_t status;
	uint32_t n = 0;

	for (uint32_t i = 0; i < count; i++) {
		if (s->items[i].count > 0)
			s->packed[n++] = s->items[i];
	}
	if (n == 0)
		return;
	status = qmw_model_forward(s->config.model, s->context, &pool, s->packed, n);
	if (status == QMLA_OK)
		return;
	for (uint32_t i = 0; i < count; i++) {
		if (s->items[i].count > 0)
			forward_alone(s, &pool, i);
	}
}

void qmw_step_run(struct qmw_step *step, struct qmw_request *const *requests, uint32_t count,
		  struct qmw_step_result *result)
{
	plan(step, requests, count);
	for (uint32_t i = 0; i < count; i++)
		take_slots(step, requests[i], step->items[i].count);
	forward(step, count);
	for (uint32_t i = 0; i < count; i++) {
		struct qmw_forward_item *item = &step->items[i];

		if (item->count == 0 || step->outcomes[i].finish != QMW_FINISH_NONE)
			continue;
		result->requests++;
		step->outcomes[i] = advance(step, requests[i], item, result);
	}
	result->outcomes = step->outcomes;
}
