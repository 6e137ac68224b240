/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/attention_float.h"

#include <cblas.h>
#include <string.h>

#include "client/model/numeric.h"
#include "client/model/softmax.h"
#include "client/model/study_internal.h"

#define SINK   4u
#define RECENT 128u

enum version { VERSION_NEAR, VERSION_FAR, VERSION_MIXED };

/* Keys [begin, end) that all queries of a group see in one version, or in both. */
struct segment {
	uint32_t begin, end;
	enum version version;
};

/* Consecutive queries of one head. */
struct group {
	const struct qmw_config *config;
	const struct qmw_float_keys *keys;
	uint32_t head;
	const float *query; /* [rows], query_stride apart: d_n, then d_r */
	float *heads;       /* [rows], heads_stride apart: d_v */
	uint32_t rows;
	uint32_t position; /* of the first query */
	uint32_t total;    /* keys that the last query sees */
	float scale;
	float *scores; /* [rows][total] */
	float *other;  /* [rows][width of the mixed segment] */
};

uint32_t qmw_float_sink(enum qmw_protect protect)
{
	return protect == QMW_PROTECT_WINDOW ? SINK : 0;
}

uint32_t qmw_float_far_end(enum qmw_protect protect, uint32_t position)
{
	switch (protect) {
	case QMW_PROTECT_BLOCK:
		return position / QMK_PAGE_TOKENS * QMK_PAGE_TOKENS;
	case QMW_PROTECT_WINDOW:
		return position + 1 > RECENT ? position + 1 - RECENT : 0;
	default:
		return position + 1;
	}
}

static uint32_t add(struct segment *segments, uint32_t count, uint32_t begin, uint32_t end,
		    enum version version)
{
	if (begin >= end)
		return count;
	segments[count] = (struct segment){begin, end, version};
	return count + 1;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* Cuts the group's keys; what the first query sees near and the last one far is mixed. */
static uint32_t cut(const struct group *g, struct segment segments[4])
{
	uint32_t sink = smaller(qmw_float_sink(g->keys->protect), g->total), count = 0;
	uint32_t first, last;

	if (!g->keys->far.rows)
		return add(segments, 0, 0, g->total, VERSION_NEAR);
	first = qmw_float_far_end(g->keys->protect, g->position);
	last = qmw_float_far_end(g->keys->protect, g->position + g->rows - 1);
	/* Without protection a query's far end is its own causal one: nothing is mixed. */
	if (g->keys->protect == QMW_PROTECT_NONE)
		first = last;
	first = larger(first, sink);
	last = larger(last, first);
	count = add(segments, count, 0, sink, VERSION_NEAR);
	count = add(segments, count, sink, first, VERSION_FAR);
	count = add(segments, count, first, last, VERSION_MIXED);
	return add(segments, count, last, g->total, VERSION_NEAR);
}

static size_t query_stride(const struct qmw_config *c)
{
	return (size_t)c->heads * (c->nope_dim + c->rope_dim);
}

static const struct qmw_float_version *version_of(const struct group *g, enum version version)
{
	return version == VERSION_FAR ? &g->keys->far : &g->keys->near;
}

/* Scores of all queries for the segment's keys in one version, into columns of @p out. */
static void score(const struct group *g, const struct segment *s, enum version version, float *out,
		  size_t out_stride)
{
	const struct qmw_config *c = g->config;
	const struct qmw_float_version *v = version_of(g, version);
	size_t width = c->content_dim + c->rope_dim, up = qmw_float_width(c);
	blasint rows = (blasint)g->rows, n = (blasint)(s->end - s->begin);
	blasint stride = (blasint)query_stride(c);

	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, n, (blasint)c->nope_dim, 1,
		    g->query, stride, v->up + s->begin * up + (size_t)g->head * c->nope_dim,
		    (blasint)up, 0, out, (blasint)out_stride);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, n, (blasint)c->rope_dim, 1,
		    g->query + c->nope_dim, stride, v->rows + s->begin * width + c->content_dim,
		    (blasint)width, 1, out, (blasint)out_stride);
}

