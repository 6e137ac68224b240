/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Runs an MLA language model on the CPU over a paged, packed cache. Loads Hugging
 * Face checkpoints of the families of config.h, with their mixtures of experts, and beside
 * them quantmla.json and quantmla.safetensors (docs/format.md), whose transforms
 * it fuses into the weights on loading.
 *
 * The cache rule. Token t of block j (64 tokens) attends to the packed pages of
 * blocks 0 … j-1 and to the BF16 rows of block j up to itself, however the text
 * is cut into chunks and whoever computed the earlier blocks. So computing,
 * fetching and recomputing a prefix give the same answer.
 *
 * With QMW_CACHE_BF16 every row stays BF16: the baseline.
 *
 * Threads: a model is read-only after opening, several threads may run forward on
 * it with different contexts. A sequence belongs to one thread at a time.
 */
#ifndef QMW_MODEL_H
#define QMW_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/constants.h"
#include "kernels/ops.h"

struct qmw_model;
struct qmw_context;  /**< scratch of one forward caller */
struct qmw_sequence; /**< one request's cache state */

enum qmw_cache_kind {
	QMW_CACHE_PACKED,
	QMW_CACHE_BF16,
	QMW_CACHE_F32,
	QMW_CACHE_STUDY /**< for measuring: sequences come from study.h */
};

struct qmw_model_options {
	enum qmk_format format; /**< of the packed cache; 0: what quantmla.json says, else C4R4 */
	enum qmw_cache_kind cache; /**< default packed */
	bool ignore_calibration;   /**< run without quantmla.json */
	bool round_bf16;           /**< round activations where a BF16 implementation does */
	uint32_t threads;          /**< of each context; 0: the processors this process may use */
};

struct qmw_model_info {
	const char *family;      /**< "DeepSeek-V3"; static */
	uint32_t layers;         /**< of the cache: attention sub-layers */
	uint32_t decoder_layers; /**< of which sparse_layers have experts */
	uint32_t sparse_layers, experts, zero_experts, experts_per_token, shared_experts;
	bool fp8;         /**< the checkpoint's weights are 8-bit */
	uint32_t history; /**< tokens before a token that its embedding reads */
	uint32_t hidden, heads, content_dim, rope_dim, nope_dim, value_dim;
	uint32_t vocab, max_position;
	int64_t eos; /**< -1: none */
	uint64_t parameters;
	bool calibrated;
	char architecture[64];
	char calibration[96];         /**< recipe, or "none" */
	char method[32];              /**< what made the fused weights; empty: they are not fused */
	enum qmw_quantiser quantiser; /**< that they were learned for */
	enum qmk_format format;       /**< that they were learned for, 0: not said */
};

/**
 * Reads config.json, every shard's header (names, dtypes, shapes, offsets are
 * all checked), then the weights. Logs the file and the tensor at fault:
 * QMLA_ERR_NOT_FOUND, QMLA_ERR_FORMAT, QMLA_ERR_UNSUPPORTED, QMLA_ERR_CORRUPT.
 */
qmla_status_t qmw_model_open(const char *directory, const struct qmw_model_options *options,
			     struct qmw_model **model);
void qmw_model_close(struct qmw_model *model); /**< accepts NULL */

/** What the model is; lives as long as the model. */
const struct qmw_model_info *qmw_model_info(const struct qmw_model *model);

/** The geometry of its cache blocks; lives as long as the model. */
const struct qmk_layout *qmw_model_layout(const struct qmw_model *model);
/** SHA-256 over the weights' and constants' digests, layout and RoPE parameters. */
void qmw_model_identity(const struct qmw_model *model, uint8_t identity[32]);

/** @p max_tokens: most tokens of one forward call, over all its items. */
qmla_status_t qmw_context_create(const struct qmw_model *model, uint32_t max_tokens,
				 struct qmw_context **context);

/** Frees it; no forward call may be using it. Accepts NULL. */
void qmw_context_destroy(struct qmw_context *context);

/** An empty sequence of at most @p max_tokens tokens. */
qmla_status_t qmw_sequence_create(const struct qmw_model *model, uint32_t max_tokens,
				  struct qmw_sequence **sequence);

/** Frees it; slots of the pool stay their owner's. Accepts NULL. */
void qmw_sequence_destroy(struct qmw_sequence *sequence);

/** Tokens whose cache state is there. */
uint32_t qmw_sequence_length(const struct qmw_sequence *sequence);

/**
 * The pool slots of its blocks, in order; the caller appends slots before a
 * forward that fills a block (block i needs entry i when token 64i+63 is
 * computed). @p capacity receives the number of entries there is room for.
 */
uint32_t *qmw_sequence_slots(struct qmw_sequence *sequence, uint32_t *capacity);

/** Declares that blocks 0 … @p blocks-1 are in the pool already (fetched): length becomes
 * 64·blocks. Only on an empty sequence. */
qmla_status_t qmw_sequence_adopt(struct qmw_sequence *sequence, uint32_t blocks);

/**
 * Tells the sequence the tokens before its next one, which adopted blocks do not: @p tokens
 * [count], in the text's order, the last `history` of them are kept. A model whose embeddings
 * read no earlier tokens needs none.
 */
void qmw_sequence_remember(struct qmw_sequence *sequence, const uint32_t *tokens, uint32_t count);

/** One request's part of a forward call. */
struct qmw_forward_item {
	struct qmw_sequence *sequence;
	const uint32_t *tokens;
	uint32_t count;
	bool all_logits; /**< else those of the last token only */
	float *logits;   /**< [count or 1][vocab], or NULL: none wanted */
};

/**
 * Runs the items' tokens through the model, appends them to their sequences,
 * packs every block that fills into its slot of @p pool (pages only: the caller
 * seals headers). Continuous batching: items may be of any lengths. @p pool may
 * be NULL for the BF16 and F32 caches. QMLA_ERR_INVALID_ARGUMENT: token outside
 * the vocabulary, sequence or context too short, an adopted sequence that was not told its
 * history. On an error the sequences are
 * as they were before.
 */
qmla_status_t qmw_model_forward(const struct qmw_model *model, struct qmw_context *context,
				const struct qmk_pool *pool, const struct qmw_forward_item *items,
				uint32_t count);

#endif /* QMW_MODEL_H */
