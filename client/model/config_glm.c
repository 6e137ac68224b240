/* SPDX-License-Identifier: Apache-2.0 */
/* GLM-4.7-Flash: V3's attention and gate; which layers are sparse is a list or a count. */
#include <string.h>

#include "client/model/config_reader.h"

/* mlp_layer_types: "dense" or "sparse" for each layer. */
static void read_layer_types(struct qmw_reader *r, const json_t *types, struct qmw_config *c)
{
	if (json_array_size(types) != c->layers) {
		qmw_reader_fail(r, QMLA_ERR_FORMAT, "mlp_layer_types",
				"must be a list of num_hidden_layers strings");
		return;
	}
	for (uint32_t i = 0; i < c->layers; i++) {
		const char *type = json_string_value(json_array_get(types, i));
		bool sparse = type && strcmp(type, "sparse") == 0;

		if (!sparse && (!type || strcmp(type, "dense") != 0)) {
			qmw_reader_fail(r, QMLA_ERR_FORMAT, "mlp_layer_types",
					"must hold \"dense\" and \"sparse\" only");
			return;
		}
		c->moe.sparse[i] = sparse;
	}
}

static void read_glm(struct qmw_reader *r, struct qmw_config *c)
{
	const json_t *types = qmw_reader_value(r->root, "mlp_layer_types");
	const struct qmw_expert_defaults missing = {
		.dense = types ? 0 : 1, .shared = 1, .groups = 1, .top_groups = 1, .scale = 1.8};

	c->rope_interleave = qmw_reader_flag(r, "rope_interleave", true);
	qmw_reader_experts(r, &missing, c);
	if (!c->moe.experts)
		return;
	if (types)
		read_layer_types(r, types, c);
	qmw_reader_sigmoid_gate(r, &missing, c);
}

const struct qmw_family qmw_family_glm4_moe_lite = {
	.model_type = "glm4_moe_lite",
	.label = "GLM-4.7-Flash",
	.architecture = "Glm4MoeLiteForCausalLM",
	.layers_key = "num_hidden_layers",
	.intermediate_key = "intermediate_size",
	.sublayers = 1,
	.norm_eps = 1e-5,
	.rope_theta = 10000,
	.read = read_glm,
};
