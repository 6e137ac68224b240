/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Rows of a page as floats. Values come in sliced order (kernels/cpu/codes.h)
 * and less the means, as they are stored. Pure; any thread.
 */
#ifndef QMK_CPU_PAGE_H
#define QMK_CPU_PAGE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"

/** Content of tokens [begin, end): [d_c] floats each, @p stride floats apart. */
void qmk_cpu_page_content(const struct qmk_layout *layout, const uint8_t *page, uint32_t begin,
			  uint32_t end, float *out, size_t stride);

/** RoPE keys of tokens [begin, end) as stored: [d_r] floats each, @p stride floats apart. */
void qmk_cpu_page_rope(const struct qmk_layout *layout, const uint8_t *page, uint32_t begin,
		       uint32_t end, float *out, size_t stride);

/** Natural order from sliced order, @p fields (2 or 4) codes a byte. */
void qmk_cpu_unslice(const float *sliced, uint32_t dim, uint32_t fields, float *out);

/** Sliced order from natural order, times @p factor. */
void qmk_cpu_slice(const float *natural, uint32_t dim, uint32_t fields, float factor, float *out);

/** Sliced order from a natural row of BF16. */
void qmk_cpu_slice_bf16(const uint16_t *natural, uint32_t dim, uint32_t fields, float *out);

#endif /* QMK_CPU_PAGE_H */
