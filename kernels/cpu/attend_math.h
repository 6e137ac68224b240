/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The three inner loops of attention on one tile of keys. Query rows come in
 * fours; what a row gets does not depend on its neighbours or on how many there
 * are, so a token's result is the same in any batch.
 */
#ifndef QMK_CPU_ATTEND_MATH_H
#define QMK_CPU_ATTEND_MATH_H

#include <stdint.h>

#include "kernels/cpu/attend_keys.h"

#define QMK_ATTEND_ROWS 4u /**< rows are padded to a multiple of this */

/** Query rows of one group and their running softmax. */
struct qmk_cpu_rows {
	uint32_t rows;   /**< multiple of QMK_ATTEND_ROWS */
	uint32_t width;  /**< d_c + d_r, multiple of 16 */
	uint32_t values; /**< d_c, multiple of 32 */
	float *query;    /**< [rows][width], scale and log2 e multiplied in */
	float *output;   /**< [rows][values] */
	float *score;    /**< [rows][QMK_TILE]: scores, then weights */
	float *peak;     /**< [rows] largest score so far, -INFINITY at first */
	float *sum;      /**< [rows] of weights so far */
	float *shrink;   /**< [rows] what this tile multiplies earlier output by */
	uint32_t *end;   /**< [rows] keys of the tile that the row sees end here */
};

/**
 * score = query keys^T for the tile's keys [begin, end), rounded out to fours: scores
 * outside are of whatever the rows hold, and softmax leaves them out.
 */
void qmk_cpu_attend_score(const struct qmk_cpu_rows *rows, const float *keys, uint32_t begin,
			  uint32_t end);

/** Online softmax, base 2: weights in place of scores, 0 outside [begin, end of the row). */
void qmk_cpu_attend_softmax(const struct qmk_cpu_rows *rows, uint32_t begin);

/** output = output shrink + weights values; values are the first d_c of each key row. */
void qmk_cpu_attend_accumulate(const struct qmk_cpu_rows *rows, const float *keys, uint32_t begin,
			       uint32_t end);

#endif /* QMK_CPU_ATTEND_MATH_H */
