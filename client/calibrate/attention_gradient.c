/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the output with respect to the far rows (quantisation.md, 5):
 * dV = P^T dO, dP = dO V^T, dS = P (dP - rowsum(P dP)), dK = tau dS^T Q. */
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/attention_real.h"

/* Gradients of one head's rows, a cotangent at a time. */
struct gradient {
	qmw_real *store;
	struct qmw_head_rows *rows; /* [count] */
	qmw_real *attended;         /* dO [128][d_v] */
	qmw_real *score;            /* dS [128][n] */
	qmw_real *masked;           /* [128][n], with near rows */
	qmw_real *weighted;         /* [n][d_c] */
	uint32_t count;
	const qmw_real *cotangent;
};

static qmla_status_t gradient_init(const struct qmw_passage *passage, uint32_t count,
				   const qmw_real *cotangent, struct gradient *g)
{
	size_t n = passage->n, d_qk = qmw_query_dim(passage->op);
	size_t d_v = passage->op->config.value_dim, d_c = passage->op->config.content_dim;
	qmw_real *at;

	*g = (struct gradient){.count = count, .cotangent = cotangent};
	g->rows = calloc(count, sizeof(*g->rows));
	at = malloc((n * (count * (d_qk + d_v) + d_c + 2 * (size_t)QMW_QUERY_BLOCK) +
		     QMW_QUERY_BLOCK * d_v) *
		    sizeof(*at));
	g->store = at;
	if (!g->rows || !at)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t c = 0; c < count; c++) {
		g->rows[c] = (struct qmw_head_rows){.key = at, .value = at + n * d_qk};
		at += n * (d_qk + d_v);
	}
	g->weighted = at;
	g->score = g->weighted + n * d_c;
	g->masked = g->score + n * QMW_QUERY_BLOCK;
	g->attended = g->masked + n * QMW_QUERY_BLOCK;
	return QMLA_OK;
}

static void gradient_fini(struct gradient *g)
{
	free(g->rows);
	free(g->store);
}

/* Sum of products in eight running sums, which the compiler can vectorise. */
static double dot(const qmw_real *a, const qmw_real *b, uint32_t count)
{
	double lanes[8] = {0}, sum = 0;
	uint32_t whole = count / 8 * 8;

	for (uint32_t i = 0; i < whole; i += 8) {
		for (uint32_t k = 0; k < 8; k++)
			lanes[k] += (double)a[i + k] * (double)b[i + k];
	}
	for (uint32_t i = whole; i < count; i++)
		sum += (double)a[i] * (double)b[i];
	for (uint32_t k = 0; k < 8; k++)
		sum += lanes[k];
	return sum;
}

/* dS of one block in place of dP, tau in; far entries only where there are near rows. */
static void score_gradient(const struct qmw_passage *passage, const struct qmw_span *span,
			   const struct qmw_head_scratch *scratch, qmw_real *score)
{
	qmw_real tau = (qmw_real)passage->op->rope.softmax_scale;
	size_t n = passage->n;

	for (uint32_t r = 0; r < span->rows; r++) {
		const qmw_real *p = scratch->weight + r * n;
		qmw_real *d = score + r * n;
		qmw_real mean = (qmw_real)dot(p, d, span->keys);

		for (uint32_t j = 0; j < span->keys; j++)
			d[j] = tau * p[j] * (d[j] - mean);
	}
	if (scratch->rule)
		qmw_head_mask_near(scratch, span, false, score, score, n);
}

/* dP = dO V^T, with the near rows' values in their columns. */
static void weight_gradient(const struct qmw_passage *passage, const struct qmw_span *span,
			    struct qmw_head_scratch *scratch, struct gradient *g)
{
	size_t n = passage->n, d_v = passage->op->config.value_dim;

	qmw_gemm(false, true, span->rows, span->keys, d_v, 1, g->attended, d_v, scratch->far.value,
		 d_v, 0, g->score, n);
	if (!scratch->rule)
		return;
	qmw_gemm(false, true, span->rows, span->keys, d_v, 1, g->attended, d_v, scratch->near.value,
		 d_v, 0, scratch->spare, n);
	qmw_head_mask_near(scratch, span, false, g->score, g->score, n);
	qmw_head_mask_near(scratch, span, true, scratch->spare, scratch->spare, n);
	for (uint32_t r = 0; r < span->rows; r++) {
		for (uint32_t j = 0; j < span->keys; j++)
			g->score[r * n + j] += scratch->spare[r * n + j];
	}
}

static void block_gradient(const struct qmw_passage *passage, const struct qmw_span *span,
			   struct qmw_head_scratch *scratch, struct gradient *g)
{
	const struct qmw_config *config = &passage->op->config;
	size_t n = passage->n, d_qk = qmw_query_dim(passage->op), d_v = config->value_dim;
	size_t hidden = config->hidden, ldq = config->heads * d_qk;
	const qmw_real *far = scratch->weight;

