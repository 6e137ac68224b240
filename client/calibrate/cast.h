/* SPDX-License-Identifier: Apache-2.0 */
/** @file Weights from double to the dtype of a checkpoint, rounded once. */
#ifndef QMW_CAST_H
#define QMW_CAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/safetensors.h"

/** Side of the squares of an FP8 weight that share one scale. */
#define QMW_FP8_BLOCK 128u
#define QMW_FP8_MAX   448.0

/** The nearest BF16, ties to even; not through float, which would round twice. Pure. */
uint16_t qmw_cast_bf16(double value);
/** The nearest finite E4M3, ties to even, beyond 448 clipped. Pure. */
uint8_t qmw_cast_e4m3(double value);
double qmw_cast_from_e4m3(uint8_t code);

/** The value that @p value has as F32, F16 or BF16. Pure. */
double qmw_cast_round(enum qmw_dtype dtype, double value);

/** @p count values as F32, F16 or BF16 into @p bytes. QMLA_ERR_UNSUPPORTED for another dtype,
 * QMLA_ERR_CORRUPT for a value that is not finite in it. Pure. */
qmla_status_t qmw_cast_store(enum qmw_dtype dtype, const double *values, size_t count, void *bytes);

/** One FP8 matrix: codes [rows][columns] and scales [ceil(rows/128)][ceil(columns/128)]. */
struct qmw_fp8 {
	uint32_t rows, columns;
	uint8_t *codes;
	float *scales; /**< value = code times scale ("weight_scale_inv") */
};

static inline uint32_t qmw_fp8_across(uint32_t extent)
{
	return (extent + QMW_FP8_BLOCK - 1) / QMW_FP8_BLOCK;
}

/**
 * Requantises to @p values [rows][columns] every square of @p fp8 that stands for other values
 * than @p before (what the codes were read as); the others keep their bytes. New scales are the
 * largest magnitude / 448, rounded up to a power of two where all the old ones were. Pure.
 */
void qmw_fp8_replace(struct qmw_fp8 *fp8, const float *before, const double *values);

#endif /* QMW_CAST_H */
