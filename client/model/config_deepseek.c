/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSeek-V2 (V2-Lite), and V3 with those that are built like it: R1, Moonlight, Kimi-K2.
 * Gates as in transformers' modeling_deepseek_v2.py and modeling_deepseek_v3.py.
 */
#include <string.h>

#include "client/model/config_reader.h"

/* With group_limited_greedy the class has no groups of its own and cannot run without. */
static const struct qmw_expert_defaults missing_v2 = {
	.dense = 0, .shared = 2, .groups = -1, .top_groups = -1, .scale = 1};
static const struct qmw_expert_defaults missing_v3 = {
	.dense = 3, .shared = 1, .groups = 8, .top_groups = 4, .scale = 2.5};
/* No class of its own: others run it as a V3, whose groups it does not have. */
static const struct qmw_expert_defaults missing_kimi = {
	.dense = -1, .shared = -1, .groups = -1, .top_groups = -1, .scale = -1};

static void read_v2(struct qmw_reader *r, struct qmw_config *c)
{
	const char *method = json_string_value(qmw_reader_value(r->root, "topk_method"));

	c->mlp_bias = qmw_reader_flag(r, "mlp_bias", false);
	c->rope_interleave = true;
	qmw_reader_experts(r, &missing_v2, c);
	if (!c->moe.experts)
		return;
	qmw_reader_only(r, "scoring_func", "softmax");
	c->moe.gate = QMW_GATE_SOFTMAX;
	c->moe.group_score = QMW_GROUP_MAX;
	if (method && strcmp(method, "group_limited_greedy") == 0)
		qmw_reader_groups(r, &missing_v2, c);
	else
		qmw_reader_only(r, "topk_method", "greedy");
	if (qmw_reader_flag(r, "norm_topk_prob", false))
		qmw_reader_fail(r, QMLA_ERR_UNSUPPORTED, "norm_topk_prob",
				"is true, for which implementations of deepseek_v2 disagree; "
				"published checkpoints have false");
}

static void read_like_v3(struct qmw_reader *r, const struct qmw_expert_defaults *missing,
			 struct qmw_config *c)
{
	c->rope_interleave = qmw_reader_flag(r, "rope_interleave", true);
	qmw_reader_experts(r, missing, c);
	if (c->moe.experts)
		qmw_reader_sigmoid_gate(r, missing, c);
}

static void read_v3(struct qmw_reader *r, struct qmw_config *c)
{
	read_like_v3(r, &missing_v3, c);
}

static void read_kimi(struct qmw_reader *r, struct qmw_config *c)
{
	read_like_v3(r, &missing_kimi, c);
}

const struct qmw_family qmw_family_deepseek_v2 = {
	.model_type = "deepseek_v2",
	.label = "DeepSeek-V2",
	.architecture = "DeepseekV2ForCausalLM",
	.layers_key = "num_hidden_layers",
	.intermediate_key = "intermediate_size",
	.sublayers = 1,
	.norm_eps = 1e-6,
	.rope_theta = 10000,
	.read = read_v2,
};

const struct qmw_family qmw_family_deepseek_v3 = {
	.model_type = "deepseek_v3",
	.label = "DeepSeek-V3",
	.architecture = "DeepseekV3ForCausalLM",
	.layers_key = "num_hidden_layers",
	.intermediate_key = "intermediate_size",
	.sublayers = 1,
	.norm_eps = 1e-6,
	.rope_theta = 10000,
	.read = read_v3,
};

const struct qmw_family qmw_family_kimi_k2 = {
	.model_type = "kimi_k2",
	.label = "Kimi-K2",
	.architecture = "DeepseekV3ForCausalLM",
	.layers_key = "num_hidden_layers",
	.intermediate_key = "intermediate_size",
	.sublayers = 1,
	.norm_eps = 1e-6,
	.rope_theta = 10000,
	.read = read_kimi,
};
