/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/append.h"

#include "kernels/cpu/check.h"
#include "kernels/numeric.h"

#define TOKENS QMK_PAGE_TOKENS

/* A full tail as pack takes it: its rows have their means taken already. */
static void pack_of(const struct qmk_append_args *args, const struct qmk_tail *tail,
		    const struct qmk_constants *constants, struct qmk_pack_args *pack)
{
	const uint32_t width = args->layout->content_dim + args->layout->rope_dim;

	*pack = (struct qmk_pack_args){.layout = args->layout,
				       .constants = constants,
				       .pool = args->pool,
				       .layer = args->layer,
				       .pages = 1,
				       .slots = &tail->slot,
				       .content = tail->rows,
				       .rope = tail->rows + args->layout->content_dim,
				       .content_stride = width,
				       .rope_stride = width,
				       .dtype = QMK_BF16,
				       .workspace = args->workspace};
}

size_t qmk_cpu_append_workspace(const struct qmk_append_args *args,
				size_t (*pack_workspace)(const struct qmk_pack_args *))
{
	struct qmk_pack_args pack = {0};

	if (!args)
		return 0;
	pack.layout = args->layout;
	return pack_workspace(&pack);
}

static void store_values(const void *row, enum qmk_dtype dtype, uint32_t dim, const float *mean,
			 uint16_t *out)
{
	for (uint32_t i = 0; i < dim; i++) {
		float value = dtype == QMK_BF16 ? qmk_bf16_to_float(((const uint16_t *)row)[i])
						: ((const float *)row)[i];

		out[i] = qmk_float_to_bf16(mean ? value - mean[i] : value);
	}
}

/* Tokens @p from up to @p to of those to be added, to rows from @p at on. */
static void store_rows(const struct qmk_append_args *args, const struct qmk_tail *tail,
		       uint32_t from, uint32_t to, uint32_t at)
{
	const struct qmk_layout *layout = args->layout;
	const struct qmk_constants *constants = qmk_check_constants(layout, args->constants);
	const size_t width = args->dtype == QMK_BF16 ? sizeof(uint16_t) : sizeof(float);

	for (uint32_t i = from; i < to; i++, at++) {
		const size_t row = (size_t)tail->row + i;
		uint16_t *out = tail->rows + (size_t)at * (layout->content_dim + layout->rope_dim);

		store_values((const uint8_t *)args->content + row * args->content_stride * width,
			     args->dtype, layout->content_dim, constants->content_mean, out);
		store_values((const uint8_t *)args->rope + row * args->rope_stride * width,
			     args->dtype, layout->rope_dim, constants->rope_mean,
			     out + layout->content_dim);
	}
}

static qmla_status_t check(const struct qmk_append_args *args)
{
	const struct qmk_layout *layout = args ? args->layout : NULL;

	if (!layout || !args->tails || !args->content || !args->rope)
		return qmk_check_reject("append", "an argument is missing");
	if (args->layer >= layout->layers)
		return qmk_check_reject("append", "the layer is outside the layout");
	if (args->dtype != QMK_F32 && args->dtype != QMK_BF16)
		return qmk_check_reject("append", "unknown element type");
	if (args->content_stride < layout->content_dim || args->rope_stride < layout->rope_dim)
		return qmk_check_reject("append", "a row stride is shorter than a row");
	if (!args->workspace)
		return qmk_check_reject("append", "no workspace: pass append_workspace() bytes");
	for (uint32_t r = 0; r < args->requests; r++) {
		const struct qmk_tail *tail = &args->tails[r];

		if (!tail->rows || tail->filled >= TOKENS || tail->tokens > TOKENS)
			return qmk_check_reject("append",
						"a tail without rows, or of more than 64 of them");
	}
	return qmk_check_pool("append", layout, &args->pool) ? QMLA_OK : QMLA_ERR_INVALID_ARGUMENT;
}

qmla_status_t qmk_cpu_append(const struct qmk_append_args *args,
			     qmla_status_t (*pack)(const struct qmk_pack_args *))
{
	struct qmk_constants constants;
	qmla_status_t status;

	if (args && args->requests == 0)
		return QMLA_OK;
	status = check(args);
	if (status != QMLA_OK)
		return status;
	constants = *qmk_check_constants(args->layout, args->constants);
	constants.content_mean = constants.rope_mean = NULL;
	for (uint32_t r = 0; r < args->requests; r++) {
		const struct qmk_tail *tail = &args->tails[r];
		const uint32_t room = TOKENS - tail->filled;
		const uint32_t now = tail->tokens < room ? tail->tokens : room;
		struct qmk_pack_args full;

		store_rows(args, tail, 0, now, tail->filled);
		if (now < room)
			continue;
		pack_of(args, tail, &constants, &full);
		status = pack(&full);
		if (status != QMLA_OK)
			return status;
		store_rows(args, tail, now, tail->tokens, 0);
	}
	return QMLA_OK;
}
