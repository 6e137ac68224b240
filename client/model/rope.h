/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Rotary embedding of a model: frequencies (with YaRN or LongRoPE), the factor on cos and
 * sin, and the softmax scale. Formulas: transformers' modeling_rope_utils.py
 * (yarn, longrope) and modeling_deepseek_v3.py (yarn_apply_mscale).
 */
#ifndef QMW_ROPE_H
#define QMW_ROPE_H

#include <stdint.h>

#include "client/model/config.h"
#include "kernels/ops.h"

struct qmw_rope {
	uint32_t dim; /**< d_r */
	enum qmk_pairing pairing;
	float inv_freq[QMK_MAX_ROPE_DIM / 2];
	float amplitude;     /**< on cos and sin */
	float softmax_scale; /**< tau, natural base */
};

/** Fills @p rope from a checked config. Pure. */
void qmw_rope_init(const struct qmw_config *config, struct qmw_rope *rope);

/** cos and sin (amplitude in) of @p position for every pair. [d_r/2] each. */
void qmw_rope_angles(const struct qmw_rope *rope, uint32_t position, float *cosines, float *sines);

/** Rotates one vector [d_r] in place, in the model's own pair order. */
void qmw_rope_rotate(const struct qmw_rope *rope, const float *cosines, const float *sines,
		     float *vector);

/** Indices of pair @p j in the stored order. */
static inline void qmw_rope_pair(const struct qmw_rope *rope, uint32_t j, uint32_t *a, uint32_t *b)
{
	*a = rope->pairing == QMK_INTERLEAVED ? 2 * j : j;
	*b = rope->pairing == QMK_INTERLEAVED ? 2 * j + 1 : j + rope->dim / 2;
}

#endif /* QMW_ROPE_H */
