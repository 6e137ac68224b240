/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/weights.h"

#include <stdlib.h>
#include <string.h>

#include "client/model/fuse.h"

/* What every step of loading needs. The first failure ends all. */
struct loader {
	const struct qmw_checkpoint *checkpoint;
	const struct qmw_config *config;
	const struct qmw_rope *rope;
	struct qmw_fuse fuse; /**< of the layer at work */
	double *rotation;     /**< its arrays, owned */
	double *scales;
	uint32_t layer;
	uint32_t threads;
	uint64_t parameters;
};

static qmla_status_t read_named(struct loader *l, const char *name, uint64_t rows, uint64_t columns,
				float **values)
{
	qmla_status_t status = qmw_checkpoint_read(l->checkpoint, name, rows, columns, values);

	if (!status)
		l->parameters += rows * (columns ? columns : 1);
	return status;
}

const char *qmw_embedding_name(const struct qmw_checkpoint *checkpoint)
{
	static const char shared[] = "model.ngram_embeddings.word_embeddings.weight";

	return qmw_checkpoint_has(checkpoint, shared) ? shared : "model.embed_tokens.weight";
}

const char *qmw_head_name(const struct qmw_checkpoint *checkpoint, const struct qmw_config *config)
{
	return config->tied_embeddings ? qmw_embedding_name(checkpoint) : "lm_head.weight";
}

/* "<module>.weight" of the layer. */
static qmla_status_t read_norm(struct loader *l, const char *module, float **values)
{
	char name[QMW_TENSOR_NAME_BYTES];

	qmw_module_name(l->config, l->layer, module, "weight", name);
	return read_named(l, name, l->config->hidden, 0, values);
}

static qmla_status_t load_mlp(struct loader *l, struct qmw_layer *layer)
{
	const struct qmw_config *c = l->config;
	char prefix[QMW_TENSOR_NAME_BYTES];
	qmla_status_t status = QMLA_OK;

	qmw_mlp_prefix(c, l->layer, prefix);
	if (qmw_config_dense(c, l->layer))
		status = qmw_mlp_read(l->checkpoint, prefix, c->hidden, c->intermediate,
				      c->mlp_bias, &l->parameters, &layer->mlp);
	if (!status && c->moe.sparse[l->layer])
		status = qmw_moe_read(l->checkpoint, c, l->layer / c->sublayers, l->threads,
				      &l->parameters, &layer->moe);
	return status;
}

/* Keeps the attention weights in @p raw when it is not NULL. */
static qmla_status_t load_layer(struct loader *l, struct qmw_attention_weights *raw,
				struct qmw_layer *layer)
{
	struct qmw_attention_weights w = {0};
	qmla_status_t status = read_norm(l, "input_layernorm", &layer->input_norm);

	if (!status)
		status = read_norm(l, "post_attention_layernorm", &layer->post_norm);
	if (!status)
		status = qmw_attention_weights_read(l->checkpoint, l->config, l->layer,
						    &l->parameters, &w);
	if (!status)
		status = qmw_layer_pack(l->config, &l->fuse, &w, layer);
	if (!status)
		status = load_mlp(l, layer);
	if (!status && raw)
		*raw = w;
	else
		qmw_attention_weights_free(&w);
	return status;
}

static qmla_status_t check_norm(const struct loader *l, uint32_t layer, const char *module)
{
	char name[QMW_TENSOR_NAME_BYTES];

	qmw_module_name(l->config, layer, module, "weight", name);
	return qmw_checkpoint_check(l->checkpoint, name, l->config->hidden, 0);
}

static qmla_status_t check_layer(const struct loader *l, uint32_t layer)
{
	const struct qmw_config *c = l->config;
	char prefix[QMW_TENSOR_NAME_BYTES];
	qmla_status_t status = check_norm(l, layer, "input_layernorm");

	if (!status)
		status = check_norm(l, layer, "post_attention_layernorm");
	if (!status)
		status = qmw_attention_weights_check(l->checkpoint, c, layer);
	qmw_mlp_prefix(c, layer, prefix);
	if (!status && qmw_config_dense(c, layer))
		status = qmw_mlp_check(l->checkpoint, prefix, c->hidden, c->intermediate,
				       c->mlp_bias);
	if (!status && c->moe.sparse[layer])
		status = qmw_moe_check(l->checkpoint, c, layer / c->sublayers);
	return status;
}

qmla_status_t qmw_weights_check(const struct qmw_checkpoint *checkpoint,
				const struct qmw_config *config)
{
	const struct loader l = {.checkpoint = checkpoint, .config = config};
	qmla_status_t status = qmw_checkpoint_check(checkpoint, qmw_embedding_name(checkpoint),
						    config->vocab, config->hidden);

	if (!status)
		status = qmw_checkpoint_check(checkpoint, QMW_NORM_NAME, config->hidden, 0);
	if (!status)
		status = qmw_checkpoint_check(checkpoint, qmw_head_name(checkpoint, config),
					      config->vocab, config->hidden);
	if (!status)
		status = qmw_ngram_check(checkpoint, config);
	for (uint32_t i = 0; i < config->layers && !status; i++)
		status = check_layer(&l, i);
	return status;
}