/* Keys of a mixed segment that query r sees far: its first ones. */
static uint32_t far_keys(const struct group *g, const struct segment *s, uint32_t r)
{
	uint32_t end = qmw_float_far_end(g->keys->protect, g->position + r);

	return end > s->begin ? smaller(end, s->end) - s->begin : 0;
}

static void score_segment(const struct group *g, const struct segment *s)
{
	uint32_t width = s->end - s->begin;
	enum version version = s->version == VERSION_FAR ? VERSION_FAR : VERSION_NEAR;

	score(g, s, version, g->scores + s->begin, g->total);
	if (s->version != VERSION_MIXED)
		return;
	score(g, s, VERSION_FAR, g->other, width);
	for (uint32_t r = 0; r < g->rows; r++)
		memcpy(g->scores + (size_t)r * g->total + s->begin, g->other + (size_t)r * width,
		       far_keys(g, s, r) * sizeof(float));
}

static void softmax_group(const struct group *g)
{
	for (uint32_t r = 0; r < g->rows; r++)
		qmw_softmax(g->scores + (size_t)r * g->total, g->position + r + 1, g->total,
			    g->scale);
}

/* heads = weights times the segment's values, or += with @p more. */
static void gather(const struct group *g, const struct segment *s, enum version version,
		   const float *weights, size_t stride, bool more)
{
	const struct qmw_config *c = g->config;
	size_t up = qmw_float_width(c);
	const float *values = version_of(g, version)->up + s->begin * up +
			      (size_t)c->heads * c->nope_dim + (size_t)g->head * c->value_dim;

	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)g->rows,
		    (blasint)c->value_dim, (blasint)(s->end - s->begin), 1, weights,
		    (blasint)stride, values, (blasint)up, more ? 1 : 0, g->heads,
		    (blasint)(c->heads * c->value_dim));
}

/* Moves the weights of far keys of a mixed segment to g->other, each with zeros for the rest. */
static void split_weights(const struct group *g, const struct segment *s)
{
	uint32_t width = s->end - s->begin;

	for (uint32_t r = 0; r < g->rows; r++) {
		uint32_t far = far_keys(g, s, r);
		float *from = g->scores + (size_t)r * g->total + s->begin;
		float *to = g->other + (size_t)r * width;

		memcpy(to, from, far * sizeof(*to));
		memset(to + far, 0, (width - far) * sizeof(*to));
		memset(from, 0, far * sizeof(*from));
	}
}

static void gather_segment(const struct group *g, const struct segment *s, bool more)
{
	if (s->version == VERSION_MIXED) {
		split_weights(g, s);
		gather(g, s, VERSION_FAR, g->other, s->end - s->begin, more);
		more = true;
	}
	gather(g, s, s->version == VERSION_FAR ? VERSION_FAR : VERSION_NEAR, g->scores + s->begin,
	       g->total, more);
}

static void attend_group(const struct group *g)
{
	struct segment segments[4];
	uint32_t count = cut(g, segments);

	for (uint32_t i = 0; i < count; i++)
		score_segment(g, &segments[i]);
	softmax_group(g);
	for (uint32_t i = 0; i < count; i++)
		gather_segment(g, &segments[i], i > 0);
}

qmla_status_t qmw_attention_float_keys(const struct qmw_context *context, struct qmw_lane *lane,
				       const struct qmw_span *span,
				       const struct qmw_float_keys *keys, float *heads)
{
	const struct qmw_config *c = &context->model->config;
	/* A mixed segment is at most as wide as the far end moves within the span. */
	float *scores = qmw_buffer_reserve(&lane->workspace,
					   span->count * ((size_t)span->total + span->count) *
						   sizeof(*scores));

	if (!scores)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t h = 0; h < c->heads; h++) {
		const struct group g = {
			.config = c,
			.keys = keys,
			.head = h,
			.query = context->query + span->first_row * query_stride(c) +
				 (size_t)h * (c->nope_dim + c->rope_dim),
			.heads = heads + (size_t)h * c->value_dim,
			.rows = span->count,
			.position = span->total - span->count,
			.total = span->total,
			.scale = context->model->rope.softmax_scale,
			.scores = scores,
			.other = scores + (size_t)span->count * span->total,
		};

		attend_group(&g);
	}
	qmw_round_rows(context->model->options.round_bf16, heads,
		       (size_t)span->count * c->heads * c->value_dim);
	return QMLA_OK;
}

