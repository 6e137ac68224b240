/* SPDX-License-Identifier: Apache-2.0 */
/* A study's rows: from what the layer gave to what caches of either kind give back. */
#include <math.h>
#include <string.h>

#include "client/model/numeric.h"
#include "client/model/study_internal.h"

#define GROUP 64u

/* One span at work. */
struct rows {
	struct qmw_context *context;
	struct qmw_lane *lane;
	const struct qmw_span *span;
	struct qmw_study *study;
	float *near, *far; /* of the span's first token */
	uint32_t content, rope, width;
};

void qmw_study_paper_round(float *values, uint32_t n, uint32_t bits, bool scale_bf16)
{
	float levels = (float)((1u << bits) - 1);

	for (uint32_t first = 0; first < n; first += GROUP) {
		uint32_t count = n - first < GROUP ? n - first : GROUP;
		float *x = values + first, low = x[0], high = x[0], scale, stored, zero;

		for (uint32_t i = 1; i < count; i++) {
			low = fminf(low, x[i]);
			high = fmaxf(high, x[i]);
		}
		scale = fmaxf(high - low, 1e-8f) / levels;
		stored = scale_bf16 ? qmw_round_to_bf16(scale) : scale;
		zero = fminf(fmaxf(rintf(-low / scale), 0), levels);
		for (uint32_t i = 0; i < count; i++) {
			float q = fminf(fmaxf(rintf(x[i] / scale + zero), 0), levels);

			x[i] = stored * (q - zero);
		}
	}
}

static void rotate(const struct rows *r, uint32_t row, float *key)
{
	uint32_t pairs = r->rope / 2, at = r->span->first_row + row;

	qmw_rope_rotate(&r->context->model->rope, r->context->cosines + (size_t)at * pairs,
			r->context->sines + (size_t)at * pairs, key);
}

static void round_all(float *values, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		values[i] = qmw_round_to_bf16(values[i]);
}

/* values = bf16(values - mean), which may be NULL. */
static void take_mean(float *values, const float *mean, uint32_t count, bool round)
{
	for (uint32_t i = 0; mean && i < count; i++)
		values[i] -= mean[i];
	if (round)
		round_all(values, count);
}

static void add_mean(float *values, const float *mean, uint32_t count)
{
	for (uint32_t i = 0; mean && i < count; i++)
		values[i] += mean[i];
}

/* @p page: what is read back, means added; the near rows are without. */
static void add_errors(const struct rows *r, const float *page, const struct qmk_constants *means)
{
	struct qmw_study_error *to = &r->study->errors[r->context->layer], sum = {0};

	for (uint32_t t = 0; t < r->span->count; t++) {
		const float *near = r->near + (size_t)t * r->width;

		for (uint32_t i = 0; i < r->width; i++) {
			bool content = i < r->content;
			const float *mean = content ? means->content_mean : means->rope_mean;
			uint32_t k = content ? i : i - r->content;
			double value = (double)near[i]; /* its mean is taken */
			double d = (double)page[(size_t)t * r->width + i] - value -
				   (mean ? (double)mean[k] : 0);

			*(content ? &sum.content_error : &sum.rope_error) += d * d;
			*(content ? &sum.content_energy : &sum.rope_energy) += value * value;
		}
	}
	pthread_mutex_lock(&r->study->lock);
	to->content_error += sum.content_error;
	to->content_energy += sum.content_energy;
	to->rope_error += sum.rope_error;
	to->rope_energy += sum.rope_energy;
	pthread_mutex_unlock(&r->study->lock);
}

/* The paper stores rotated keys, has no means, and quantises what a BF16 cache would hold. */
static void quantise_paper(const struct rows *r)
{
	const struct qmw_study_settings *settings = &r->study->settings;
	const struct qmk_constants none = {.content_mean = NULL};
	uint32_t bits = settings->format == QMK_FORMAT_C2R4 ? 2 : 4;

	for (uint32_t t = 0; t < r->span->count; t++) {
		float *near = r->near + (size_t)t * r->width, *far = r->far + (size_t)t * r->width;

		rotate(r, t, near + r->content);
		if (!settings->float32)
			round_all(near, r->width);
		memcpy(far, near, r->width * sizeof(*far));
		qmw_study_paper_round(far, r->content, bits, true);
		qmw_study_paper_round(far + r->content, r->rope, 4, false);
	}
	if (settings->compare)
		add_errors(r, r->far, &none);
}

