/* SPDX-License-Identifier: Apache-2.0 */
/** @file What the files of client/model share: a model, a sequence, a context. */
#ifndef QMW_INTERNAL_H
#define QMW_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/model/config.h"
#include "client/model/constants.h"
#include "client/model/model.h"
#include "client/model/rope.h"
#include "client/model/team.h"
#include "client/model/weights.h"
#include "kernels/ops.h"

#define QMW_TILE_ROWS QMK_PAGE_TOKENS

struct qmw_model {
	struct qmw_model_options options;
	struct qmw_model_info info;
	struct qmw_config config;
	struct qmw_rope rope;
	struct qmk_layout layout;
	struct qmw_constants constants;
	struct qmw_weights weights;
	struct qmw_checkpoint *checkpoint; /**< open while n-grams are read from it, else NULL */
	uint8_t identity[QMC_SHA256_BYTES];
	const struct qmk_ops *ops;
	struct qmk_rope kernel_rope;
	struct qmk_constants *attend_constants; /**< [layers] */
	struct qmk_constants *pack_constants; /**< [layers]: rows have their means taken already */
};

/** Values of one row of the cache: d_c + d_r. */
static inline uint32_t qmw_model_width(const struct qmw_model *model)
{
	return model->config.content_dim + model->config.rope_dim;
}

/**
 * Packed: rows [2][layers][64][width], BF16; half `tail` holds the block that is
 * not full, the other receives the next one while a forward call is not yet
 * known to succeed. BF16 and F32: rows [layers][max_tokens][width].
 */
struct qmw_study;

struct qmw_sequence {
	const struct qmw_model *model;
	uint32_t max_tokens;
	uint32_t length;
	uint32_t capacity; /**< entries of slots */
	uint32_t *slots;
	uint32_t history[QMW_NEIGHBOURS_MAX]; /**< the last tokens, newest first */
	uint32_t known;                       /**< of them */
	uint32_t tail;
	uint16_t *rows;
	float *float_rows; /**< QMW_CACHE_F32: normalised latent, then the rotated key; a study:
			      twice */
	struct qmw_study *study; /**< study.h; NULL: none */
	float *expanded;         /**< QMW_CACHE_F32 and a study: keys and values of all heads
				    (attention_float.h) */
};

/** Where the BF16 rows of a block are while a call runs. */
enum qmw_place { QMW_PLACE_ALL, QMW_PLACE_TAIL, QMW_PLACE_SPARE, QMW_PLACE_SCRATCH };

/** The part of one sequence's block that a call computes. */
struct qmw_span {
	struct qmw_sequence *sequence;
	uint32_t block;
	uint32_t first_row; /**< of the call */
	uint32_t count;     /**< 1 … 64 */
	uint32_t total;     /**< positions up to and with its last */
	enum qmw_place place;
	uint32_t scratch; /**< index of the scratch block */
};

/** True when the span ends its block, which is then packed. */
static inline bool qmw_span_fills(const struct qmw_span *span)
{
	return span->total % QMK_PAGE_TOKENS == 0;
}

/** Memory that grows and never shrinks, 64-byte aligned. */
struct qmw_buffer {
	void *bytes;
	size_t length;
};

/** Scratch of one thread. */
struct qmw_lane {
	float *x;                    /**< [64][hidden] */
	float *latent;               /**< [64][width] */
	float *query_low;            /**< [64][q_rank] */
	float *gate_up;              /**< [64][2 width] of the widest MLP */
	float *scores, *choice;      /**< [64][experts], [experts]; without experts empty */
	float *sum;                  /**< [64][hidden]: of experts' outputs, or n-grams */
	float *ngram_rows;           /**< [64][width of the tables] */
	uint64_t *ngram_ids;         /**< [64][tables] */
	float *query_content;        /**< [64][H][d_c] */
	float *query_rope;           /**< [64][H][d_r] */
	float *mixed;                /**< [64][H][d_c]: the attention's output latents */
	struct qmw_buffer workspace; /**< of the kernels */
	struct qmw_buffer parts;     /**< outputs and lse of an attention in parts */
};

/** Scratch of a mixture of experts (mixture.h); a slot is one of a row's routes. */
struct qmw_mixture {
	uint32_t band;            /**< rows at a time */
	float *inputs;            /**< [band][hidden], normalised */
	float *outputs;           /**< [band][top_k][hidden] */
	struct qmw_route *routes; /**< [band][top_k] */
	uint32_t *order;          /**< slots sorted by expert, those of expert e from begin[e] on */
	uint32_t *begin;          /**< [experts + 1] */
	uint32_t *hit;            /**< experts that have slots */
	uint32_t hit_count;
	float *shortcut; /**< [max_tokens][hidden]: to be added at the end of the decoder layer */
};

struct qmw_context {
	const struct qmw_model *model;
	uint32_t max_tokens;
	struct qmw_team *team;
	struct qmw_lane *lanes;       /**< [threads] */
	float *hidden;                /**< [max_tokens][hidden]: the residual stream */
	float *query;                 /**< [max_tokens][H][d_n + d_r], RoPE part rotated */
	float *heads;                 /**< [max_tokens][H][d_v] */
	float *cosines, *sines;       /**< [max_tokens][d_r / 2] */
	float *logits;                /**< [16][vocab] */
	uint16_t *scratch;            /**< [max_tokens / 64][64][width] */
	struct qmw_span *spans;       /**< [max_tokens] */
	uint32_t *row_span;           /**< [max_tokens]: span of a row */
	uint32_t *tokens;             /**< [max_tokens] of the call */
	struct qmw_logit_row *wanted; /**< [max_tokens] */
	struct qmw_mixture mixture;

	/* Of the call at work. */
	const struct qmk_pool *pool;
	uint32_t rows, span_count, wanted_count, layer;
	uint32_t range_first, range_rows; /**< the rows that the tiles divide: all, or a band */
	uint32_t tile_rows;   /**< 8 … 64: as many tiles as threads, if there are rows enough */
	struct qmw_buffer up; /**< W_UK of the layer, dense: [H d_n][d_c] (attention_float.h) */
	bool alone;           /**< one tile: the team divides each product instead */
	_Atomic int status;   /**< first failure of a task */
};

struct qmw_logit_row {
	uint32_t row;
	float *logits; /**< the caller's [vocab] */
};

/** BF16 rows of the span's block in @p layer, from the block's first token on. */
uint16_t *qmw_span_rows(const struct qmw_context *context, const struct qmw_span *span,
			uint32_t layer);

/** Float rows of the sequence in @p layer (QMW_CACHE_F32). */
float *qmw_sequence_float_rows(const struct qmw_sequence *sequence, uint32_t layer);

/** 64-byte aligned zeros, [@p count][@p width]; NULL without memory. */
float *qmw_floats(size_t count, size_t width);

/** At least @p bytes of the buffer, contents undefined; NULL without memory. */
void *qmw_buffer_reserve(struct qmw_buffer *buffer, size_t bytes);

/** Notes a task's failure; the first one is kept. Any thread. */
void qmw_context_fail(struct qmw_context *context, qmla_status_t status);

/** The first failure noted in this call, QMLA_OK without one. After the tasks have ended. */
qmla_status_t qmw_context_failure(const struct qmw_context *context);

/** matrix.h's product over all outputs, divided over the team when the call has one tile. */
void qmw_context_product(struct qmw_context *context, const struct qmw_matrix *matrix,
			 const float *x, size_t x_stride, uint32_t rows, float *y, size_t y_stride);

#endif /* QMW_INTERNAL_H */
