/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Keys of one sequence, a tile of positions at a time, as float rows: from packed pages
 * and from BF16 rows alike, RoPE part rotated by position. A row is d_c content
 * values in sliced order, then d_r RoPE values in pair order: first members of
 * all pairs, then second members.
 */
#ifndef QMK_CPU_ATTEND_KEYS_H
#define QMK_CPU_ATTEND_KEYS_H

#include "kernels/ops.h"

/**
 * Positions of a tile; divides 64. Tiles begin at multiples of it. Sized so that
 * the tile's floats and a few query rows stay in a core's first-level cache.
 */
#define QMK_TILE 64u

struct qmk_cpu_keys {
	const struct qmk_attend_args *args;
	const struct qmk_sequence *sequence;
	bool half_split; /**< pairing of the stored keys */
	uint32_t block;  /**< whose start `turn` is the rotation of */
	float *rows;     /**< [QMK_TILE][d_c + d_r]: the tile */
	float *sliced;   /**< [QMK_TILE][d_r]: RoPE codes' values on their way */
	float *mean;     /**< [d_r]: RoPE mean in pair order */
	float *step_cos; /**< [64][d_r / 2]: rotation from a block's start to its token */
	float *step_sin;
	float *turn_cos; /**< [d_r / 2]: rotation of the block's start */
	float *turn_sin;
	double *turn; /**< [2][d_r / 2]: the same, cos then sin */
	double *jump; /**< [2][d_r / 2]: rotation of one block */
};

/** Floats of scratch that qmk_cpu_keys_init wants, 64-byte aligned. */
size_t qmk_cpu_keys_scratch(const struct qmk_layout *layout);

/** Prepares the rotation tables for one attend call. */
void qmk_cpu_keys_init(struct qmk_cpu_keys *keys, const struct qmk_attend_args *args,
		       float *scratch);

/** Starts on @p sequence at position @p position. */
void qmk_cpu_keys_begin(struct qmk_cpu_keys *keys, const struct qmk_sequence *sequence,
			uint32_t position);

/**
 * Fills the tile with the keys of positions [begin, end), all of one tile: position
 * p in row p % QMK_TILE. Other rows keep what they held. Positions only grow.
 */
void qmk_cpu_keys_load(struct qmk_cpu_keys *keys, uint32_t begin, uint32_t end);

/** A natural RoPE vector in pair order, times @p factor. */
void qmk_cpu_keys_pair(const float *natural, uint32_t dim, bool half_split, float factor,
		       float *out);

#endif /* QMK_CPU_ATTEND_KEYS_H */
