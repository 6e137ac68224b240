/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/verify_attention.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of one call. */
struct rows {
	double *low;    /* [n][q_rank] */
	double *query;  /* [n][H][d_n + d_r] */
	double *latent; /* [n][d_c + d_r] */
	double *up;     /* [n][H][d_n + d_v] */
	double *heads;  /* [n][H][d_v] */
	double *scores; /* [n] */
};

/* y = x W^T + b, W [outputs][inputs]; rows of x lie @stride apart. */
static void project(const double *x, size_t stride, uint32_t n, const double *weights,
		    const double *bias, size_t outputs, size_t inputs, double *y)
{
	cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)n, (blasint)outputs,
		    (blasint)inputs, 1, x, (blasint)stride, weights, (blasint)inputs, 0, y,
		    (blasint)outputs);
	for (size_t i = 0; bias && i < n * outputs; i++)
		y[i] += bias[i % outputs];
}

static void normalise(double *row, uint32_t n, double eps, const double *weight)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += row[i] * row[i];
	sum = 1 / sqrt(sum / n + eps);
	for (uint32_t i = 0; i < n; i++)
		row[i] *= sum * weight[i];
}

static void rotate(const struct qmw_rope *rope, uint32_t position, double *vector)
{
	for (uint32_t j = 0; j < rope->dim / 2; j++) {
		double angle = position * (double)rope->inv_freq[j];
		double x = cos(angle) * (double)rope->amplitude;
		double y = sin(angle) * (double)rope->amplitude, real;
		uint32_t a, b;

		qmw_rope_pair(rope, j, &a, &b);
		real = x * vector[a] - y * vector[b];
		vector[b] = y * vector[a] + x * vector[b];
		vector[a] = real;
	}
}

/* Scores of head h of query t over keys 0 … t, to weights that sum to one. */
static void weigh(const struct qmw_config *c, const struct qmw_rope *rope, const struct rows *r,
		  uint32_t t, uint32_t h)
{
	uint32_t width = c->nope_dim + c->rope_dim;
	const double *q = r->query + ((size_t)t * c->heads + h) * width;
	double max = -INFINITY, sum = 0;

	for (uint32_t s = 0; s <= t; s++) {
		const double *up =
			r->up + ((size_t)s * c->heads + h) * (c->nope_dim + c->value_dim);
		const double *key =
			r->latent + (size_t)s * (c->content_dim + c->rope_dim) + c->content_dim;
		double score = cblas_ddot((blasint)c->nope_dim, q, 1, up, 1) +
			       cblas_ddot((blasint)c->rope_dim, q + c->nope_dim, 1, key, 1);

		r->scores[s] = score * (double)rope->softmax_scale;
		max = fmax(max, r->scores[s]);
	}
	for (uint32_t s = 0; s <= t; s++)
		sum += r->scores[s] = exp(r->scores[s] - max);
	for (uint32_t s = 0; s <= t; s++)
		r->scores[s] /= sum;
}

static void attend(const struct qmw_config *c, const struct qmw_rope *rope, const struct rows *r,
		   uint32_t t, uint32_t h)
{
	double *out = r->heads + ((size_t)t * c->heads + h) * c->value_dim;

	weigh(c, rope, r, t, h);
	memset(out, 0, c->value_dim * sizeof(*out));
	for (uint32_t s = 0; s <= t; s++)
		cblas_daxpy((blasint)c->value_dim, r->scores[s],
			    r->up + ((size_t)s * c->heads + h) * (c->nope_dim + c->value_dim) +
				    c->nope_dim,
			    1, out, 1);
}

static void prepare(const struct qmw_config *c, const struct qmw_rope *rope,
		    const struct qmw_verify_weights *w, const double *input, uint32_t n,
		    const struct rows *r)
{
	size_t width = c->nope_dim + c->rope_dim, row = c->content_dim + c->rope_dim;

	if (w->query_a) {
		project(input, c->hidden, n, w->query_a, w->query_a_bias, c->q_rank, c->hidden,
			r->low);
		for (uint32_t t = 0; t < n; t++)
			normalise(r->low + (size_t)t * c->q_rank, c->q_rank, w->query_norm_eps,
				  w->query_norm);
		project(r->low, c->q_rank, n, w->query, w->query_bias, c->heads * width, c->q_rank,
			r->query);
	} else {
		project(input, c->hidden, n, w->query, w->query_bias, c->heads * width, c->hidden,
			r->query);
	}
	project(input, c->hidden, n, w->kv_a, w->kv_a_bias, row, c->hidden, r->latent);
	for (uint32_t t = 0; t < n; t++) {
		normalise(r->latent + t * row, c->content_dim, w->kv_norm_eps, w->kv_norm);
		rotate(rope, t, r->latent + t * row + c->content_dim);
		for (uint32_t h = 0; h < c->heads; h++)
			rotate(rope, t,
			       r->query + ((size_t)t * c->heads + h) * width + c->nope_dim);
	}
	project(r->latent, row, n, w->kv_b, NULL, c->heads * (size_t)(c->nope_dim + c->value_dim),
		c->content_dim, r->up);
}

qmla_status_t qmw_verify_attention(const struct qmw_config *config, const struct qmw_rope *rope,
				   const struct qmw_verify_weights *weights, const double *input,
				   uint32_t n, double *y)
{
	const struct qmw_config *c = config;
	size_t heads = c->heads;
	struct rows r = {
		.low = calloc((size_t)n * c->q_rank + 1, sizeof(double)),
		.query = calloc(n * heads * (c->nope_dim + c->rope_dim), sizeof(double)),
		.latent = calloc((size_t)n * (c->content_dim + c->rope_dim), sizeof(double)),
		.up = calloc(n * heads * (c->nope_dim + c->value_dim), sizeof(double)),
		.heads = calloc(n * heads * c->value_dim, sizeof(double)),
		.scores = calloc(n, sizeof(double)),
	};
	bool memory = r.low && r.query && r.latent && r.up && r.heads && r.scores;

	if (memory) {
		prepare(c, rope, weights, input, n, &r);
		for (uint32_t t = 0; t < n; t++)
			for (uint32_t h = 0; h < c->heads; h++)
				attend(c, rope, &r, t, h);
		project(r.heads, heads * c->value_dim, n, weights->output, weights->output_bias,
			c->hidden, heads * c->value_dim, y);
	}
	free(r.low);
	free(r.query);
	free(r.latent);
	free(r.up);
	free(r.heads);
	free(r.scores);
	return memory ? QMLA_OK : QMLA_ERR_NO_MEMORY;
}
