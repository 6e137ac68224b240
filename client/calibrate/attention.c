/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/attention_real.h"

qmla_status_t qmw_operator_create(const struct qmw_config *config, const struct qmw_rope *rope,
				  const struct qmw_attention_weights *weights,
				  struct qmw_operator **op)
{
	struct qmw_operator *made = malloc(sizeof(*made));

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	*made = (struct qmw_operator){.config = *config, .rope = *rope, .weights = *weights};
	*op = made;
	return QMLA_OK;
}

void qmw_operator_destroy(struct qmw_operator *op)
{
	free(op);
}

/* y[n][outputs] = x[n][inputs] W^T + bias, rows of y `stride` apart. */
static void project(const qmw_real *x, size_t x_stride, size_t n, const qmw_real *weight,
		    const qmw_real *bias, size_t inputs, size_t outputs, qmw_real *y, size_t stride)
{
	for (size_t t = 0; bias && t < n; t++)
		memcpy(y + t * stride, bias, outputs * sizeof(*y));
	qmw_gemm(false, true, n, outputs, inputs, 1, x, x_stride, weight, inputs, bias ? 1 : 0, y,
		 stride);
}

/* x / sqrt(mean x^2 + eps), times the weight unless it is NULL. The mean in double. */
static void normalise(qmw_real *x, size_t count, double eps, const qmw_real *weight)
{
	double sum = 0, factor;

	for (size_t i = 0; i < count; i++)
		sum += (double)x[i] * (double)x[i];
	factor = 1 / sqrt(sum / (double)count + eps);
	for (size_t i = 0; i < count; i++)
		x[i] = (qmw_real)((double)x[i] * factor) * (weight ? weight[i] : 1);
}

static qmla_status_t project_queries(struct qmw_passage *passage, const qmw_real *input)
{
	const struct qmw_config *config = &passage->op->config;
	const struct qmw_attention_weights *w = &passage->op->weights;
	size_t n = passage->n, outputs = config->heads * qmw_query_dim(passage->op);
	qmw_real *latent;

	if (w->query) {
		project(input, config->hidden, n, w->query, w->query_bias, config->hidden, outputs,
			passage->query, outputs);
		return QMLA_OK;
	}
	latent = malloc(n * config->q_rank * sizeof(*latent));
	if (!latent)
		return QMLA_ERR_NO_MEMORY;
	project(input, config->hidden, n, w->query_a, w->query_a_bias, config->hidden,
		config->q_rank, latent, config->q_rank);
	for (size_t t = 0; t < n; t++)
		normalise(latent + t * config->q_rank, config->q_rank, (double)w->query_norm_eps,
			  w->query_norm);
	project(latent, config->q_rank, n, w->query_b, NULL, config->q_rank, outputs,
		passage->query, outputs);
	free(latent);
	return QMLA_OK;
}

static void project_rows(struct qmw_passage *passage, const qmw_real *input)
{
	const struct qmw_config *config = &passage->op->config;
	const struct qmw_attention_weights *w = &passage->op->weights;
	size_t n = passage->n, d_c = config->content_dim, d_r = config->rope_dim;

	project(input, config->hidden, n, w->kv_a, w->kv_a_bias, config->hidden, d_c,
		passage->content, d_c);
	project(input, config->hidden, n, w->kv_a + d_c * config->hidden,
		w->kv_a_bias ? w->kv_a_bias + d_c : NULL, config->hidden, d_r, passage->key, d_r);
	for (size_t t = 0; t < n; t++)
		normalise(passage->content + t * d_c, d_c, (double)w->kv_norm_eps, NULL);
}

static qmla_status_t take_angles(struct qmw_passage *passage)
{
	size_t pairs = passage->op->rope.dim / 2;
	float cosines[QMK_MAX_ROPE_DIM / 2], sines[QMK_MAX_ROPE_DIM / 2];

	passage->cosine = malloc(passage->n * pairs * sizeof(qmw_real));
	passage->sine = malloc(passage->n * pairs * sizeof(qmw_real));
	if (!passage->cosine || !passage->sine)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t t = 0; t < passage->n; t++) {
		qmw_rope_angles(&passage->op->rope, t, cosines, sines);
		for (size_t j = 0; j < pairs; j++) {
			passage->cosine[t * pairs + j] = (qmw_real)cosines[j];
			passage->sine[t * pairs + j] = (qmw_real)sines[j];
		}
	}
	return QMLA_OK;
}

qmla_status_t qmw_passage_create(const struct qmw_operator *op, const qmw_real *input, uint32_t n,
				 struct qmw_passage **passage)
{
	const struct qmw_config *config = &op->config;
	struct qmw_passage *made = calloc(1, sizeof(*made));
	size_t queries = (size_t)n * config->heads * qmw_query_dim(op);
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	made->op = op;
	made->n = n;
	made->query = malloc(queries * sizeof(qmw_real));
	made->content = malloc((size_t)n * config->content_dim * sizeof(qmw_real));
	made->key = malloc((size_t)n * config->rope_dim * sizeof(qmw_real));
	if (made->query && made->content && made->key)
		status = take_angles(made);
	if (status == QMLA_OK)
		status = project_queries(made, input);
	if (status != QMLA_OK) {
		qmw_passage_destroy(made);
		return status;
	}
	project_rows(made, input);
	qmw_passage_turn(made, false, made->query + config->nope_dim, qmw_query_dim(op),
			 config->heads);
	*passage = made;
	return QMLA_OK;
}

void qmw_passage_destroy(struct qmw_passage *passage)
{
	if (!passage)
		return;
	free(passage->query);
	free(passage->content);
	free(passage->key);
	free(passage->cosine);
	free(passage->sine);
	free(passage);
}

uint32_t qmw_passage_tokens(const struct qmw_passage *passage)
{
	return passage->n;
}

const qmw_real *qmw_passage_content(const struct qmw_passage *passage)
{
	return passage->content;
}

const qmw_real *qmw_passage_key(const struct qmw_passage *passage)
{
	return passage->key;
}

const qmw_real *qmw_passage_query(const struct qmw_passage *passage)
{
	return passage->query;
}
