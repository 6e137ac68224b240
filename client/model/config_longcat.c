/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LongCat-Flash: a decoder layer has two attention sub-layers with a dense MLP each; the
 * experts read the first one's middle and are added behind the second ("shortcut"). Some
 * experts compute nothing: they pass their input on. LongCat-Flash-Lite adds embeddings
 * of n-grams.
 */
#include <math.h>
#include <string.h>

#include "client/model/config_reader.h"

/* For missing keys. LongCat-Flash-Lite has no class in transformers: it must have its own. */
struct defaults {
	int32_t zero_experts;
	double scale;
};

static void read_experts(struct qmw_reader *r, const struct defaults *missing, struct qmw_config *c)
{
	struct qmw_moe_config *moe = &c->moe;

	qmw_reader_no_null(r, "zero_expert_num");
	qmw_reader_no_null(r, "routed_scaling_factor");
	moe->experts = qmw_reader_count(r, "n_routed_experts", -1, 1, QMW_EXPERTS_MAX);
	moe->zero_experts =
		qmw_reader_count(r, "zero_expert_num", missing->zero_experts, 0, QMW_EXPERTS_MAX);
	moe->top_k = qmw_reader_count(r, "moe_topk", -1, 1, QMW_TOP_K_MAX);
	moe->width = qmw_reader_count(r, "expert_ffn_hidden_size", -1, 1, QMW_DIM_MAX);
	moe->scale = (float)qmw_reader_number(r, r->root, "routed_scaling_factor", missing->scale,
					      1e-6, 1e6);
	moe->groups = moe->top_groups = 1;
	moe->gate = QMW_GATE_SOFTMAX;
	moe->correction_name = "router.e_score_correction_bias";
	moe->shortcut = true;
	moe->gate_name = "router.classifier.weight";
	for (uint32_t i = 0; i < c->layers; i += c->sublayers)
		moe->sparse[i] = true;
	qmw_reader_only(r, "zero_expert_type", "identity");
	if (qmw_reader_flag(r, "router_bias", false))
		qmw_reader_fail(r, QMLA_ERR_UNSUPPORTED, "router_bias", "is true");
	if (qmw_reader_flag(r, "norm_topk_prob", false))
		qmw_reader_fail(r, QMLA_ERR_UNSUPPORTED, "norm_topk_prob", "is true");
}

/* LongCat-Flash-Lite: all three keys, or none. */
static void read_ngram(struct qmw_reader *r, struct qmw_config *c)
{
	struct qmw_ngram_config *ngram = &c->ngram;
	uint32_t tables;

	ngram->neighbours = qmw_reader_count(r, "emb_neighbor_num", -1, 2, QMW_NEIGHBOURS_MAX);
	ngram->splits = qmw_reader_count(r, "emb_split_num", -1, 1, 64);
	ngram->ratio = qmw_reader_number(r, r->root, "ngram_vocab_size_ratio", -1, 1e-3, 1e3);
	tables = r->status ? 1 : qmw_config_ngram_tables(c);
	if (c->hidden % tables)
		qmw_reader_fail(r, QMLA_ERR_FORMAT, "emb_split_num",
				"times (emb_neighbor_num - 1) does not divide hidden_size");
}

static void read_any(struct qmw_reader *r, const struct defaults *missing, struct qmw_config *c)
{
	qmw_reader_only(r, "attention_method", "MLA");
	c->rope_interleave = true;
	if (!r->status && !c->q_rank)
		qmw_reader_fail(r, QMLA_ERR_FORMAT, "q_lora_rank", "is missing");
	if (r->status)
		return;
	if (qmw_reader_flag(r, "mla_scale_kv_lora", true))
		c->latent_scale = (float)sqrt((double)c->hidden / c->content_dim);
	if (qmw_reader_flag(r, "mla_scale_q_lora", true))
		c->query_scale = (float)sqrt((double)c->hidden / c->q_rank);
	read_experts(r, missing, c);
	if (qmw_reader_value(r->root, "ngram_vocab_size_ratio") ||
	    qmw_reader_value(r->root, "emb_neighbor_num"))
		read_ngram(r, c);
}

static void read_longcat(struct qmw_reader *r, struct qmw_config *c)
{
	read_any(r, &(struct defaults){.zero_experts = 256, .scale = 6}, c);
}

static void read_longcat_ngram(struct qmw_reader *r, struct qmw_config *c)
{
	read_any(r, &(struct defaults){.zero_experts = -1, .scale = -1}, c);
	if (!r->status && !c->ngram.neighbours)
		qmw_reader_fail(r, QMLA_ERR_FORMAT, "ngram_vocab_size_ratio", "is missing");
}

const struct qmw_family qmw_family_longcat_flash = {
	.model_type = "longcat_flash",
	.label = "LongCat-Flash",
	.architecture = "LongcatFlashForCausalLM",
	.layers_key = "num_layers",
	.intermediate_key = "ffn_hidden_size",
	.sublayers = 2,
	.norm_eps = 1e-5,
	.rope_theta = 1e7,
	.read = read_longcat,
};

const struct qmw_family qmw_family_longcat_flash_ngram = {
	.model_type = "longcat_flash_ngram",
	.label = "LongCat-Flash-Lite",
	.architecture = "LongcatFlashNgramForCausalLM",
	.layers_key = "num_layers",
	.intermediate_key = "ffn_hidden_size",
	.sublayers = 2,
	.norm_eps = 1e-5,
	.rope_theta = 1e7,
	.read = read_longcat_ngram,
};
