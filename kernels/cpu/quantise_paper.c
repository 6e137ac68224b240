/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/variant.h"

#include "kernels/cpu/quantise_paper.h"

#include "kernels/numeric.h"

#define TOKENS QMK_PAGE_TOKENS
#define LEVELS 15.0f /* 2^4 - 1 */

/* To nearest even for 0 <= value <= 15: the sum has no fraction bits left. */
static inline float round_even(float value)
{
	return (value + 0x1.8p23f) - 0x1.8p23f;
}

static inline float clip(float value)
{
	float low = value > 0 ? value : 0;

	return low < LEVELS ? low : LEVELS;
}

/*
 * One group of 64 tokens. The bounds of clip are whole numbers, so clipping before
 * rounding gives the same as after it, and never converts what does not fit.
 */
static void quantise_group(const float *values, uint32_t dim, uint8_t *codes, float scale[TOKENS],
			   uint8_t zero[TOKENS])
{
	float low[TOKENS], high[TOKENS], offset[TOKENS];

	for (unsigned t = 0; t < TOKENS; t++)
		low[t] = high[t] = values[t];
	for (uint32_t i = 1; i < dim; i++) {
		const float *row = values + (size_t)i * TOKENS;

		for (unsigned t = 0; t < TOKENS; t++) {
			low[t] = row[t] < low[t] ? row[t] : low[t];
			high[t] = row[t] > high[t] ? row[t] : high[t];
		}
	}
	for (unsigned t = 0; t < TOKENS; t++) {
		float range = high[t] - low[t];

		scale[t] = (range > 1e-8f ? range : 1e-8f) / LEVELS;
		offset[t] = round_even(clip(-low[t] / scale[t]));
		zero[t] = (uint8_t)(int32_t)offset[t];
	}
	for (uint32_t i = 0; i < dim; i++) {
		const float *row = values + (size_t)i * TOKENS;

		for (unsigned t = 0; t < TOKENS; t++) {
			float code = round_even(clip(row[t] / scale[t] + offset[t]));

			codes[(size_t)i * TOKENS + t] = (uint8_t)(int32_t)code;
		}
	}
}

void qmk_cpu_paper_quantise_content(const struct qmk_cpu_paper_page *page)
{
	const struct qmk_layout *layout = page->layout;

	for (uint32_t g = 0; g < layout->content_groups; g++) {
		size_t at = (size_t)g * QMK_PAPER_GROUP * TOKENS;
		uint8_t zero[TOKENS];
		float scale[TOKENS];

		quantise_group(page->values + at, QMK_PAPER_GROUP, page->codes + at, scale, zero);
		for (unsigned t = 0; t < TOKENS; t++) {
			uint8_t *record = page->records + (size_t)t * layout->record_bytes;

			qmk_store16(record + 2 * g, qmk_float_to_bf16(scale[t]));
			record[qmk_paper_content_zero_at(layout) + g] = zero[t];
		}
	}
}

void qmk_cpu_paper_quantise_rope(const struct qmk_cpu_paper_page *page)
{
	const struct qmk_layout *layout = page->layout;
	uint32_t group = layout->rope_dim / layout->rope_groups;

	for (uint32_t g = 0; g < layout->rope_groups; g++) {
		size_t at = (size_t)g * group * TOKENS;
		uint8_t zero[TOKENS];
		float scale[TOKENS];

		quantise_group(page->values + at, group, page->codes + at, scale, zero);
		for (unsigned t = 0; t < TOKENS; t++) {
			uint8_t *record = page->records + (size_t)t * layout->record_bytes;

			qmk_store32(record + qmk_paper_rope_scale_at(layout) + 4 * g,
				    qmk_float_bits(scale[t]));
			record[qmk_paper_rope_zero_at(layout) + g] = zero[t];
		}
	}
}