qmla_status_t qmw_attention_float(const struct qmw_context *context, struct qmw_lane *lane,
				  const struct qmw_span *span, float *heads)
{
	struct qmw_float_keys keys = qmw_float_keys(context, span->sequence);

	return qmw_attention_float_keys(context, lane, span, &keys, heads);
}

qmla_status_t qmw_float_prepare(struct qmw_context *context)
{
	const struct qmw_config *c = &context->model->config;
	const struct qmw_layer *layer = &context->model->weights.layer[context->layer];
	size_t n = c->nope_dim, head = n * c->content_dim;
	float *up = qmw_buffer_reserve(&context->up, (c->heads * head + n * n) * sizeof(*up));
	float *unit;

	if (!up)
		return QMLA_ERR_NO_MEMORY;
	unit = up + c->heads * head;
	for (size_t i = 0; i < n * n; i++)
		unit[i] = i / n == i % n;
	/* Row d of W_UK is what key_up gives for the d-th unit vector. */
	for (uint32_t h = 0; h < c->heads; h++)
		qmw_matrix_apply(&layer->key_up[h], 0, layer->key_up[h].panels, unit, n,
				 c->nope_dim, up + h * head, c->content_dim);
	return QMLA_OK;
}

/* One version of the span's rows. */
static void expand(struct qmw_context *context, const struct qmw_span *span, const float *rows,
		   float *to)
{
	const struct qmw_config *c = &context->model->config;
	const struct qmw_layer *layer = &context->model->weights.layer[context->layer];
	uint32_t first = span->total - span->count;
	size_t width = c->content_dim + c->rope_dim, up = qmw_float_width(c);
	size_t keys = (size_t)c->heads * c->nope_dim;

	rows += first * width;
	to += first * up;
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)span->count, (blasint)keys,
		    (blasint)c->content_dim, 1, rows, (blasint)width, context->up.bytes,
		    (blasint)c->content_dim, 0, to, (blasint)up);
	for (uint32_t h = 0; h < c->heads; h++)
		qmw_matrix_apply(&layer->value_up[h], 0, layer->value_up[h].panels, rows, width,
				 span->count, to + keys + (size_t)h * c->value_dim, up);
	qmw_round_rows(context->model->options.round_bf16, to, span->count * up);
}

/* Keys and values of a layer, [max_tokens][qmw_float_width]. */
static float *expanded(const struct qmw_context *context, const struct qmw_sequence *sequence,
		       bool far)
{
	const struct qmw_config *c = &context->model->config;
	size_t plane = (far ? c->layers : 0) + context->layer;

	return sequence->expanded + plane * sequence->max_tokens * qmw_float_width(c);
}

struct qmw_float_keys qmw_float_keys(const struct qmw_context *context,
				     const struct qmw_sequence *sequence)
{
	struct qmw_float_keys keys = {.near = {qmw_sequence_float_rows(sequence, context->layer),
					       expanded(context, sequence, false)}};

	if (sequence->study)
		keys.far =
			(struct qmw_float_version){qmw_study_rows(sequence, context->layer, true),
						   expanded(context, sequence, true)};
	return keys;
}

void qmw_float_expand(struct qmw_context *context, const struct qmw_span *span)
{
	const struct qmw_sequence *sequence = span->sequence;

	expand(context, span, qmw_sequence_float_rows(sequence, context->layer),
	       expanded(context, sequence, false));
	if (sequence->study && !sequence->study->settings.exact)
		expand(context, span, qmw_study_rows(sequence, context->layer, true),
		       expanded(context, sequence, true));
}
