/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The paper's quantiser as a function to learn through: values in, the values a reader
 * would make of the codes out, and the straight-through gradient (paper.md, "Quantiser";
 * the same values as kernels/cpu/quantise_paper.h at 4 bits). Pure; any thread.
 */
#ifndef QMW_CALIBRATE_FAKE_PAPER_H
#define QMW_CALIBRATE_FAKE_PAPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct qmw_fake_paper {
	uint32_t bits;   /**< 2 or 4 */
	uint32_t group;  /**< coordinates that share a scale; divides the row */
	bool bf16_scale; /**< content stores its scales as BF16, RoPE as FP32 */
};

/** @p y [rows][dim] = quantised and dequantised @p x. @p y may be @p x. */
void qmw_fake_paper_apply(const struct qmw_fake_paper *quantiser, size_t rows, uint32_t dim,
			  const float *x, float *y);

/**
 * From @p gradient dL/dy to dL/dx, in place, with rounding (of codes, zero point and stored
 * scale) taken as the identity and clipping as it is: y = s (clip(x / s + z) - z), s =
 * (max - min) / m, z = clip(-min / s). The part through s and z goes to the group's
 * largest and smallest value (the first of equals).
 */
void qmw_fake_paper_gradient(const struct qmw_fake_paper *quantiser, size_t rows, uint32_t dim,
			     const float *x, float *gradient);

#endif /* QMW_CALIBRATE_FAKE_PAPER_H */
