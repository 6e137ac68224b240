/* SPDX-License-Identifier: Apache-2.0 */
/* MiniCPM3: dense; scales on the embeddings, each residual branch and the head's input. */
#include <math.h>

#include "client/model/config_reader.h"

/* A scale that is left out has transformers' default, one that is null stands for none. */
static double read_scale(struct qmw_reader *r, const char *key, double left_out, double none)
{
	return qmw_reader_number(r, r->root, key, json_object_get(r->root, key) ? none : left_out,
				 1e-6, 1e9);
}

static void read_minicpm3(struct qmw_reader *r, struct qmw_config *c)
{
	double depth = read_scale(r, "scale_depth", 1.4, sqrt(c->layers));
	double base = read_scale(r, "dim_model_base", 256, c->hidden);

	c->rope_interleave = false;
	c->mlp_bias = qmw_reader_flag(r, "mlp_bias", false);
	c->embedding_scale = (float)read_scale(r, "scale_emb", 12, 1);
	if (r->status)
		return;
	c->residual_scale = (float)(depth / sqrt(c->layers));
	c->head_scale = (float)(base / c->hidden);
}

const struct qmw_family qmw_family_minicpm3 = {
	.model_type = "minicpm3",
	.label = "MiniCPM3",
	.architecture = "MiniCPM3ForCausalLM",
	.layers_key = "num_hidden_layers",
	.intermediate_key = "intermediate_size",
	.sublayers = 1,
	.norm_eps = 1e-5,
	.rope_theta = 10000,
	.tied = true,
	.read = read_minicpm3,
};
