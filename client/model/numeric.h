/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The row operations of a transformer layer, in float32. Pure; any thread.
 * "round" stands for rounding to bfloat16 where a BF16 implementation does.
 */
#ifndef QMW_NUMERIC_H
#define QMW_NUMERIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/numeric.h"

/** @p value rounded to the nearest bfloat16, ties to even. */
static inline float qmw_round_to_bf16(float value)
{
	return qmk_bf16_to_float(qmk_float_to_bf16(value));
}

/** Rounds @p count values to bfloat16 in place when @p enabled. */
void qmw_round_rows(bool enabled, float *values, size_t count);

/**
 * Root-mean-square norm of one row: y = x / sqrt(mean(x^2) + eps) * weight.
 * A NULL @p weight is one. @p round: rounds as a BF16 implementation does, once
 * before and once after the weight. @p y may be @p x.
 */
void qmw_rms_norm(const float *x, const float *weight, float eps, uint32_t count, bool round,
		  float *y);

/** y = silu(gate) * up over one row; @p y may be @p gate. */
void qmw_silu_product(const float *gate, const float *up, uint32_t count, bool round, float *y);

/** y += factor * x over one row; @p round: the product and the sum. */
void qmw_add_weighted(const float *x, float factor, uint32_t count, bool round, float *y);

/** Log-softmax denominator: log(sum exp(x)), in double. */
double qmw_log_sum_exp(const float *x, uint32_t count);

/** Index of the largest value, the lowest one of equals; NaN never wins over a number. */
uint32_t qmw_argmax(const float *x, uint32_t count);

/** A malloc'ed copy of @p values in double; NULL for NULL, and without memory. */
double *qmw_widen(const float *values, size_t count);

#endif /* QMW_NUMERIC_H */
