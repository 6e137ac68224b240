/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Attention over float32 rows with plain matrix products, for many queries at a time: the
 * exact cache, and the study's, whose keys have two versions. Keys and values of each head
 * are expanded once from the latents, which for long texts is several times less work than
 * attending to latents, and takes H (d_n + d_v) floats a token and layer.
 */
#ifndef QMW_ATTENTION_FLOAT_H
#define QMW_ATTENTION_FLOAT_H

#include <stdint.h>

#include "client/model/forward.h"
#include "client/model/study.h"

/** One version of the keys of one layer of a sequence. */
struct qmw_float_version {
	const float *rows; /**< [total][d_c + d_r], keys rotated */
	const float *up;   /**< [total][H d_n + H d_v]: keys of all heads, then values */
};

struct qmw_float_keys {
	struct qmw_float_version near, far; /**< far.rows NULL: all keys are near */
	enum qmw_protect protect;           /**< which of the two a query sees */
};

/** Floats of an expanded row. */
static inline size_t qmw_float_width(const struct qmw_config *config)
{
	return (size_t)config->heads * (config->nope_dim + config->value_dim);
}

/** Keys before this position are near for everybody. */
uint32_t qmw_float_sink(enum qmw_protect protect);

/** From this position on keys are near for a query at @p position (its own included). */
uint32_t qmw_float_far_end(enum qmw_protect protect, uint32_t position);

/** Makes W_UK of the context's layer dense; before expand. QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_float_prepare(struct qmw_context *context);

/** Keys and values of the span's rows, near and (of a study that quantises) far. */
void qmw_float_expand(struct qmw_context *context, const struct qmw_span *span);

/** The keys of the context's layer of a sequence; far of a study's only. */
struct qmw_float_keys qmw_float_keys(const struct qmw_context *context,
				     const struct qmw_sequence *sequence);

/** All rows of the span, from context->query: @p heads [span->count][H][d_v]. QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmw_attention_float_keys(const struct qmw_context *context, struct qmw_lane *lane,
				       const struct qmw_span *span,
				       const struct qmw_float_keys *keys, float *heads);

/** The same over the float32 cache. */
qmla_status_t qmw_attention_float(const struct qmw_context *context, struct qmw_lane *lane,
				  const struct qmw_span *span, float *heads);

#endif /* QMW_ATTENTION_FLOAT_H */
