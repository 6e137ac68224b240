/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/variant.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/page.h"
#include "kernels/numeric.h"

/* Writes one row in natural order, mean added, as the caller's type. */
static void write_row(const float *sliced, uint32_t dim, uint32_t fields, const float *mean,
		      enum qmk_dtype dtype, void *array, size_t at)
{
	float row[QMK_MAX_CONTENT_DIM];

	qmk_cpu_unslice(sliced, dim, fields, row);
	if (mean)
		for (uint32_t i = 0; i < dim; i++)
			row[i] += mean[i];
	if (dtype == QMK_F32) {
		memcpy((float *)array + at, row, dim * sizeof(float));
		return;
	}
	for (uint32_t i = 0; i < dim; i++)
		((uint16_t *)array)[at + i] = qmk_float_to_bf16(row[i]);
}

static void unpack_page(const struct qmk_unpack_args *args, const struct qmk_constants *constants,
			const uint8_t *page, size_t first_row)
{
	const struct qmk_layout *layout = args->layout;
	float sliced[QMK_MAX_CONTENT_DIM];

	for (uint32_t t = 0; t < QMK_PAGE_TOKENS; t++) {
		size_t row = first_row + t;

		qmk_cpu_page_content(layout, page, t, t + 1, sliced, 0);
		write_row(sliced, layout->content_dim, 8 / layout->content_bits,
			  constants->content_mean, args->dtype, args->content,
			  row * args->content_stride);
		qmk_cpu_page_rope(layout, page, t, t + 1, sliced, 0);
		write_row(sliced, layout->rope_dim, 8 / layout->rope_bits, constants->rope_mean,
			  args->dtype, args->rope, row * args->rope_stride);
	}
}

qmla_status_t qmk_cpu_unpack(const struct qmk_unpack_args *args)
{
	const struct qmk_layout *layout = args ? args->layout : NULL;

	if (args && args->pages == 0)
		return QMLA_OK;
	if (!layout || !args->slots || !args->content || !args->rope)
		return qmk_check_reject("unpack", "an argument is missing");
	if (args->layer >= layout->layers)
		return qmk_check_reject("unpack", "the layer is outside the layout");
	if (args->dtype != QMK_F32 && args->dtype != QMK_BF16)
		return qmk_check_reject("unpack", "unknown element type");
	if (args->content_stride < layout->content_dim || args->rope_stride < layout->rope_dim)
		return qmk_check_reject("unpack", "a row stride is shorter than a row");
	if (!qmk_check_pool("unpack", layout, &args->pool))
		return QMLA_ERR_INVALID_ARGUMENT;
	for (uint32_t n = 0; n < args->pages; n++)
		unpack_page(args, qmk_check_constants(layout, args->constants),
			    qmk_cpu_page(layout, &args->pool, args->slots[n], args->layer),
			    (size_t)n * QMK_PAGE_TOKENS);
	return QMLA_OK;
}
