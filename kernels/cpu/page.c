/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/variant.h"

#include "kernels/cpu/page.h"

#include <stdbool.h>

#include "kernels/cpu/codes.h"
#include "kernels/cpu/quantise_paper.h"
#include "kernels/cpu/vector.h"
#include "kernels/numeric.h"

/* Code u stands for q + 2^(bits-1) and its value is s (q + 1/2): the middle is 7.5 or 1.5. */
static float middle_of(uint32_t bits)
{
	return (float)(1u << (bits - 1)) - 0.5f;
}

static const uint8_t *paper_record(const struct qmk_layout *layout, const uint8_t *page,
				   uint32_t token)
{
	return page + layout->content_scales_offset + (size_t)token * layout->record_bytes;
}

/* paper-c4r4: a group's scale and zero point, on codes unpacked as they are. */

static void apply_group(float *values, uint32_t count, float scale, float zero)
{
	for (uint32_t i = 0; i < count; i++)
		values[i] = (values[i] - zero) * scale;
}

static void paper_content(const struct qmk_layout *layout, const uint8_t *record, float *values)
{
	for (uint32_t g = 0; g < layout->content_groups; g++)
		apply_group(values + (size_t)g * QMK_PAPER_GROUP, QMK_PAPER_GROUP,
			    qmk_bf16_to_float(qmk_load16(record + 2 * g)),
			    record[qmk_paper_content_zero_at(layout) + g]);
}

static void paper_rope(const struct qmk_layout *layout, const uint8_t *record, float *values)
{
	uint32_t group = layout->rope_dim / layout->rope_groups;

	for (uint32_t g = 0; g < layout->rope_groups; g++)
		apply_group(values + (size_t)g * group, group,
			    qmk_bits_float(
				    qmk_load32(record + qmk_paper_rope_scale_at(layout) + 4 * g)),
			    record[qmk_paper_rope_zero_at(layout) + g]);
}

static void load_scales(const uint8_t *plane, uint32_t begin, uint32_t end, float *scales)
{
	for (uint32_t t = begin; t < end; t++)
		scales[t] = qmk_fp16_to_float(qmk_load16(plane + 2 * t));
}

void qmk_cpu_page_content(const struct qmk_layout *layout, const uint8_t *page, uint32_t begin,
			  uint32_t end, float *out, size_t stride)
{
	bool paper = layout->format == QMK_FORMAT_PAPER_C4R4;
	float scales[QMK_PAGE_TOKENS];
	struct qmk_cpu_codes codes = {
		.rows = page,
		.row_bytes = layout->content_row_bytes,
		.bits = layout->content_bits,
		.out = out,
		.stride = stride,
		.scale = paper ? NULL : scales,
		.middle = paper ? 0 : middle_of(layout->content_bits),
	};

	if (!paper)
		load_scales(page + layout->content_scales_offset, begin, end, scales);
	qmk_cpu_codes_unpack(&codes, begin, end);
	for (uint32_t t = begin; paper && t < end; t++)
		paper_content(layout, paper_record(layout, page, t), out + (t - begin) * stride);
}

void qmk_cpu_page_rope(const struct qmk_layout *layout, const uint8_t *page, uint32_t begin,
		       uint32_t end, float *out, size_t stride)
{
	bool paper = layout->format == QMK_FORMAT_PAPER_C4R4;
	float scales[QMK_PAGE_TOKENS];
	struct qmk_cpu_codes codes = {
		.rows = page + layout->rope_codes_offset,
		.row_bytes = layout->rope_row_bytes,
		.bits = layout->rope_bits,
		.out = out,
		.stride = stride,
		.scale = paper ? NULL : scales,
		.middle = paper ? 0 : middle_of(layout->rope_bits),
	};

	if (!paper)
		load_scales(page + layout->rope_scales_offset, begin, end, scales);
	qmk_cpu_codes_unpack(&codes, begin, end);
	for (uint32_t t = begin; paper && t < end; t++)
		paper_rope(layout, paper_record(layout, page, t), out + (t - begin) * stride);
}

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

void qmk_cpu_slice(const float *natural, uint32_t dim, uint32_t fields, float factor, float *out)
{
	uint32_t span = QMK_CHUNK_BYTES * fields;

	for (uint32_t at = 0; at < dim; at += span)
		for (uint32_t f = 0; f < fields; f++)
			for (unsigned i = 0; i < QMK_CHUNK_BYTES; i++)
				out[at + 16 * f + i] = natural[at + fields * i + f] * factor;
}

void qmk_cpu_slice_bf16(const uint16_t *natural, uint32_t dim, uint32_t fields, float *out)
{
	uint32_t span = QMK_CHUNK_BYTES * fields;

	for (uint32_t at = 0; at < dim; at += span) {
		if (fields == 2) {
			for (unsigned i = 0; i < QMK_CHUNK_BYTES; i += QMK_LANES) {
				qmk_vector even, odd;

				qmk_vector_load_bf16_pairs(&even, &odd, natural + at + 2 * i);
				qmk_vector_store(out + at + i, &even);
				qmk_vector_store(out + at + 16 + i, &odd);
			}
			continue;
		}
		for (unsigned i = 0; i < QMK_CHUNK_BYTES; i++)
			for (unsigned f = 0; f < 4; f++)
				out[at + 16 * f + i] = qmk_bf16_to_float(natural[at + 4 * i + f]);
	}
}
