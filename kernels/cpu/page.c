/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/page.h"

#include <stddef.h>

#include "kernels/cpu/codes.h"
#include "kernels/cpu/quantise_paper.h"
#include "kernels/cpu/target.h"
#include "kernels/numeric.h"

/* Code u stands for q + 2^(bits-1) and its value is s (q + 1/2): the middle is 7.5 or 1.5. */
static float middle_of(uint32_t bits)
{
	return (float)(1u << (bits - 1)) - 0.5f;
}

/* paper-c4r4: a group's scale and zero point, on codes unpacked as they are. */
static void apply_group(float *values, uint32_t count, float scale, uint8_t zero)
{
	for (uint32_t i = 0; i < count; i++)
		values[i] = (values[i] - (float)zero) * scale;
}

static void paper_content(const struct qmk_layout *layout, const uint8_t *page, uint32_t token,
			  float *out)
{
	const uint8_t *record =
		page + layout->content_scales_offset + (size_t)token * layout->record_bytes;

	qmk_cpu_codes_unpack(page + (size_t)token * layout->content_row_bytes,
			     layout->content_row_bytes, layout->content_bits, token, 0, 1, out);
	for (uint32_t g = 0; g < layout->content_groups; g++)
		apply_group(out + (size_t)g * QMK_PAPER_GROUP, QMK_PAPER_GROUP,
			    qmk_bf16_to_float(qmk_load16(record + 2 * g)),
			    record[qmk_paper_content_zero_at(layout) + g]);
}

static void paper_rope(const struct qmk_layout *layout, const uint8_t *page, uint32_t token,
		       float *out)
{
	const uint8_t *record =
		page + layout->content_scales_offset + (size_t)token * layout->record_bytes;
	uint32_t group = layout->rope_dim / layout->rope_groups;

	qmk_cpu_codes_unpack(page + layout->rope_codes_offset +
				     (size_t)token * layout->rope_row_bytes,
			     layout->rope_row_bytes, layout->rope_bits, token, 0, 1, out);
	for (uint32_t g = 0; g < layout->rope_groups; g++)
		apply_group(out + (size_t)g * group, group,
			    qmk_bits_float(
				    qmk_load32(record + qmk_paper_rope_scale_at(layout) + 4 * g)),
			    record[qmk_paper_rope_zero_at(layout) + g]);
}

void qmk_cpu_page_content(const struct qmk_layout *layout, const uint8_t *page, uint32_t token,
			  float *out)
{
	if (layout->format == QMK_FORMAT_PAPER_C4R4) {
		paper_content(layout, page, token, out);
		return;
	}
	qmk_cpu_codes_unpack(
		page + (size_t)token * layout->content_row_bytes, layout->content_row_bytes,
		layout->content_bits, token, middle_of(layout->content_bits),
		qmk_fp16_to_float(qmk_load16(page + layout->content_scales_offset + 2 * token)),
		out);
}

void qmk_cpu_page_rope(const struct qmk_layout *layout, const uint8_t *page, uint32_t token,
		       float *out)
{
	if (layout->format == QMK_FORMAT_PAPER_C4R4) {
		paper_rope(layout, page, token, out);
		return;
	}
	qmk_cpu_codes_unpack(
		page + layout->rope_codes_offset + (size_t)token * layout->rope_row_bytes,
		layout->rope_row_bytes, layout->rope_bits, token, middle_of(layout->rope_bits),
		qmk_fp16_to_float(qmk_load16(page + layout->rope_scales_offset + 2 * token)), out);
}

QMK_CLONES
void qmk_cpu_unslice(const float *sliced, uint32_t dim, uint32_t fields, float *out)
{
	uint32_t span = QMK_CHUNK_BYTES * fields;

	for (uint32_t at = 0; at < dim; at += span) {
		if (fields == 2) {
			for (unsigned i = 0; i < QMK_CHUNK_BYTES; i++) {
				out[at + 2 * i] = sliced[at + i];
				out[at + 2 * i + 1] = sliced[at + 16 + i];
			}
		} else {
			for (unsigned i = 0; i < QMK_CHUNK_BYTES; i++)
				for (unsigned f = 0; f < 4; f++)
					out[at + 4 * i + f] = sliced[at + 16 * f + i];
		}
	}
}

QMK_CLONES
void qmk_cpu_slice(const float *natural, uint32_t dim, uint32_t fields, float factor, float *out)
{
	uint32_t span = QMK_CHUNK_BYTES * fields;

	for (uint32_t at = 0; at < dim; at += span)
		for (uint32_t f = 0; f < fields; f++)
			for (unsigned i = 0; i < QMK_CHUNK_BYTES; i++)
				out[at + 16 * f + i] = natural[at + fields * i + f] * factor;
}

/* Two BF16 at a time: the even one is the low half of a 32-bit word, the odd one the high. */
static inline __attribute__((always_inline)) void slice_pairs(const uint16_t *natural, float *out)
{
	for (unsigned i = 0; i < QMK_CHUNK_BYTES; i++) {
		uint32_t pair = qmk_load32(natural + 2 * i);

		out[i] = qmk_bits_float(pair << 16);
		out[16 + i] = qmk_bits_float(pair & 0xffff0000u);
	}
}

QMK_CLONES
void qmk_cpu_slice_bf16(const uint16_t *natural, uint32_t dim, uint32_t fields, float *out)
{
	uint32_t span = QMK_CHUNK_BYTES * fields;

	for (uint32_t at = 0; at < dim; at += span) {
		if (fields == 2) {
			slice_pairs(natural + at, out + at);
			continue;
		}
		for (unsigned i = 0; i < QMK_CHUNK_BYTES; i++)
			for (unsigned f = 0; f < 4; f++)
				out[at + 16 * f + i] = qmk_bf16_to_float(natural[at + 4 * i + f]);
	}
}
