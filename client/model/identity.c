/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/identity.h"

#include <string.h>

struct message {
	uint8_t bytes[1024]; /* at most 17 + 72 + 48 + 12 + 256 + 84 + 32 */
	size_t length;
};

static void put(struct message *m, const void *data, size_t bytes)
{
	memcpy(m->bytes + m->length, data, bytes);
	m->length += bytes;
}

static void put_u32(struct message *m, uint32_t value)
{
	uint8_t bytes[4];

	for (int i = 0; i < 4; i++)
		bytes[i] = (uint8_t)(value >> 8 * i);
	put(m, bytes, sizeof(bytes));
}

static void put_float(struct message *m, float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	put_u32(m, bits);
}

static uint32_t flags(const struct qmw_identity_parts *parts)
{
	const struct qmw_config *c = parts->config;

	return (c->v3 ? 1u : 0) | (c->attention_bias ? 2u : 0) | (c->tied_embeddings ? 4u : 0) |
	       (c->mlp_bias ? 8u : 0) | (parts->round_bf16 ? 16u : 0);
}

/* Which layers have experts: a layer a bit, from the lowest on, in whole bytes. */
static void put_sparse(struct message *m, const struct qmw_config *c)
{
	uint8_t bits[(QMK_MAX_LAYERS + 7) / 8] = {0};

	for (uint32_t i = 0; i < c->layers; i++)
		bits[i / 8] |= (uint8_t)(c->moe.sparse[i] << i % 8);
	put(m, bits, (c->layers + 7) / 8);
}

/* What a family adds; a plain dense model has nothing of it, and the message ends before. */
static void put_family(struct message *m, const struct qmw_config *c)
{
	const struct qmw_moe_config *moe = &c->moe;
	const uint32_t numbers[] = {c->sublayers,
				    moe->experts,
				    moe->zero_experts,
				    moe->top_k,
				    moe->groups,
				    moe->top_groups,
				    (uint32_t)moe->gate,
				    (uint32_t)moe->group_score,
				    moe->correction_name != NULL,
				    moe->normalise,
				    moe->shortcut,
				    c->ngram.neighbours,
				    c->ngram.splits,
				    c->ngram.neighbours ? (uint32_t)c->eos : 0};
	const float scales[] = {moe->scale,           c->latent_scale,   c->query_scale,
				c->embedding_scale,   c->residual_scale, c->head_scale,
				(float)c->ngram.ratio};
	bool plain = !moe->experts && c->latent_scale == 1 && c->query_scale == 1 &&
		     c->embedding_scale == 1 && c->residual_scale == 1 && c->head_scale == 1;

	if (plain)
		return;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		put_u32(m, numbers[i]);
	for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++)
		put_float(m, scales[i]);
	if (moe->experts)
		put_sparse(m, c);
}

qmla_status_t qmw_identity_compute(const struct qmw_identity_parts *parts,
				   uint8_t identity[QMC_SHA256_BYTES])
{
	const struct qmw_config *c = parts->config;
	const uint32_t geometry[] = {c->layers,      c->hidden,   c->heads,    c->q_rank,
				     c->content_dim, c->rope_dim, c->nope_dim, c->value_dim};
	uint64_t fingerprint = qmk_layout_fingerprint(parts->layout);
	struct message m = {.length = 0};

	put(&m, "qmla-identity-v1", sizeof("qmla-identity-v1"));
	put(&m, parts->weights_digest, QMC_SHA256_BYTES);
	put(&m, parts->constants_digest, QMC_SHA256_BYTES);
	put_u32(&m, (uint32_t)fingerprint);
	put_u32(&m, (uint32_t)(fingerprint >> 32));
	for (size_t i = 0; i < sizeof(geometry) / sizeof(geometry[0]); i++)
		put_u32(&m, geometry[i]);
	put_float(&m, c->norm_eps);
	put_u32(&m, flags(parts));
	put_u32(&m, (uint32_t)parts->rope->pairing);
	put_float(&m, parts->rope->amplitude);
	put_float(&m, parts->rope->softmax_scale);
	for (uint32_t j = 0; j < parts->rope->dim / 2; j++)
		put_float(&m, parts->rope->inv_freq[j]);
	put_family(&m, c);
	return qmc_sha256(m.bytes, m.length, identity);
}
