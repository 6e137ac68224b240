/* SPDX-License-Identifier: Apache-2.0 */
/* Cache rows to a head's keys, values and attention weights. */
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/attention_real.h"
#include "client/model/softmax.h"

void qmw_passage_weighted(const struct qmw_passage *passage, const qmw_real *content,
			  qmw_real *weighted)
{
	size_t d_c = passage->op->config.content_dim;
	const qmw_real *gamma = passage->op->weights.kv_norm;

	for (size_t t = 0; t < passage->n; t++) {
		for (size_t i = 0; i < d_c; i++)
			weighted[t * d_c + i] = content[t * d_c + i] * gamma[i];
	}
}

void qmw_passage_turn(const struct qmw_passage *passage, bool transposed, qmw_real *rows,
		      size_t stride, uint32_t heads)
{
	const struct qmw_rope *rope = &passage->op->rope;
	uint32_t pairs = rope->dim / 2, a, b;

	for (size_t row = 0; row < (size_t)passage->n * heads; row++) {
		const qmw_real *cosine = passage->cosine + row / heads * pairs;
		const qmw_real *sine = passage->sine + row / heads * pairs;
		qmw_real *vector = rows + row * stride;

		for (uint32_t j = 0; j < pairs; j++) {
			qmw_real s = transposed ? -sine[j] : sine[j], x, y;

			qmw_rope_pair(rope, j, &a, &b);
			x = vector[a];
			y = vector[b];
			vector[a] = x * cosine[j] - y * s;
			vector[b] = y * cosine[j] + x * s;
		}
	}
}

void qmw_passage_rotate(const struct qmw_passage *passage, bool inverse, qmw_real *key)
{
	const struct qmw_rope *rope = &passage->op->rope;
	uint32_t pairs = rope->dim / 2, a, b;

	qmw_passage_turn(passage, inverse, key, rope->dim, 1);
	/* The transpose is the inverse times the squared amplitude. */
	for (size_t t = 0; inverse && t < passage->n; t++) {
		for (uint32_t j = 0; j < pairs; j++) {
			qmw_real c = passage->cosine[t * pairs + j],
				 s = passage->sine[t * pairs + j];
			qmw_real norm = c * c + s * s;

			qmw_rope_pair(rope, j, &a, &b);
			key[t * rope->dim + a] /= norm;
			key[t * rope->dim + b] /= norm;
		}
	}
}

/* Hands out pieces of one allocation. */
static qmw_real *carve(qmw_real **at, size_t count)
{
	qmw_real *piece = *at;

	*at += count;
	return piece;
}

static void take_rows(const struct qmw_passage *passage, const qmw_real *content,
		      const qmw_real *key, qmw_real *weighted, qmw_real *turned)
{
	size_t d_r = passage->op->config.rope_dim;

	qmw_passage_weighted(passage, content ? content : passage->content, weighted);
	memcpy(turned, key ? key : passage->key, passage->n * d_r * sizeof(*turned));
	qmw_passage_turn(passage, false, turned, d_r, 1);
}

qmla_status_t qmw_head_scratch_init(const struct qmw_passage *passage, const struct qmw_rows *rows,
				    struct qmw_head_scratch *scratch)
{
	static const struct qmw_rows exact;
	const struct qmw_config *config = &passage->op->config;
	size_t n = passage->n, d_qk = qmw_query_dim(passage->op), d_v = config->value_dim;
	size_t row = config->content_dim + config->rope_dim + d_qk + d_v;
	qmw_real *at;

	if (!rows)
		rows = &exact;
	*scratch = (struct qmw_head_scratch){.rule = rows->near};
	if (rows->value_content)
		row += config->content_dim;
	at = malloc(n * (row * (rows->near ? 2 : 1) + 2 * (size_t)QMW_QUERY_BLOCK) * sizeof(*at));
	if (!at)
		return QMLA_ERR_NO_MEMORY;
	scratch->store = at;
	scratch->weighted = carve(&at, n * config->content_dim);
	scratch->weighted_value = scratch->weighted;
	if (rows->value_content) {
		scratch->weighted_value = carve(&at, n * config->content_dim);
		qmw_passage_weighted(passage, rows->value_content, scratch->weighted_value);
	}
	scratch->turned = carve(&at, n * config->rope_dim);
	scratch->far.key = carve(&at, n * d_qk);
	scratch->far.value = carve(&at, n * d_v);
	scratch->weight = carve(&at, n * QMW_QUERY_BLOCK);
	scratch->spare = carve(&at, n * QMW_QUERY_BLOCK);
	take_rows(passage, rows->content, rows->key, scratch->weighted, scratch->turned);
	if (!rows->near)
		return QMLA_OK;
	scratch->weighted_near = carve(&at, n * config->content_dim);
	scratch->turned_near = carve(&at, n * config->rope_dim);
	scratch->near.key = carve(&at, n * d_qk);
	scratch->near.value = carve(&at, n * d_v);
	take_rows(passage, rows->near->content, rows->near->key, scratch->weighted_near,
		  scratch->turned_near);
	return QMLA_OK;
}

void qmw_head_scratch_fini(struct qmw_head_scratch *scratch)
{
	free(scratch->store);
}