/* A page of the span's rows, packed and unpacked by the kernels that serve. */
static qmla_status_t pack_and_unpack(const struct rows *r, float *page, void *block)
{
	const struct qmw_model *model = r->context->model;
	uint32_t layer = r->context->layer, slot = 0;
	struct qmk_pack_args pack = {
		.layout = &r->study->layout,
		.constants = &model->pack_constants[layer],
		.pool = {block, r->study->layout.block_bytes},
		.layer = layer,
		.pages = 1,
		.slots = &slot,
		.content = page,
		.rope = page + r->content,
		.content_stride = r->width,
		.rope_stride = r->width,
		.dtype = QMK_F32,
	};
	struct qmk_unpack_args unpack = {
		.layout = pack.layout,
		.constants = &model->attend_constants[layer],
		.pool = pack.pool,
		.layer = layer,
		.pages = 1,
		.slots = &slot,
		.content = page,
		.rope = page + r->content,
		.content_stride = r->width,
		.rope_stride = r->width,
		.dtype = QMK_F32,
	};
	size_t bytes = model->ops->pack_workspace(&pack);
	qmla_status_t status;

	pack.workspace = bytes ? qmw_buffer_reserve(&r->lane->workspace, bytes) : NULL;
	if (bytes && !pack.workspace)
		return QMLA_ERR_NO_MEMORY;
	status = model->ops->pack(&pack);
	return status ? status : model->ops->unpack(&unpack);
}

/* This project's: means taken, keys before rotation. */
static qmla_status_t quantise_default(const struct rows *r)
{
	const struct qmk_constants *means = &r->context->model->attend_constants[r->context->layer];
	size_t page = (size_t)QMK_PAGE_TOKENS * r->width * sizeof(float);
	uint8_t *buffer = qmw_buffer_reserve(&r->lane->parts,
					     page + QMK_ALIGN + r->study->layout.block_bytes);
	uintptr_t block = ((uintptr_t)buffer + page + QMK_ALIGN - 1) / QMK_ALIGN * QMK_ALIGN;
	float *values = (float *)(void *)buffer;
	qmla_status_t status;

	if (!buffer)
		return QMLA_ERR_NO_MEMORY;
	memset(values, 0, page); /* rows of a page are independent; those of no token are zero */
	memcpy(values, r->near, (size_t)r->span->count * r->width * sizeof(*values));
	status = pack_and_unpack(r, values, (void *)block);
	if (status)
		return status;
	if (r->study->settings.compare)
		add_errors(r, values, means);
	memcpy(r->far, values, (size_t)r->span->count * r->width * sizeof(*values));
	return QMLA_OK;
}

static qmla_status_t make_default(const struct rows *r)
{
	const struct qmk_constants *means = &r->context->model->attend_constants[r->context->layer];
	const struct qmw_study_settings *settings = &r->study->settings;
	qmla_status_t status = QMLA_OK;

	for (uint32_t t = 0; t < r->span->count; t++) {
		float *near = r->near + (size_t)t * r->width;

		take_mean(near, means->content_mean, r->content, !settings->float32);
		take_mean(near + r->content, means->rope_mean, r->rope, !settings->float32);
	}
	if (!settings->exact)
		status = quantise_default(r);
	for (uint32_t t = 0; t < r->span->count && !status; t++) {
		float *near = r->near + (size_t)t * r->width, *far = r->far + (size_t)t * r->width;

		add_mean(near, means->content_mean, r->content);
		add_mean(near + r->content, means->rope_mean, r->rope);
		rotate(r, t, near + r->content);
		if (!settings->exact)
			rotate(r, t, far + r->content);
	}
	return status;
}

qmla_status_t qmw_study_quantise(struct qmw_context *context, struct qmw_lane *lane,
				 const struct qmw_span *span)
{
	const struct qmw_config *c = &context->model->config;
	uint32_t width = qmw_model_width(context->model);
	size_t first = (size_t)(span->total - span->count) * width;
	struct rows r = {
		.context = context,
		.lane = lane,
		.span = span,
		.study = span->sequence->study,
		.near = qmw_study_rows(span->sequence, context->layer, false) + first,
		.far = qmw_study_rows(span->sequence, context->layer, true) + first,
		.content = c->content_dim,
		.rope = c->rope_dim,
		.width = width,
	};

	if (!r.study)
		return QMLA_ERR_INVALID_ARGUMENT; /* made by qmw_sequence_create */
	if (!r.study->settings.exact && r.study->settings.quantiser == QMW_QUANTISER_PAPER) {
		quantise_paper(&r);
		return QMLA_OK;
	}
	return make_default(&r);
}