	qmw_head_weights(passage, span, scratch);
	if (scratch->rule) {
		qmw_head_mask_near(scratch, span, false, scratch->weight, g->masked, n);
		far = g->masked;
	}
	for (uint32_t c = 0; c < g->count; c++) {
		qmw_gemm(false, false, span->rows, d_v, hidden, 1,
			 g->cotangent + (c * n + span->first) * hidden, hidden,
			 passage->op->weights.output + scratch->head * d_v, config->heads * d_v, 0,
			 g->attended, d_v);
		qmw_gemm(true, false, span->keys, d_v, span->rows, 1, far, n, g->attended, d_v, 1,
			 g->rows[c].value, d_v);
		weight_gradient(passage, span, scratch, g);
		score_gradient(passage, span, scratch, g->score);
		qmw_gemm(true, false, span->keys, d_qk, span->rows, 1, g->score, n,
			 passage->query + span->first * ldq + scratch->head * d_qk, ldq, 1,
			 g->rows[c].key, d_qk);
	}
}

/* A head's dK and dV back to content and key rows; Gamma and the rotation come last. */
static void collect(const struct qmw_passage *passage, uint32_t head, const struct gradient *g,
		    qmw_real *content, qmw_real *key)
{
	const struct qmw_config *config = &passage->op->config;
	size_t n = passage->n, d_c = config->content_dim, d_r = config->rope_dim;
	size_t d_n = config->nope_dim, d_qk = d_n + d_r, d_v = config->value_dim;

	for (uint32_t c = 0; c < g->count; c++) {
		const struct qmw_head_rows *rows = &g->rows[c];

		if (content) {
			qmw_gemm(false, false, n, d_c, d_n, 1, rows->key, d_qk,
				 qmw_key_up(passage->op, head), d_c, 1, content + c * n * d_c, d_c);
			qmw_gemm(false, false, n, d_c, d_v, 1, rows->value, d_v,
				 qmw_value_up(passage->op, head), d_c, 1, content + c * n * d_c,
				 d_c);
		}
		for (size_t t = 0; key && t < n; t++) {
			for (size_t i = 0; i < d_r; i++)
				key[(c * n + t) * d_r + i] += rows->key[t * d_qk + d_n + i];
		}
	}
}

qmla_status_t qmw_passage_vjp(const struct qmw_passage *passage, const struct qmw_rows *rows,
			      uint32_t count, const qmw_real *cotangent, qmw_real *content,
			      qmw_real *key)
{
	const struct qmw_config *config = &passage->op->config;
	size_t n = passage->n, d_c = config->content_dim, d_r = config->rope_dim;
	size_t a_rows = n * (qmw_query_dim(passage->op) + config->value_dim);
	struct qmw_head_scratch scratch = {0};
	struct gradient g;
	qmla_status_t status;

	if (rows && rows->value_content)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = gradient_init(passage, count, cotangent, &g);
	if (status == QMLA_OK)
		status = qmw_head_scratch_init(passage, rows, &scratch);
	if (status != QMLA_OK)
		goto out;
	if (content)
		memset(content, 0, count * n * d_c * sizeof(*content));
	if (key)
		memset(key, 0, count * n * d_r * sizeof(*key));
	for (uint32_t head = 0; head < config->heads; head++) {
		qmw_head_load(passage, head, &scratch);
		memset(g.store, 0, count * a_rows * sizeof(*g.store));
		for (uint32_t first = 0; first < n; first += QMW_QUERY_BLOCK) {
			struct qmw_span span = qmw_query_span(passage->n, first);

			block_gradient(passage, &span, &scratch, &g);
		}
		collect(passage, head, &g, content, key);
	}
	for (uint32_t c = 0; c < count; c++) {
		if (content)
			qmw_passage_weighted(passage, content + c * n * d_c, content + c * n * d_c);
		if (key)
			qmw_passage_turn(passage, true, key + c * n * d_r, d_r, 1);
	}
out:
	qmw_head_scratch_fini(&scratch);
	gradient_fini(&g);
	return status;
}

qmla_status_t qmw_passage_loss(const struct qmw_passage *passage, const struct qmw_rows *rows,
			       const qmw_real *reference, double *loss, qmw_real *content,
			       qmw_real *key)
{
	size_t count = (size_t)passage->n * passage->op->config.hidden;
	qmw_real *output = malloc(count * sizeof(*output));
	double error = 0, energy = 0;
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (output)
		status = qmw_passage_output(passage, rows, output);
	if (status != QMLA_OK)
		goto out;
	for (size_t i = 0; i < count; i++) {
		double d = (double)output[i] - (double)reference[i];

		error += d * d;
		energy += (double)reference[i] * (double)reference[i];
	}
	/* 2 (Y - reference) / ||reference||^2, in place. */
	for (size_t i = 0; i < count; i++)
		output[i] = (qmw_real)(2 * ((double)output[i] - (double)reference[i]) / energy);
	if (content || key)
		status = qmw_passage_vjp(passage, rows, 1, output, content, key);
	if (status == QMLA_OK)
		*loss = error / energy;
out:
	free(output);
	return status;
}
