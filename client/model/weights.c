/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/fuse.h"

#define NAME_BYTES 192

/* What every step of loading needs. The first failure ends all. */
struct loader {
	const struct qmw_checkpoint *checkpoint;
	const struct qmw_config *config;
	const struct qmw_rope *rope;
	const struct qmw_layer_constants *constants; /**< of the layer at work */
	double *rotation;                            /**< of the layer at work, NULL: identity */
	uint32_t layer;
	uint64_t parameters;
};

static void layer_name(const struct loader *l, const char *what, const char *suffix,
		       char name[NAME_BYTES])
{
	snprintf(name, NAME_BYTES, "model.layers.%" PRIu32 ".%s%s", l->layer, what, suffix);
}

static qmla_status_t read_named(struct loader *l, const char *name, uint64_t rows, uint64_t columns,
				float **values)
{
	qmla_status_t status = qmw_checkpoint_read(l->checkpoint, name, rows, columns, values);

	if (!status)
		l->parameters += rows * (columns ? columns : 1);
	return status;
}

static qmla_status_t read_layer_vector(struct loader *l, const char *what, uint64_t count,
				       float **values)
{
	char name[NAME_BYTES];

	layer_name(l, what, "", name);
	return read_named(l, name, count, 0, values);
}

/* "<what>.weight" and, with @p biased, "<what>.bias". */
static qmla_status_t read_linear(struct loader *l, const char *what, uint32_t outputs,
				 uint32_t inputs, bool biased, float **weights, float **bias)
{
	char name[NAME_BYTES];
	qmla_status_t status;

	*weights = *bias = NULL;
	layer_name(l, what, ".weight", name);
	status = read_named(l, name, outputs, inputs, weights);
	if (status || !biased)
		return status;
	layer_name(l, what, ".bias", name);
	status = read_named(l, name, outputs, 0, bias);
	if (status) {
		free(*weights);
		*weights = NULL;
	}
	return status;
}

static qmla_status_t load_linear(struct loader *l, const char *what, uint32_t outputs,
				 uint32_t inputs, bool biased, struct qmw_matrix *matrix)
{
	float *weights, *bias;
	qmla_status_t status = read_linear(l, what, outputs, inputs, biased, &weights, &bias);

	if (status)
		return status;
	status = qmw_matrix_init(matrix, outputs, inputs, weights, inputs, bias);
	free(weights);
	free(bias);
	return status;
}

/* The projection that ends in the heads' queries: its RoPE rows take 1 / s. */
static qmla_status_t load_queries(struct loader *l, const char *what, uint32_t inputs,
				  struct qmw_matrix *matrix)
{
	const struct qmw_config *c = l->config;
	uint32_t width = c->nope_dim + c->rope_dim;
	float *weights, *bias;
	qmla_status_t status =
		read_linear(l, what, c->heads * width, inputs, false, &weights, &bias);

	if (status)
		return status;
	for (uint32_t h = 0; h < c->heads; h++)
		qmw_fuse_rope_rows(l->rope, l->constants->rope_scale, true, inputs,
				   weights + ((size_t)h * width + c->nope_dim) * inputs);
	status = qmw_matrix_init(matrix, c->heads * width, inputs, weights, inputs, NULL);
	free(weights);
	return status;
}

static qmla_status_t load_query(struct loader *l, struct qmw_layer *layer)
{
	const struct qmw_config *c = l->config;
	qmla_status_t status;

	if (!c->q_rank)
		return load_queries(l, "self_attn.q_proj", c->hidden, &layer->query);
	status = load_linear(l, "self_attn.q_a_proj", c->q_rank, c->hidden, c->attention_bias,
			     &layer->query_a);
	if (!status)
		status = read_layer_vector(l, "self_attn.q_a_layernorm.weight", c->q_rank,
					   &layer->query_norm);
	if (!status)
		status = load_queries(l, "self_attn.q_b_proj", c->q_rank, &layer->query_b);
	return status;
}