qmla_status_t qmw_layer_read(const struct qmw_checkpoint *checkpoint,
			     const struct qmw_config *config, const struct qmw_rope *rope,
			     uint32_t cache_layer, uint32_t threads,
			     struct qmw_attention_weights *raw, struct qmw_layer *layer)
{
	struct loader l = {
		.checkpoint = checkpoint,
		.config = config,
		.rope = rope,
		.fuse = {.content_dim = config->content_dim, .rope = rope},
		.layer = cache_layer,
		.threads = threads,
	};
	qmla_status_t status;

	*layer = (struct qmw_layer){0};
	status = load_layer(&l, raw, layer);
	if (status)
		qmw_layer_free(layer, config->heads);
	return status;
}

/* What a family multiplies the embeddings by; the head, when tied, has the plain ones. */
static void scale_embedding(const struct qmw_config *c, float *embedding)
{
	for (size_t i = 0; c->embedding_scale != 1 && i < (size_t)c->vocab * c->hidden; i++)
		embedding[i] *= c->embedding_scale;
}

static qmla_status_t load_outer(struct loader *l, struct qmw_weights *w)
{
	const struct qmw_config *c = l->config;
	float *head = NULL;
	qmla_status_t status = read_named(l, qmw_embedding_name(l->checkpoint), c->vocab, c->hidden,
					  &w->embedding);

	if (!status)
		status = qmw_ngram_read(l->checkpoint, c, &l->parameters, &w->ngram);
	if (!status)
		status = read_named(l, QMW_NORM_NAME, c->hidden, 0, &w->norm);
	if (!status && !c->tied_embeddings)
		status = read_named(l, qmw_head_name(l->checkpoint, c), c->vocab, c->hidden, &head);
	if (!status)
		status = qmw_matrix_init(&w->head, c->vocab, c->hidden,
					 c->tied_embeddings ? w->embedding : head, c->hidden, NULL);
	if (!status)
		scale_embedding(c, w->embedding);
	free(head);
	return status;
}

/* The constants of layer @p i as fuse.h takes them. */
static qmla_status_t begin_layer(struct loader *l, const struct qmw_constants *constants,
				 uint32_t i)
{
	const struct qmw_layer_constants *from = &constants->layers[i];
	uint32_t content = l->config->content_dim, pairs = l->config->rope_dim / 2;

	l->layer = i;
	l->scales = calloc(content + pairs, sizeof(*l->scales));
	if (!l->scales)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t k = 0; from->content_scale && k < content; k++)
		l->scales[k] = from->content_scale[k];
	for (uint32_t k = 0; from->rope_scale && k < pairs; k++)
		l->scales[content + k] = from->rope_scale[k];
	l->fuse = (struct qmw_fuse){
		.content_dim = content,
		.rope = l->rope,
		.content_scale = from->content_scale ? l->scales : NULL,
		.rope_scale = from->rope_scale ? l->scales + content : NULL,
	};
	return qmw_fuse_rotation(constants, i, content, &l->rotation);
}

static void end_layer(struct loader *l)
{
	free(l->rotation);
	free(l->scales);
	l->rotation = l->scales = NULL;
}

qmla_status_t qmw_weights_load(const struct qmw_checkpoint *checkpoint,
			       const struct qmw_config *config,
			       const struct qmw_constants *constants, const struct qmw_rope *rope,
			       uint32_t threads, struct qmw_weights *weights)
{
	struct loader l = {
		.checkpoint = checkpoint, .config = config, .rope = rope, .threads = threads};
	struct qmw_weights self = {.layers = config->layers, .heads = config->heads};
	qmla_status_t status;

	self.layer = calloc(config->layers, sizeof(*self.layer));
	if (!self.layer)
		return QMLA_ERR_NO_MEMORY;
	status = load_outer(&l, &self);
	for (uint32_t i = 0; i < config->layers && !status; i++) {
		status = begin_layer(&l, constants, i);
		l.fuse.rotation = l.rotation;
		if (!status)
			status = load_layer(&l, NULL, &self.layer[i]);
		end_layer(&l);
	}
	if (status) {
		qmw_weights_free(&self);
		return status;
	}
	self.parameters = l.parameters;
	*weights = self;
	return QMLA_OK;
}

void qmw_layer_free(struct qmw_layer *layer, uint32_t heads)
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
	qmw_mlp_free(&layer->mlp);
	qmw_moe_free(&layer->moe);
	*layer = (struct qmw_layer){0};
}

void qmw_weights_free(struct qmw_weights *weights)
{
	for (uint32_t i = 0; weights->layer && i < weights->layers; i++)
		qmw_layer_free(&weights->layer[i], weights->heads);
	free(weights->layer);
	free(weights->embedding);
	qmw_ngram_free(&weights->ngram);
	free(weights->norm);
	qmw_matrix_fini(&weights->head);
	*weights = (struct qmw_weights){0};
}
