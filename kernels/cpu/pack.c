/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/variant.h"

#include <string.h>

#include "kernels/cpu/codes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/quantise.h"
#include "kernels/cpu/quantise_paper.h"
#include "kernels/numeric.h"

#define TOKENS QMK_PAGE_TOKENS

/* Scratch of one plane; coordinates outermost, as the quantisers want it. */
struct scratch {
	float *values;    /* [dim][64] */
	float *errors;    /* [dim][64] */
	float *targets;   /* [dim][64] */
	float *remainder; /* [d_r][64]: what the RoPE codes left */
	uint8_t *codes;   /* [dim][64] */
	uint8_t *bytes;   /* [dim][64] at most: drafts, then row bytes */
};

/* Source rows of one plane of one page. */
struct source {
	const void *rows;
	uint64_t stride; /* elements */
	enum qmk_dtype dtype;
	const float *mean;
	uint32_t dim;
};

static uint32_t larger_dim(const struct qmk_layout *layout)
{
	return layout->content_dim > layout->rope_dim ? layout->content_dim : layout->rope_dim;
}

size_t qmk_cpu_pack_workspace(const struct qmk_pack_args *args)
{
	size_t dim, rope;

	if (!args || !args->layout)
		return 0;
	dim = larger_dim(args->layout);
	rope = args->layout->rope_dim;
	return dim * TOKENS * (3 * sizeof(float) + 2 * sizeof(uint8_t)) +
	       rope * TOKENS * sizeof(float) + QMK_CPU_LINE;
}

static struct scratch scratch_place(const struct qmk_pack_args *args)
{
	size_t plane = (size_t)larger_dim(args->layout) * TOKENS;
	struct scratch scratch;

	scratch.values = (float *)qmk_cpu_lines((uintptr_t)args->workspace);
	scratch.errors = scratch.values + plane;
	scratch.targets = scratch.errors + plane;
	scratch.remainder = scratch.targets + plane;
	scratch.codes = (uint8_t *)(scratch.remainder + (size_t)args->layout->rope_dim * TOKENS);
	scratch.bytes = scratch.codes + plane;
	return scratch;
}

/* One row as floats less the mean; NaN is 0, magnitudes end at fp16's largest. */
static void widen_row(const void *row, enum qmk_dtype dtype, uint32_t dim, const float *mean,
		      float *out)
{
	if (dtype == QMK_BF16)
		for (uint32_t i = 0; i < dim; i++)
			out[i] = qmk_bf16_to_float(((const uint16_t *)row)[i]);
	else
		memcpy(out, row, dim * sizeof(float));
	if (mean)
		for (uint32_t i = 0; i < dim; i++)
			out[i] -= mean[i];
	for (uint32_t i = 0; i < dim; i++) {
		float value = out[i] == out[i] ? out[i] : 0;
		float above = value > -QMK_FP16_MAX ? value : -QMK_FP16_MAX;

		out[i] = above < QMK_FP16_MAX ? above : QMK_FP16_MAX;
	}
}

/* 64 rows to [dim][64], sixteen rows at a time so that whole cache lines are written. */
static void gather(const struct source *source, const struct scratch *scratch)
{
	size_t width = source->dtype == QMK_BF16 ? sizeof(uint16_t) : sizeof(float);
	float *rows = scratch->errors; /* free until the quantiser runs */

	for (uint32_t first = 0; first < TOKENS; first += 16) {
		for (uint32_t t = 0; t < 16; t++)
			widen_row((const uint8_t *)source->rows +
					  (first + t) * source->stride * width,
				  source->dtype, source->dim, source->mean,
				  rows + (size_t)t * source->dim);
		for (uint32_t i = 0; i < source->dim; i++)
			for (uint32_t t = 0; t < 16; t++)
				scratch->values[(size_t)i * TOKENS + first + t] =
					rows[(size_t)t * source->dim + i];
	}
}

/* Codes and scales of a plane whose values are gathered, into the page. */
static void pack_plane(struct qmk_cpu_plane *plane, const struct scratch *scratch, uint8_t *rows,
		       uint8_t *scales)
{
	plane->values = scratch->values;
	plane->errors = scratch->errors;
	plane->draft = scratch->bytes;
	plane->codes = scratch->codes;
	qmk_cpu_quantise(plane);
	qmk_cpu_codes_pack(scratch->codes, plane->dim, plane->bits, scratch->bytes, rows);
	memcpy(scales, plane->scales, TOKENS * sizeof(plane->scales[0]));
}

