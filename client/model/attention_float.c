/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/attention_float.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

#include "kernels/numeric.h"

#define SINK          4u
#define RECENT        128u
#define SCORES_MAX    ((size_t)1 << 22) /* floats of scores at a time */
#define LANES         16u
#define LOG2_E        1.44269504f
#define ROUND_TO_EVEN 12582912.0f /* 1.5 * 2^23: the sum has no fraction bits */

enum version { VERSION_NEAR, VERSION_FAR, VERSION_MIXED };

/* Keys [begin, end) that all queries of a group see in one version, or in both. */
struct segment {
	uint32_t begin, end;
	enum version version;
};

/* Queries [row, row + rows) of the span, of all heads. */
struct group {
	const struct qmw_config *config;
	const struct qmw_float_keys *keys;
	const float *content, *rope; /* queries [rows][H][d_c], [rows][H][d_r] */
	float *mixed;                /* [rows][H][d_c] */
	uint32_t rows;
	uint32_t position; /* of the first query */
	uint32_t total;    /* keys that the last query sees */
	float scale;
	float *scores; /* [rows][H][total] */
	float *other;  /* [rows][H][width of the mixed segment] */
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

	if (!g->keys->far)
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

/* Scores of all queries for @p count keys, @p stride apart, into columns of @p out. */
static void score(const struct group *g, const float *keys, uint32_t count, float *out,
		  size_t out_stride)
{
	const struct qmw_config *c = g->config;
	blasint rows = (blasint)(g->rows * c->heads), content = (blasint)c->content_dim;
	blasint rope = (blasint)c->rope_dim, width = content + rope, n = (blasint)count;

	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, n, content, 1, g->content,
		    content, keys, width, 0, out, (blasint)out_stride);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, n, rope, 1, g->rope, rope,
		    keys + content, width, 1, out, (blasint)out_stride);
}

static const float *rows_of(const struct group *g, const struct segment *s, enum version version)
{
	size_t width = g->config->content_dim + g->config->rope_dim;

	return (version == VERSION_FAR ? g->keys->far : g->keys->near) + s->begin * width;
}

/* Of a mixed segment: each query takes the far scores up to its own far end. */
static void select_far(const struct group *g, const struct segment *s)
{
	uint32_t width = s->end - s->begin, heads = g->config->heads;

	for (uint32_t r = 0; r < g->rows * heads; r++) {
		uint32_t end = qmw_float_far_end(g->keys->protect, g->position + r / heads);
		uint32_t far = end > s->begin ? smaller(end - s->begin, width) : 0;

		memcpy(g->scores + (size_t)r * g->total + s->begin, g->other + (size_t)r * width,
		       far * sizeof(float));
	}
}

static void score_segment(const struct group *g, const struct segment *s)
{
	uint32_t width = s->end - s->begin;
	enum version version = s->version == VERSION_FAR ? VERSION_FAR : VERSION_NEAR;

	score(g, rows_of(g, s, version), width, g->scores + s->begin, g->total);
	if (s->version != VERSION_MIXED)
		return;
	score(g, rows_of(g, s, VERSION_FAR), width, g->other, width);
	select_far(g, s);
}

/* exp(x) for x <= 0 to 2e-7, as 2^n 2^f, without branches so that a loop of it vectorises. */
static inline __attribute__((always_inline)) float fast_exp(float x)
{
	float y = x * LOG2_E, n, f, p;

	y = y < -126.0f ? -126.0f : y;
	n = (y + ROUND_TO_EVEN) - ROUND_TO_EVEN;
	f = y - n;
	p = 1.5403530e-4f;
	p = p * f + 1.3333558e-3f;
	p = p * f + 9.6181291e-3f;
	p = p * f + 5.5504109e-2f;
	p = p * f + 2.4022651e-1f;
	p = p * f + 6.9314718e-1f;
	p = p * f + 1.0f;
	return p * qmk_bits_float((uint32_t)((int32_t)n + 127) << 23);
}

/* Scores of one query and head to weights that sum to one; zeros for keys not seen. */
static inline __attribute__((always_inline)) void softmax(float *x, uint32_t count, uint32_t total,
							  float scale)
{
	float max[LANES], sum[LANES] = {0}, largest = -INFINITY, all = 0;
	uint32_t whole = count / LANES * LANES;

	for (uint32_t k = 0; k < LANES; k++)
		max[k] = -INFINITY;
	for (uint32_t t = 0; t < whole; t += LANES)
		for (uint32_t k = 0; k < LANES; k++)
			max[k] = x[t + k] > max[k] ? x[t + k] : max[k];
	for (uint32_t k = 0; k < LANES; k++)
		largest = max[k] > largest ? max[k] : largest;
	for (uint32_t t = whole; t < count; t++)
		largest = x[t] > largest ? x[t] : largest;
	for (uint32_t t = 0; t < whole; t += LANES) {
		for (uint32_t k = 0; k < LANES; k++) {
			x[t + k] = fast_exp(scale * (x[t + k] - largest));
			sum[k] += x[t + k];
		}
	}
	for (uint32_t t = whole; t < count; t++) {
		x[t] = fast_exp(scale * (x[t] - largest));
		all += x[t];
	}
	for (uint32_t k = 0; k < LANES; k++)
		all += sum[k];
	all = 1 / all;
	for (uint32_t t = 0; t < count; t++)
		x[t] *= all;
	memset(x + count, 0, (total - count) * sizeof(*x));
}

