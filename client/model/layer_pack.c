/* SPDX-License-Identifier: Apache-2.0 */
/* A sub-layer's attention weights, transforms fused in, as the matrices that run it. */
#include <stdlib.h>
#include <string.h>

#include "client/model/weights.h"

struct packing {
	const struct qmw_config *config;
	const struct qmw_fuse *fuse;
};

static float *copy(const float *values, size_t count)
{
	float *copied = malloc(count * sizeof(*copied) + 1);

	if (copied)
		memcpy(copied, values, count * sizeof(*copied));
	return copied;
}

/* The projection that ends in the heads' queries: its RoPE rows take 1 / s. */
static qmla_status_t pack_queries(const struct packing *l, const float *weights, uint32_t inputs,
				  struct qmw_matrix *matrix)
{
	const struct qmw_config *c = l->config;
	uint32_t width = c->nope_dim + c->rope_dim;
	float *fused = copy(weights, (size_t)c->heads * width * inputs);
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (fused)
		status = qmw_fuse_queries_float(l->fuse, c->heads, c->nope_dim, inputs, fused);
	if (!status)
		status = qmw_matrix_init(matrix, c->heads * width, inputs, fused, inputs, NULL);
	free(fused);
	return status;
}

static qmla_status_t pack_query(const struct packing *l, const struct qmw_attention_weights *w,
				struct qmw_layer *layer)
{
	const struct qmw_config *c = l->config;
	qmla_status_t status;

	if (!c->q_rank)
		return pack_queries(l, w->query, c->hidden, &layer->query);
	layer->query_norm = copy(w->query_norm, c->q_rank);
	status = layer->query_norm ? qmw_matrix_init(&layer->query_a, c->q_rank, c->hidden,
						     w->query_a, c->hidden, w->query_a_bias)
				   : QMLA_ERR_NO_MEMORY;
	return status ? status : pack_queries(l, w->query_b, c->q_rank, &layer->query_b);
}

static qmla_status_t pack_kv_a(const struct packing *l, const struct qmw_attention_weights *w,
			       struct qmw_layer *layer)
{
	const struct qmw_config *c = l->config;
	uint32_t outputs = c->content_dim + c->rope_dim;
	float *weights = copy(w->kv_a, (size_t)outputs * c->hidden);
	float *bias = w->kv_a_bias ? copy(w->kv_a_bias, outputs) : NULL;
	qmla_status_t status = weights && (bias || !w->kv_a_bias) ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (!status)
		status = qmw_fuse_kv_a_float(l->fuse, c->hidden, weights);
	if (!status && bias)
		status = qmw_fuse_kv_a_float(l->fuse, 1, bias);
	if (!status)
		status =
			qmw_matrix_init(&layer->kv_a, outputs, c->hidden, weights, c->hidden, bias);
	free(weights);
	free(bias);
	return status;
}

/* One head's rows of kv_b: [d_n][d_c] keys, transposed into d_n → d_c; then [d_v][d_c] values. */
static qmla_status_t split_head(const struct qmw_config *c, const float *rows,
				struct qmw_matrix *key_up, struct qmw_matrix *value_up)
{
	float *transposed = malloc(sizeof(float) * c->content_dim * c->nope_dim);
	qmla_status_t status;

	if (!transposed)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t d = 0; d < c->nope_dim; d++)
		for (uint32_t j = 0; j < c->content_dim; j++)
			transposed[(size_t)j * c->nope_dim + d] =
				rows[(size_t)d * c->content_dim + j];
	status =
		qmw_matrix_init(key_up, c->content_dim, c->nope_dim, transposed, c->nope_dim, NULL);
	free(transposed);
	if (!status)
		status = qmw_matrix_init(value_up, c->value_dim, c->content_dim,
					 rows + (size_t)c->nope_dim * c->content_dim,
					 c->content_dim, NULL);
	return status;
}

static qmla_status_t pack_kv_b(const struct packing *l, const struct qmw_attention_weights *w,
			       struct qmw_layer *layer)
{
	const struct qmw_config *c = l->config;
	uint32_t head_rows = c->nope_dim + c->value_dim;
	float *weights = copy(w->kv_b, (size_t)c->heads * head_rows * c->content_dim);
	qmla_status_t status = weights ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (!status)
		status = qmw_fuse_kv_b_float(l->fuse, w->kv_norm, c->heads * head_rows, weights);
	layer->key_up = calloc(c->heads, sizeof(*layer->key_up));
	layer->value_up = calloc(c->heads, sizeof(*layer->value_up));
	if (!status && (!layer->key_up || !layer->value_up))
		status = QMLA_ERR_NO_MEMORY;
	for (uint32_t h = 0; h < c->heads && !status; h++)
		status = split_head(c, weights + (size_t)h * head_rows * c->content_dim,
				    &layer->key_up[h], &layer->value_up[h]);
	free(weights);
	return status;
}

qmla_status_t qmw_layer_pack(const struct qmw_config *config, const struct qmw_fuse *fuse,
			     const struct qmw_attention_weights *weights, struct qmw_layer *layer)
{
	const struct packing packing = {config, fuse}, *l = &packing;
	const struct qmw_attention_weights *w = weights;
	const struct qmw_config *c = config;
	qmla_status_t status = pack_query(l, w, layer);

	layer->kv_norm_eps = w->kv_norm_eps;
	layer->query_norm_eps = w->query_norm_eps;
	if (!status)
		status = pack_kv_a(l, w, layer);
	if (!status)
		status = pack_kv_b(l, w, layer);
	if (!status)
		status =
			qmw_matrix_init(&layer->output, c->hidden, c->heads * c->value_dim,
					w->output, (size_t)c->heads * c->value_dim, w->output_bias);
	return status;
}
