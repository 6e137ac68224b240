/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Keys of one sequence, 64 positions at a time, as float rows: from packed pages
 * and from BF16 rows alike, RoPE part rotated by position. A row is d_c content
 * values in sliced order, then d_r RoPE values in pair order: first members of
 * all pairs, then second members.
 */
#ifndef QMK_CPU_ATTEND_KEYS_H
#define QMK_CPU_ATTEND_KEYS_H

#include "kernels/ops.h"

struct qmk_cpu_keys {
	const struct qmk_attend_args *args;
	const struct qmk_sequence *sequence;
	bool half_split; /* pairing of the stored keys */
	float *rows;     /* [64][d_c + d_r] */
	float *mean;     /* [d_r] RoPE mean in pair order */
	float *step_cos; /* [64][d_r / 2]: rotation from a block's start to its token */
	float *step_sin;
	double *jump; /* [2][d_r / 2]: cos, sin of 64 positions */
	double *turn; /* [2][d_r / 2]: cos, sin of the current block's start */
};

/** Floats of scratch that qmk_cpu_keys_init wants, 64-byte aligned. */
size_t qmk_cpu_keys_scratch(const struct qmk_layout *layout);

/** Prepares the rotation tables for one attend call. */
void qmk_cpu_keys_init(struct qmk_cpu_keys *keys, const struct qmk_attend_args *args,
		       float *scratch);

/** Starts on @p sequence at block @p block. */
void qmk_cpu_keys_begin(struct qmk_cpu_keys *keys, const struct qmk_sequence *sequence,
			uint32_t block);

/**
 * Fills rows [begin, end) of the tile with the keys of block @p block, zeros
 * around them to whole fours, then moves to the next block.
 */
void qmk_cpu_keys_load(struct qmk_cpu_keys *keys, uint32_t block, uint32_t begin, uint32_t end);

/** A query's RoPE part in pair order, times @p factor. */
void qmk_cpu_keys_order_query(const struct qmk_cpu_keys *keys, const float *query, float factor,
			      float *out);

#endif /* QMK_CPU_ATTEND_KEYS_H */