static inline __attribute__((always_inline)) void softmax_rows(const struct group *g)
{
	uint32_t heads = g->config->heads;

	for (uint32_t r = 0; r < g->rows * heads; r++)
		softmax(g->scores + (size_t)r * g->total, g->position + r / heads + 1, g->total,
			g->scale);
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma"))) static void
softmax_avx512(const struct group *g)
{
	softmax_rows(g);
}

__attribute__((target("avx2,fma"))) static void softmax_avx2(const struct group *g)
{
	softmax_rows(g);
}
#endif

static void softmax_group(const struct group *g)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
	    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
		softmax_avx512(g);
		return;
	}
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
		softmax_avx2(g);
		return;
	}
#endif
	softmax_rows(g);
}

/* mixed = weights times @p rows, or += with @p more. */
static void gather(const struct group *g, const float *weights, size_t stride, uint32_t count,
		   const float *rows, bool more)
{
	const struct qmw_config *c = g->config;
	blasint content = (blasint)c->content_dim;

	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)(g->rows * c->heads),
		    content, (blasint)count, 1, weights, (blasint)stride, rows,
		    content + (blasint)c->rope_dim, more ? 1 : 0, g->mixed, content);
}

/* Moves the weights of far keys of a mixed segment to g->other, each with zeros for the rest. */
static void split_weights(const struct group *g, const struct segment *s)
{
	uint32_t width = s->end - s->begin, heads = g->config->heads;

	for (uint32_t r = 0; r < g->rows * heads; r++) {
		uint32_t end = qmw_float_far_end(g->keys->protect, g->position + r / heads);
		uint32_t far = end > s->begin ? smaller(end - s->begin, width) : 0;
		float *from = g->scores + (size_t)r * g->total + s->begin;
		float *to = g->other + (size_t)r * width;

		memcpy(to, from, far * sizeof(*to));
		memset(to + far, 0, (width - far) * sizeof(*to));
		memset(from, 0, far * sizeof(*from));
	}
}

static void gather_segment(const struct group *g, const struct segment *s, bool more)
{
	uint32_t width = s->end - s->begin;
	enum version version = s->version == VERSION_FAR ? VERSION_FAR : VERSION_NEAR;

	if (s->version == VERSION_MIXED) {
		split_weights(g, s);
		gather(g, g->other, width, width, rows_of(g, s, VERSION_FAR), more);
		more = true;
	}
	gather(g, g->scores + s->begin, g->total, width, rows_of(g, s, version), more);
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
				       const struct qmw_float_keys *keys)
{
	const struct qmw_config *c = &context->model->config;
	size_t row = (size_t)c->heads * span->total;
	uint32_t most = (uint32_t)(row < SCORES_MAX ? SCORES_MAX / row : 1);
	uint32_t rows = span->count < most ? span->count : most;
	uint32_t position = span->total - span->count;
	/* A mixed segment is at most as wide as the far end moves within the group. */
	float *scores = qmw_buffer_reserve(
		&lane->workspace,
		rows * (row + (size_t)c->heads * (rows + QMK_PAGE_TOKENS)) * sizeof(*scores));

	if (!scores)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t r = 0; r < span->count; r += rows) {
		struct group g = {
			.config = c,
			.keys = keys,
			.content = lane->query_content + (size_t)r * c->heads * c->content_dim,
			.rope = lane->query_rope + (size_t)r * c->heads * c->rope_dim,
			.mixed = lane->mixed + (size_t)r * c->heads * c->content_dim,
			.rows = span->count - r < rows ? span->count - r : rows,
			.position = position + r,
			.scale = context->model->rope.softmax_scale,
			.scores = scores,
			.other = scores + rows * row,
		};

		g.total = g.position + g.rows;
		attend_group(&g);
	}
	return QMLA_OK;
}

qmla_status_t qmw_attention_float(struct qmw_context *context, struct qmw_lane *lane,
				  const struct qmw_span *span)
{
	struct qmw_float_keys keys = {
		.near = qmw_sequence_float_rows(span->sequence, context->layer)};

	return qmw_attention_float_keys(context, lane, span, &keys);
}
