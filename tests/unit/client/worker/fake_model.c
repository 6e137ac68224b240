/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <qmla/cache.h>

#include "client/model/sample.h"

struct qmw_sequence {
	uint32_t capacity, length, blocks;
	uint32_t *slots;
	uint64_t hash;
};

struct fake_model_control fake;

static uint64_t mix(uint64_t hash, uint32_t token)
{
	hash = (hash ^ token) * UINT64_C(0x9E3779B97F4A7C15);
	return hash ^ hash >> 29;
}

uint32_t fake_next(const uint32_t *tokens, uint32_t count)
{
	uint64_t hash = 1;

	for (uint32_t i = 0; i < count; i++)
		hash = mix(hash, tokens[i]);
	return (uint32_t)(hash >> 20) % FAKE_VOCAB;
}

void fake_reset(void)
{
	memset(&fake, 0, sizeof(fake));
	fake.poison = UINT32_MAX;
	fake.eos = -1;
}

const struct qmw_model *fake_model(void)
{
	static char nothing;

	return (const struct qmw_model *)&nothing;
}

const struct qmw_model_info *qmw_model_info(const struct qmw_model *model)
{
	static struct qmw_model_info info = {.layers = 1, .vocab = FAKE_VOCAB};

	(void)model;
	info.eos = fake.eos;
	return &info;
}

qmla_status_t qmw_context_create(const struct qmw_model *model, uint32_t max_tokens,
				 struct qmw_context **context)
{
	(void)model;
	*context = malloc(max_tokens);
	return *context ? QMLA_OK : QMLA_ERR_NO_MEMORY;
}

void qmw_context_destroy(struct qmw_context *context)
{
	free(context);
}

qmla_status_t qmw_sequence_create(const struct qmw_model *model, uint32_t max_tokens,
				  struct qmw_sequence **sequence)
{
	struct qmw_sequence *s = calloc(1, sizeof(*s));

	(void)model;
	s->capacity = max_tokens;
	s->slots = calloc(max_tokens / QMLA_BLOCK_TOKENS + 1, sizeof(*s->slots));
	s->hash = 1;
	*sequence = s;
	return QMLA_OK;
}

void qmw_sequence_destroy(struct qmw_sequence *sequence)
{
	if (!sequence)
		return;
	free(sequence->slots);
	free(sequence);
}

uint32_t qmw_sequence_length(const struct qmw_sequence *sequence)
{
	return sequence->length;
}

uint32_t *qmw_sequence_slots(struct qmw_sequence *sequence, uint32_t *capacity)
{
	*capacity = sequence->capacity / QMLA_BLOCK_TOKENS;
	return sequence->slots;
}

/* A fetched block of the fake holds the hash up to its end in its first bytes. */
static void sequence_run(struct qmw_sequence *s, const struct qmk_pool *pool,
			 const struct qmw_forward_item *item)
{
	for (uint32_t i = 0; i < item->count; i++) {
		if (s->length > 0 && s->length % QMLA_BLOCK_TOKENS == 0) {
			uint32_t slot = s->slots[s->length / QMLA_BLOCK_TOKENS - 1];

			memcpy(&s->hash, (uint8_t *)pool->base + slot * pool->stride,
			       sizeof(s->hash));
		}
		s->hash = mix(s->hash, item->tokens[i]);
		if (++s->length % QMLA_BLOCK_TOKENS == 0) {
			uint32_t slot = s->slots[s->length / QMLA_BLOCK_TOKENS - 1];

			memcpy((uint8_t *)pool->base + slot * pool->stride, &s->hash,
			       sizeof(s->hash));
		}
	}
}

void qmw_sequence_remember(struct qmw_sequence *sequence, const uint32_t *tokens, uint32_t count)
{
	(void)sequence, (void)tokens, (void)count;
}

qmla_status_t qmw_sequence_adopt(struct qmw_sequence *sequence, uint32_t blocks)
{
	sequence->length = blocks * QMLA_BLOCK_TOKENS;
	return QMLA_OK;
}

static bool poisoned(const struct qmw_forward_item *items, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t t = 0; t < items[i].count; t++) {
			if (items[i].tokens[t] == fake.poison)
				return true;
		}
	}
	return false;
}

static void record(const struct qmw_forward_item *items, uint32_t count)
{
	struct fake_call *call = &fake.calls[fake.call_count % 4096];

	memset(call, 0, sizeof(*call));
	call->items = count;
	for (uint32_t i = 0; i < count; i++) {
		call->counts[i % 16] = items[i].count;
		call->tokens += items[i].count;
	}
	fake.call_count++;
}

qmla_status_t qmw_model_forward(const struct qmw_model *model, struct qmw_context *context,
				const struct qmk_pool *pool, const struct qmw_forward_item *items,
				uint32_t count)
{
	(void)model;
	(void)context;
	if (fake.delay_us)
		usleep(fake.delay_us);
	if (poisoned(items, count))
		return QMLA_ERR_INVALID_ARGUMENT;
	record(items, count);
	for (uint32_t i = 0; i < count; i++) {
		sequence_run(items[i].sequence, pool, &items[i]);
		if (!items[i].logits)
			continue;
		for (uint32_t v = 0; v < FAKE_VOCAB; v++)
			items[i].logits[v] = 0;
		items[i].logits[(items[i].sequence->hash >> 20) % FAKE_VOCAB] = 1;
	}
	return QMLA_OK;
}

uint32_t qmw_sample(struct qmw_sampler *sampler, float *logits, uint32_t *scratch, uint32_t vocab)
{
	uint32_t best = 0;

	(void)sampler;
	(void)scratch;
	for (uint32_t v = 1; v < vocab; v++) {
		if (logits[v] > logits[best])
			best = v;
	}
	return best;
}

static uint64_t hashed;

uint64_t fake_tokens_hashed(void)
{
	return hashed;
}

/* Not the real keys, but like them: each depends on all tokens before. */
qmla_status_t qmla_key_chain_start(const qmla_identity_t *identity, const char *name_space,
				   qmla_key_chain_t *chain)
{
	uint64_t hash = identity->bytes[0] + (name_space ? (uint64_t)name_space[0] << 8 : 0);

	memset(chain, 0, sizeof(*chain));
	memcpy(chain->state, &hash, sizeof(hash));
	return QMLA_OK;
}

qmla_status_t qmla_key_chain_extend(qmla_key_chain_t *chain, const uint32_t *tokens, size_t blocks,
				    qmla_key_t *keys)
{
	uint64_t hash;

	memcpy(&hash, chain->state, sizeof(hash));
	for (size_t i = 0; i < blocks * QMLA_BLOCK_TOKENS; i++) {
		hash = mix(hash, tokens[i]);
		hashed++;
		if (i % QMLA_BLOCK_TOKENS == QMLA_BLOCK_TOKENS - 1) {
			memset(&keys[i / QMLA_BLOCK_TOKENS], 0, sizeof(*keys));
			memcpy(keys[i / QMLA_BLOCK_TOKENS].bytes, &hash, sizeof(hash));
		}
	}
	memcpy(chain->state, &hash, sizeof(hash));
	return QMLA_OK;
}
