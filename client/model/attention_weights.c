/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/attention_weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define TENSORS 12u

/* One tensor of the module, and where it goes. */
struct entry {
	const char *name;
	uint64_t rows, columns;
	const float **values;
};

void qmw_module_name(const struct qmw_config *config, uint32_t cache_layer, const char *module,
		     const char *rest, char name[QMW_TENSOR_NAME_BYTES])
{
	if (config->sublayers == 1)
		snprintf(name, QMW_TENSOR_NAME_BYTES, "model.layers.%" PRIu32 ".%s.%s", cache_layer,
			 module, rest);
	else
		snprintf(name, QMW_TENSOR_NAME_BYTES, "model.layers.%" PRIu32 ".%s.%" PRIu32 ".%s",
			 cache_layer / config->sublayers, module, cache_layer % config->sublayers,
			 rest);
}

static void add(struct entry entries[TENSORS], uint32_t *count, const char *name, uint64_t rows,
		uint64_t columns, const float **values)
{
	entries[(*count)++] = (struct entry){name, rows, columns, values};
}

static uint32_t list(const struct qmw_config *c, struct qmw_attention_weights *w,
		     struct entry entries[TENSORS])
{
	uint64_t queries = (uint64_t)c->heads * (c->nope_dim + c->rope_dim);
	uint64_t latents = (uint64_t)c->content_dim + c->rope_dim;
	uint64_t heads = (uint64_t)c->heads * (c->nope_dim + c->value_dim);
	uint32_t n = 0;

	if (!c->q_rank) {
		add(entries, &n, "q_proj.weight", queries, c->hidden, &w->query);
	} else {
		add(entries, &n, "q_a_proj.weight", c->q_rank, c->hidden, &w->query_a);
		if (c->attention_bias)
			add(entries, &n, "q_a_proj.bias", c->q_rank, 0, &w->query_a_bias);
		add(entries, &n, "q_a_layernorm.weight", c->q_rank, 0, &w->query_norm);
		add(entries, &n, "q_b_proj.weight", queries, c->q_rank, &w->query_b);
	}
	add(entries, &n, "kv_a_proj_with_mqa.weight", latents, c->hidden, &w->kv_a);
	if (c->attention_bias)
		add(entries, &n, "kv_a_proj_with_mqa.bias", latents, 0, &w->kv_a_bias);
	add(entries, &n, "kv_a_layernorm.weight", c->content_dim, 0, &w->kv_norm);
	add(entries, &n, "kv_b_proj.weight", heads, c->content_dim, &w->kv_b);
	add(entries, &n, "o_proj.weight", c->hidden, (uint64_t)c->heads * c->value_dim, &w->output);
	if (c->attention_bias)
		add(entries, &n, "o_proj.bias", c->hidden, 0, &w->output_bias);
	return n;
}

qmla_status_t qmw_attention_weights_check(const struct qmw_checkpoint *checkpoint,
					  const struct qmw_config *config, uint32_t cache_layer)
{
	struct qmw_attention_weights none;
	struct entry entries[TENSORS];
	uint32_t count = list(config, &none, entries);
	qmla_status_t status = QMLA_OK;
	char name[QMW_TENSOR_NAME_BYTES];

	for (uint32_t i = 0; i < count && !status; i++) {
		qmw_module_name(config, cache_layer, "self_attn", entries[i].name, name);
		status =
			qmw_checkpoint_check(checkpoint, name, entries[i].rows, entries[i].columns);
	}
	return status;
}

static void scale(const float *values, uint32_t count, float factor)
{
	float *to = (float *)(uintptr_t)values; /* ours, not yet handed out */

	for (uint32_t i = 0; i < count; i++)
		to[i] *= factor;
}

qmla_status_t qmw_attention_weights_read(const struct qmw_checkpoint *checkpoint,
					 const struct qmw_config *config, uint32_t cache_layer,
					 uint64_t *parameters,
					 struct qmw_attention_weights *weights)
{
	struct qmw_attention_weights self = {.kv_norm_eps = config->latent_norm_eps,
					     .query_norm_eps = config->latent_norm_eps};
	struct entry entries[TENSORS];
	uint32_t count = list(config, &self, entries);
	char name[QMW_TENSOR_NAME_BYTES];

	for (uint32_t i = 0; i < count; i++) {
		float *values;
		qmla_status_t status;

		qmw_module_name(config, cache_layer, "self_attn", entries[i].name, name);
		status = qmw_checkpoint_read(checkpoint, name, entries[i].rows, entries[i].columns,
					     &values);
		if (status) {
			qmw_attention_weights_free(&self);
			return status;
		}
		*entries[i].values = values;
		*parameters += entries[i].rows * (entries[i].columns ? entries[i].columns : 1);
	}
	if (config->latent_scale != 1)
		scale(self.kv_norm, config->content_dim, config->latent_scale);
	if (config->q_rank && config->query_scale != 1)
		scale(self.query_norm, config->q_rank, config->query_scale);
	*weights = self;
	return QMLA_OK;
}

void qmw_attention_weights_free(struct qmw_attention_weights *weights)
{
	const float *all[] = {weights->query,        weights->query_bias, weights->query_a,
			      weights->query_a_bias, weights->query_norm, weights->query_b,
			      weights->kv_a,         weights->kv_a_bias,  weights->kv_norm,
			      weights->kv_b,         weights->output,     weights->output_bias};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		free((void *)(uintptr_t)all[i]);
	*weights = (struct qmw_attention_weights){0};
}