static void expand(const struct qmw_passage *passage, uint32_t head, const qmw_real *weighted,
		   const qmw_real *weighted_value, const qmw_real *turned,
		   struct qmw_head_rows *rows)
{
	const struct qmw_config *config = &passage->op->config;
	size_t n = passage->n, d_c = config->content_dim, d_r = config->rope_dim;
	size_t d_n = config->nope_dim, d_qk = d_n + d_r;

	qmw_gemm(false, true, n, d_n, d_c, 1, weighted, d_c, qmw_key_up(passage->op, head), d_c, 0,
		 rows->key, d_qk);
	for (size_t t = 0; t < n; t++)
		memcpy(rows->key + t * d_qk + d_n, turned + t * d_r, d_r * sizeof(*turned));
	qmw_gemm(false, true, n, config->value_dim, d_c, 1, weighted_value, d_c,
		 qmw_value_up(passage->op, head), d_c, 0, rows->value, config->value_dim);
}

void qmw_head_load(const struct qmw_passage *passage, uint32_t head,
		   struct qmw_head_scratch *scratch)
{
	scratch->head = head;
	expand(passage, head, scratch->weighted, scratch->weighted_value, scratch->turned,
	       &scratch->far);
	if (scratch->rule)
		expand(passage, head, scratch->weighted_near, scratch->weighted_near,
		       scratch->turned_near, &scratch->near);
}

/* First near column of a query behind the sinks. */
static uint32_t near_start(const struct qmw_near *rule, uint32_t query)
{
	uint32_t start = query + 1;

	if (rule->block)
		start = query - query % rule->block;
	if (rule->recent && query + 1 - start < rule->recent)
		start = query + 1 > rule->recent ? query + 1 - rule->recent : 0;
	return start;
}

uint32_t qmw_head_near_columns(const struct qmw_head_scratch *scratch, const struct qmw_span *span)
{
	/* near_start does not fall as the query moves on. */
	return near_start(scratch->rule, span->first);
}

void qmw_head_mask_near(const struct qmw_head_scratch *scratch, const struct qmw_span *span,
			bool near, const qmw_real *from, qmw_real *to, size_t stride)
{
	for (uint32_t r = 0; r < span->rows; r++) {
		uint32_t start = near_start(scratch->rule, span->first + r);

		for (uint32_t j = 0; j < span->keys; j++) {
			bool is_near = j < scratch->rule->sink || j >= start;

			to[r * stride + j] = is_near == near ? from[r * stride + j] : 0;
		}
	}
}

/* Dot products of the near columns [first, last) put in their place. */
static void place_near(const struct qmw_passage *passage, const struct qmw_span *span,
		       struct qmw_head_scratch *scratch, const qmw_real *query, size_t ldq,
		       uint32_t first, uint32_t last)
{
	size_t d_qk = qmw_query_dim(passage->op), n = passage->n;

	if (first >= last)
		return;
	qmw_gemm(false, true, span->rows, last - first, d_qk,
		 (qmw_real)passage->op->rope.softmax_scale, query, ldq,
		 scratch->near.key + first * d_qk, d_qk, 0, scratch->spare + first, n);
	for (uint32_t r = 0; r < span->rows; r++) {
		uint32_t start = near_start(scratch->rule, span->first + r);

		for (uint32_t j = first; j < last; j++) {
			if (j < scratch->rule->sink || j >= start)
				scratch->weight[r * n + j] = scratch->spare[r * n + j];
		}
	}
}

#ifdef QMW_REAL_DOUBLE
/* Softmax of the first `seen` entries, zero for the rest up to `keys`. */
static void softmax(qmw_real *row, uint32_t seen, uint32_t keys)
{
	qmw_real top = row[0], inverse;
	double sum = 0;

	for (uint32_t j = 1; j < seen; j++)
		top = row[j] > top ? row[j] : top;
	for (uint32_t j = 0; j < seen; j++) {
		row[j] = exp(row[j] - top);
		sum += row[j];
	}
	inverse = 1 / sum;
	for (uint32_t j = 0; j < seen; j++)
		row[j] *= inverse;
	memset(row + seen, 0, (keys - seen) * sizeof(*row));
}
#else
static void softmax(float *row, uint32_t seen, uint32_t keys)
{
	qmw_softmax(row, seen, keys, 1);
}
#endif

void qmw_head_weights(const struct qmw_passage *passage, const struct qmw_span *span,
		      struct qmw_head_scratch *scratch)
{
	size_t d_qk = qmw_query_dim(passage->op), n = passage->n;
	size_t ldq = passage->op->config.heads * d_qk;
	const qmw_real *query = passage->query + span->first * ldq + scratch->head * d_qk;

	qmw_gemm(false, true, span->rows, span->keys, d_qk,
		 (qmw_real)passage->op->rope.softmax_scale, query, ldq, scratch->far.key, d_qk, 0,
		 scratch->weight, n);
	if (scratch->rule) {
		uint32_t first = qmw_head_near_columns(scratch, span);
		uint32_t sinks = scratch->rule->sink < first ? scratch->rule->sink : first;

		place_near(passage, span, scratch, query, ldq, 0, sinks);
		place_near(passage, span, scratch, query, ldq, first, span->keys);
	}
	for (uint32_t r = 0; r < span->rows; r++)
		softmax(scratch->weight + r * n, span->first + r + 1, span->keys);
}
