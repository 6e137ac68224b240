/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The quantiser of the paper "QuantMLA" (arXiv 2609.36760), exactly, as the
 * comparison: asymmetric INT4, groups of 64 coordinates, s = max(max - min, 1e-8) / 15,
 * z = clip(round(-min / s), 0, 15), q = clip(round(x / s + z), 0, 15), rounding to
 * nearest even in FP32; content scales stored as BF16, RoPE scales as FP32.
 * A group whose values lie all on one side of zero, far from it, saturates: the
 * paper's zero point cannot reach it.
 */
#ifndef QMK_CPU_QUANTISE_PAPER_H
#define QMK_CPU_QUANTISE_PAPER_H

#include <stdint.h>

#include "kernels/layout.h"

/** One page of 64 tokens; coordinates outermost. */
struct qmk_cpu_paper_page {
	const struct qmk_layout *layout;
	const float *values; /**< [dim][64], finite */
	uint8_t *codes;      /**< out [dim][64] */
	uint8_t *records;    /**< out [64][record_bytes]; bytes of other fields are kept */
};

/** Where one token's record holds what; docs/format.md, "paper-c4r4". */
static inline uint32_t qmk_paper_rope_scale_at(const struct qmk_layout *layout)
{
	return 2 * layout->content_groups;
}

/** Offset of the content's zero points in a record. */
static inline uint32_t qmk_paper_content_zero_at(const struct qmk_layout *layout)
{
	return qmk_paper_rope_scale_at(layout) + 4 * layout->rope_groups;
}

/** Offset of the RoPE keys' zero points in a record. */
static inline uint32_t qmk_paper_rope_zero_at(const struct qmk_layout *layout)
{
	return qmk_paper_content_zero_at(layout) + layout->content_groups;
}

/** Codes, BF16 scales and zero points of the content. Any thread. */
void qmk_cpu_paper_quantise_content(const struct qmk_cpu_paper_page *page);

/** Codes, FP32 scales and zero points of the RoPE keys. Any thread. */
void qmk_cpu_paper_quantise_rope(const struct qmk_cpu_paper_page *page);

#endif /* QMK_CPU_QUANTISE_PAPER_H */
