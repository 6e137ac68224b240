/* SPDX-License-Identifier: Apache-2.0 */
/* Positional scores, and the norms that Proposition 2 needs. */
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/attention_real.h"

/* M += sum over heads of q q^T, q the rotated part of one token's queries. */
static void add_queries(const struct qmw_passage *passage, uint32_t token, double *metric)
{
	const struct qmw_config *config = &passage->op->config;
	size_t d_r = config->rope_dim, d_qk = qmw_query_dim(passage->op);
	const qmw_real *query = passage->query + token * config->heads * d_qk + config->nope_dim;

	for (uint32_t head = 0; head < config->heads; head++, query += d_qk) {
		double q[QMK_MAX_ROPE_DIM];

		for (size_t i = 0; i < d_r; i++)
			q[i] = (double)query[i];
		for (size_t i = 0; i < d_r; i++) {
			for (size_t j = 0; j < d_r; j++)
				metric[i * d_r + j] += q[i] * q[j];
		}
	}
}

/* v^T M v of a symmetric M, and M v: a row of M after the other, which vectorises. */
static double quadratic(const double *metric, size_t n, const qmw_real *vector, double *product)
{
	double form = 0;

	memset(product, 0, n * sizeof(*product));
	for (size_t i = 0; i < n; i++) {
		double v = (double)vector[i];

		for (size_t j = 0; j < n; j++)
			product[j] += v * metric[i * n + j];
	}
	for (size_t j = 0; j < n; j++)
		form += product[j] * (double)vector[j];
	return form;
}

qmla_status_t qmw_passage_positional(const struct qmw_passage *passage, const qmw_real *key,
				     double *error, double *energy, qmw_real *gradient)
{
	size_t d_r = passage->op->config.rope_dim, count = passage->n * d_r;
	double *metric = calloc(d_r * d_r, sizeof(*metric));
	qmw_real *own = malloc(2 * count * sizeof(*own)), *off;
	double product[QMK_MAX_ROPE_DIM], wrong = 0, all = 0;

	if (!metric || !own) {
		free(metric);
		free(own);
		return QMLA_ERR_NO_MEMORY;
	}
	off = own + count;
	memcpy(own, passage->key, count * sizeof(*own));
	for (size_t i = 0; i < count; i++)
		off[i] = key[i] - own[i];
	qmw_passage_turn(passage, false, own, d_r, 1);
	qmw_passage_turn(passage, false, off, d_r, 1);
	/* From the last token on: M holds the queries that see the key. */
	for (uint32_t t = passage->n; t-- > 0;) {
		add_queries(passage, t, metric);
		all += quadratic(metric, d_r, own + t * d_r, product);
		wrong += quadratic(metric, d_r, off + t * d_r, product);
		for (size_t i = 0; gradient && i < d_r; i++)
			gradient[t * d_r + i] = (qmw_real)(2 * product[i]);
	}
	for (size_t i = 0; gradient && i < count; i++)
		gradient[i] = (qmw_real)((double)gradient[i] / all);
	if (gradient)
		qmw_passage_turn(passage, true, gradient, d_r, 1);
	*error = wrong;
	*energy = all;
	free(metric);
	free(own);
	return QMLA_OK;
}

void qmw_passage_query_energy(const struct qmw_passage *passage, double *energy)
{
	const struct qmw_config *config = &passage->op->config;
	size_t d_qk = qmw_query_dim(passage->op), rows = (size_t)passage->n * config->heads;
	uint32_t a, b;

	for (uint32_t j = 0; j < config->rope_dim / 2; j++) {
		double sum = 0;

		qmw_rope_pair(&passage->op->rope, j, &a, &b);
		for (size_t row = 0; row < rows; row++) {
			const qmw_real *query = passage->query + row * d_qk + config->nope_dim;

			sum += (double)query[a] * (double)query[a] +
			       (double)query[b] * (double)query[b];
		}
		energy[j] = sum / (double)rows;
	}
}

/* G [d][d] = X^T X in double; X has `rows` rows, `stride` apart. */
static void gram(const qmw_real *x, size_t rows, size_t d, size_t stride, double *g, double *copy)
{
	for (size_t t = 0; t < rows; t++) {
		for (size_t i = 0; i < d; i++)
			copy[t * d + i] = (double)x[t * stride + i];
	}
	cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)d, (int)d, (int)rows, 1, copy,
		    (int)d, copy, (int)d, 0, g, (int)d);
}

/* Largest eigenvalue of a product of two Gram matrices, by (tr M^p)^(1/p) with p = 2^16:
 * never below it, and above by d^(1/p) at most. M and @p next [d][d] are overwritten. */
static double largest_eigenvalue(double *m, double *next, size_t d)
{
	double log_scale = 0, trace, power = 1;

	for (int step = 0;; step++) {
		double *swap = m;

		trace = 0;
		for (size_t i = 0; i < d; i++)
			trace += m[i * d + i];
		if (!(trace > 0))
			return 0;
		if (step == 16)
			return exp(log_scale + log(trace) / power);
		/* M^p = e^(p log_scale) times what m holds. */
		log_scale += log(trace) / power;
		cblas_dscal((int)(d * d), 1 / trace, m, 1);
		cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)d, (int)d, (int)d, 1, m,
			    (int)d, m, (int)d, 0, next, (int)d);
		m = next;
		next = swap;
		power *= 2;
	}
}

qmla_status_t qmw_passage_value_norms(const struct qmw_passage *passage, const qmw_real *content,
				      double *norms)
{
	const struct qmw_config *config = &passage->op->config;
	size_t n = passage->n, d_v = config->value_dim, d_c = config->content_dim, d = d_v * d_v;
	size_t longest = n > config->hidden ? n : config->hidden;
	qmw_real *weighted = malloc(n * (d_c + d_v) * sizeof(*weighted));
	double *m = malloc((3 * d + longest * d_v) * sizeof(*m));
	qmw_real *value;

	if (!weighted || !m) {
		free(weighted);
		free(m);
		return QMLA_ERR_NO_MEMORY;
	}
	value = weighted + n * d_c;
	qmw_passage_weighted(passage, content ? content : passage->content, weighted);
	for (uint32_t head = 0; head < config->heads; head++) {
		qmw_gemm(false, true, n, d_v, d_c, 1, weighted, d_c,
			 qmw_value_up(passage->op, head), d_c, 0, value, d_v);
		gram(value, n, d_v, d_v, m, m + 3 * d);
		gram(passage->op->weights.output + head * d_v, config->hidden, d_v,
		     config->heads * d_v, m + d, m + 3 * d);
		cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)d_v, (int)d_v, (int)d_v,
			    1, m, (int)d_v, m + d, (int)d_v, 0, m + 2 * d, (int)d_v);
		norms[head] = largest_eigenvalue(m + 2 * d, m, d_v);
	}
	free(weighted);
	free(m);
	return QMLA_OK;
}
