/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Weight matrices packed for products whose every output row depends on its own
 * input row only: element (m, n) is one chain of fused multiply-adds over k in
 * order, whatever the number of rows in the call. The cache rule (model.h) rests
 * on this: a prefix computed in one piece, in chunks or one token at a time has
 * the same bits. A BLAS does not promise that (its kernels differ by the shape).
 */
#ifndef QMW_MATRIX_H
#define QMW_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#define QMW_PANEL 16u

/** Rows and columns that share a scale in an FP8 checkpoint. */
#define QMW_FP8_BLOCK 128u

struct qmw_matrix {
	uint32_t outputs; /**< N */
	uint32_t inputs;  /**< K */
	uint32_t panels;  /**< ceil(N / 16) */
	/**
	 * One of the three, zero behind N and K, 64-byte aligned, owned. Weights that are
	 * all bfloat16 values are kept as such, which gives the same bits at half the
	 * memory traffic.
	 */
	float *values;    /**< [panels][K][16] */
	uint32_t *halves; /**< [panels][ceil(K / 2)][16]: an even k in the low half, the next in the
			     high */
	uint8_t *codes;   /**< E4M3 [panels][K][16] … */
	float *scales;    /**< … times [panels][ceil(K / 128)][16] */
	float *bias;      /**< [panels * 16] or NULL; owned */
};

/**
 * Packs @p weights [N][K] (row-major, row stride @p stride) and @p bias [N] or
 * NULL into @p matrix, which owns its copy. QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmw_matrix_init(struct qmw_matrix *matrix, uint32_t outputs, uint32_t inputs,
			      const float *weights, size_t stride, const float *bias);
/**
 * As init, of FP8 weights that stay 8 bits wide: E4M3 @p codes [N][K] without NaN, times
 * @p scales [N][ceil(K / 128)]. Products have the bits that the expanded weights give.
 */
qmla_status_t qmw_matrix_init_codes(struct qmw_matrix *matrix, uint32_t outputs, uint32_t inputs,
				    const uint8_t *codes, const float *scales);
void qmw_matrix_fini(struct qmw_matrix *matrix); /**< accepts a zeroed structure */

/**
 * Y[r][n] = sum_k X[r][k] W[n][k] + bias[n] for @p rows rows and the outputs of
 * panels [first, last). Strides in elements. Any thread; does not allocate.
 */
void qmw_matrix_apply(const struct qmw_matrix *matrix, uint32_t first, uint32_t last,
		      const float *x, size_t x_stride, uint32_t rows, float *y, size_t y_stride);

#endif /* QMW_MATRIX_H */