/* Keys first: what their codes left is part of the content's targets. */
static void pack_page(const struct qmk_layout *layout, const struct qmk_constants *constants,
		      const struct source *content, const struct source *rope,
		      const struct scratch *scratch, uint8_t *page)
{
	const float *cross = constants->cross_feedback;
	uint16_t scales[TOKENS];
	struct qmk_cpu_plane keys = {.dim = rope->dim,
				     .bits = layout->rope_bits,
				     .feedback = constants->rope_feedback,
				     .weight = constants->rope_weight,
				     .dense = true,
				     .targets = scratch->values,
				     .scales = scales};
	struct qmk_cpu_plane latents = {.dim = content->dim,
					.bits = layout->content_bits,
					.feedback = constants->content_feedback,
					.weight = constants->content_weight,
					.targets = cross ? scratch->targets : scratch->values,
					.scales = scales};

	gather(rope, scratch);
	pack_plane(&keys, scratch, page + layout->rope_codes_offset,
		   page + layout->rope_scales_offset);
	if (cross)
		qmk_cpu_quantise_errors(&keys, scratch->remainder);
	gather(content, scratch);
	latents.values = scratch->values;
	if (cross)
		qmk_cpu_quantise_offset(&latents, cross, scratch->remainder, rope->dim,
					scratch->targets);
	pack_plane(&latents, scratch, page, page + layout->content_scales_offset);
}

static void pack_page_paper(const struct qmk_layout *layout, const struct source *content,
			    const struct source *rope, const struct scratch *scratch, uint8_t *page)
{
	struct qmk_cpu_paper_page paper = {.layout = layout,
					   .values = scratch->values,
					   .codes = scratch->codes,
					   .records = page + layout->content_scales_offset};

	memset(paper.records, 0, (size_t)TOKENS * layout->record_bytes);
	gather(content, scratch);
	qmk_cpu_paper_quantise_content(&paper);
	qmk_cpu_codes_pack(scratch->codes, layout->content_dim, layout->content_bits,
			   scratch->bytes, page);
	gather(rope, scratch);
	qmk_cpu_paper_quantise_rope(&paper);
	qmk_cpu_codes_pack(scratch->codes, layout->rope_dim, layout->rope_bits, scratch->bytes,
			   page + layout->rope_codes_offset);
}

static qmla_status_t check(const struct qmk_pack_args *args)
{
	const struct qmk_layout *layout = args ? args->layout : NULL;

	if (!layout || !args->slots || !args->content || !args->rope)
		return qmk_check_reject("pack", "an argument is missing");
	if (args->layer >= layout->layers)
		return qmk_check_reject("pack", "the layer is outside the layout");
	if (args->dtype != QMK_F32 && args->dtype != QMK_BF16)
		return qmk_check_reject("pack", "unknown element type");
	if (args->content_stride < layout->content_dim || args->rope_stride < layout->rope_dim)
		return qmk_check_reject("pack", "a row stride is shorter than a row");
	if (!args->workspace)
		return qmk_check_reject("pack", "no workspace: pass pack_workspace() bytes");
	return qmk_check_pool("pack", layout, &args->pool) ? QMLA_OK : QMLA_ERR_INVALID_ARGUMENT;
}

qmla_status_t qmk_cpu_pack(const struct qmk_pack_args *args)
{
	const struct qmk_constants *constants;
	struct source content, rope;
	struct scratch scratch;
	qmla_status_t status;
	size_t width;

	if (args && args->pages == 0)
		return QMLA_OK;
	status = check(args);
	if (status != QMLA_OK)
		return status;
	constants = qmk_check_constants(args->layout, args->constants);
	scratch = scratch_place(args);
	width = args->dtype == QMK_BF16 ? sizeof(uint16_t) : sizeof(float);
	content = (struct source){.stride = args->content_stride,
				  .dtype = args->dtype,
				  .mean = constants->content_mean,
				  .dim = args->layout->content_dim};
	rope = (struct source){.stride = args->rope_stride,
			       .dtype = args->dtype,
			       .mean = constants->rope_mean,
			       .dim = args->layout->rope_dim};
	for (uint32_t n = 0; n < args->pages; n++) {
		size_t row = (size_t)n * TOKENS * width;
		uint8_t *page =
			qmk_cpu_page(args->layout, &args->pool, args->slots[n], args->layer);

		content.rows = (const uint8_t *)args->content + row * args->content_stride;
		rope.rows = (const uint8_t *)args->rope + row * args->rope_stride;
		if (args->layout->format == QMK_FORMAT_PAPER_C4R4)
			pack_page_paper(args->layout, &content, &rope, &scratch, page);
		else
			pack_page(args->layout, constants, &content, &rope, &scratch, page);
	}
	return QMLA_OK;
}