static qmla_status_t load_kv_a(struct loader *l, struct qmw_layer *layer)
{
	const struct qmw_config *c = l->config;
	uint32_t outputs = c->content_dim + c->rope_dim;
	float *weights, *bias;
	qmla_status_t status = read_linear(l, "self_attn.kv_a_proj_with_mqa", outputs, c->hidden,
					   c->attention_bias, &weights, &bias);

	if (status)
		return status;
	status = qmw_fuse_kv_a(l->rotation, c->content_dim, c->hidden, weights, bias);
	qmw_fuse_rope_rows(l->rope, l->constants->rope_scale, false, c->hidden,
			   weights + (size_t)c->content_dim * c->hidden);
	if (bias)
		qmw_fuse_rope_rows(l->rope, l->constants->rope_scale, false, 1,
				   bias + c->content_dim);
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

static qmla_status_t load_kv_b(struct loader *l, struct qmw_layer *layer)
{
	const struct qmw_config *c = l->config;
	uint32_t head_rows = c->nope_dim + c->value_dim;
	float *gamma = NULL, *weights = NULL, *bias;
	qmla_status_t status =
		read_layer_vector(l, "self_attn.kv_a_layernorm.weight", c->content_dim, &gamma);

	if (!status)
		status = read_linear(l, "self_attn.kv_b_proj", c->heads * head_rows, c->content_dim,
				     false, &weights, &bias);
	if (!status)
		status = qmw_fuse_kv_b(l->rotation, gamma, c->content_dim, c->heads * head_rows,
				       weights);
	layer->key_up = calloc(c->heads, sizeof(*layer->key_up));
	layer->value_up = calloc(c->heads, sizeof(*layer->value_up));
	if (!status && (!layer->key_up || !layer->value_up))
		status = QMLA_ERR_NO_MEMORY;
	for (uint32_t h = 0; h < c->heads && !status; h++)
		status = split_head(c, weights + (size_t)h * head_rows * c->content_dim,
				    &layer->key_up[h], &layer->value_up[h]);
	free(gamma);
	free(weights);
	return status;
}

/* gate_proj and up_proj as one matrix: one pass over the input. */
static qmla_status_t load_gate_up(struct loader *l, struct qmw_layer *layer)
{
	const struct qmw_config *c = l->config;
	size_t count = (size_t)c->intermediate * c->hidden;
	float *gate = NULL, *up = NULL, *gate_bias = NULL, *up_bias = NULL, *joined = NULL;
	qmla_status_t status = read_linear(l, "mlp.gate_proj", c->intermediate, c->hidden,
					   c->mlp_bias, &gate, &gate_bias);

	if (!status)
		status = read_linear(l, "mlp.up_proj", c->intermediate, c->hidden, c->mlp_bias, &up,
				     &up_bias);
	if (!status) {
		joined = malloc((2 * count + 2 * (size_t)c->intermediate) * sizeof(*joined));
		status = joined ? QMLA_OK : QMLA_ERR_NO_MEMORY;
	}
	if (!status) {
		memcpy(joined, gate, count * sizeof(*joined));
		memcpy(joined + count, up, count * sizeof(*joined));
		if (gate_bias) {
			memcpy(joined + 2 * count, gate_bias, c->intermediate * sizeof(*joined));
			memcpy(joined + 2 * count + c->intermediate, up_bias,
			       c->intermediate * sizeof(*joined));
		}
		status = qmw_matrix_init(&layer->gate_up, 2 * c->intermediate, c->hidden, joined,
					 c->hidden, gate_bias ? joined + 2 * count : NULL);
	}
	free(gate);
	free(up);
	free(gate_bias);
	free(up_bias);
	free(joined);
	return status;
}

static qmla_status_t load_layer(struct loader *l, struct qmw_layer *layer)
{
	const struct qmw_config *c = l->config;
	qmla_status_t status =
		read_layer_vector(l, "input_layernorm.weight", c->hidden, &layer->input_norm);

	if (!status)
		status = read_layer_vector(l, "post_attention_layernorm.weight", c->hidden,
					   &layer->post_norm);
	if (!status)
		status = load_query(l, layer);
	if (!status)
		status = load_kv_a(l, layer);
	if (!status)
		status = load_kv_b(l, layer);
	if (!status)
		status = load_linear(l, "self_attn.o_proj", c->hidden, c->heads * c->value_dim,
				     c->attention_bias, &layer->output);
	if (!status)
		status = load_gate_up(l, layer);
	if (!status)
		status = load_linear(l, "mlp.down_proj", c->hidden, c->intermediate, c->mlp_bias,
				     &layer->down);
	return status;
}

static qmla_status_t load_outer(struct loader *l, struct qmw_weights *w)
{
	const struct qmw_config *c = l->config;
	float *head = NULL;
	qmla_status_t status =
		read_named(l, "model.embed_tokens.weight", c->vocab, c->hidden, &w->embedding);

	if (!status)
		status = read_named(l, "model.norm.weight", c->hidden, 0, &w->norm);
	if (!status && !c->tied_embeddings)
		status = read_named(l, "lm_head.weight", c->vocab, c->hidden, &head);
	if (!status)
		status = qmw_matrix_init(&w->head, c->vocab, c->hidden,
					 c->tied_embeddings ? w->embedding : head, c->hidden, NULL);
	free(head);
	return status;
}

qmla_status_t qmw_weights_load(const struct qmw_checkpoint *checkpoint,
			       const struct qmw_config *config,
			       const struct qmw_constants *constants, const struct qmw_rope *rope,
			       struct qmw_weights *weights)
{
	struct loader l = {.checkpoint = checkpoint, .config = config, .rope = rope};
	struct qmw_weights self = {.layers = config->layers, .heads = config->heads};
	qmla_status_t status;

	self.layer = calloc(config->layers, sizeof(*self.layer));
	if (!self.layer)
		return QMLA_ERR_NO_MEMORY;
	status = load_outer(&l, &self);
	for (uint32_t i = 0; i < config->layers && !status; i++) {
		l.layer = i;
		l.constants = &constants->layers[i];
		status = qmw_fuse_rotation(constants, i, config->content_dim, &l.rotation);
		if (!status)
			status = load_layer(&l, &self.layer[i]);
		free(l.rotation);
		l.rotation = NULL;
	}
	if (status) {
		qmw_weights_free(&self);
		return status;
	}
	self.parameters = l.parameters;
	*weights = self;
	return QMLA_OK;
}

static void free_layer(struct qmw_layer *layer, uint32_t heads)
{
	free(layer->input_norm);
	free(layer->post_norm);
	free(layer->query_norm);
	qmw_matrix_fini(&layer->query);
	qmw_matrix_fini(&layer->query_a);
	qmw_matrix_fini(&layer->query_b);
	qmw_matrix_fini(&layer->kv_a);
	for (uint32_t h = 0; h < heads; h++) {
		if (layer->key_up)
			qmw_matrix_fini(&layer->key_up[h]);
		if (layer->value_up)
			qmw_matrix_fini(&layer->value_up[h]);
	}
	free(layer->key_up);
	free(layer->value_up);
	qmw_matrix_fini(&layer->output);
	qmw_matrix_fini(&layer->gate_up);
	qmw_matrix_fini(&layer->down);
}

void qmw_weights_free(struct qmw_weights *weights)
{
	for (uint32_t i = 0; weights->layer && i < weights->layers; i++)
		free_layer(&weights->layer[i], weights->heads);
	free(weights->layer);
	free(weights->embedding);
	free(weights->norm);
	qmw_matrix_fini(&weights->head);
	*weights = (struct qmw_weights){0};
}
