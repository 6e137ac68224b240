/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "client/model/config.h"

#define GEOMETRY                                                                                   \
	"\"num_hidden_layers\": 2, \"hidden_size\": 64, \"intermediate_size\": 40, "               \
	"\"num_attention_heads\": 2, \"vocab_size\": 256, \"max_position_embeddings\": 512, "      \
	"\"kv_lora_rank\": 128, \"qk_rope_head_dim\": 64, \"qk_nope_head_dim\": 16, "              \
	"\"v_head_dim\": 24"
#define DENSE "\"first_k_dense_replace\": 2"
#define V3    "{\"model_type\": \"deepseek_v3\", " DENSE ", " GEOMETRY
#define V2    "{\"model_type\": \"deepseek_v2\", " DENSE ", " GEOMETRY

static qmla_status_t parse(const char *text, struct qmw_config *config)
{
	return qmw_config_parse(text, strlen(text), "config.json", config);
}

static void test_defaults(void **state)
{
	struct qmw_config c;

	(void)state;
	assert_int_equal(parse(V3 "}", &c), QMLA_OK);
	assert_true(c.v3 && c.rope_interleave);
	assert_false(c.attention_bias || c.tied_embeddings || c.mlp_bias || c.yarn.enabled);
	assert_int_equal(c.q_rank, 0);
	assert_int_equal(c.eos, -1);
	assert_true(c.norm_eps == 1e-6f && c.rope_theta == 10000);
	assert_string_equal(c.architecture, "DeepseekV3ForCausalLM");
	assert_int_equal(c.content_dim, 128);
	assert_int_equal(c.value_dim, 24);
	assert_int_equal(parse(V2 "}", &c), QMLA_OK);
	assert_false(c.v3);
	assert_string_equal(c.architecture, "DeepseekV2ForCausalLM");
}

static void test_switches(void **state)
{
	struct qmw_config c;

	(void)state;
	assert_int_equal(parse(V3 ", \"q_lora_rank\": 48, \"rope_interleave\": false, "
				  "\"attention_bias\": true, \"tie_word_embeddings\": true, "
				  "\"rms_norm_eps\": 1e-5, \"eos_token_id\": [7, 8], "
				  "\"architectures\": [\"Other\"], \"mlp_bias\": true}",
			       &c),
			 QMLA_OK);
	assert_int_equal(c.q_rank, 48);
	assert_true(c.attention_bias && c.tied_embeddings);
	assert_false(c.rope_interleave || c.mlp_bias); /* V3 has no mlp_bias */
	assert_true(c.norm_eps == 1e-5f);
	assert_int_equal(c.eos, 7);
	assert_string_equal(c.architecture, "Other");
	/* V2 is always interleaved, and may have biases in the MLP. */
	assert_int_equal(parse(V2 ", \"rope_interleave\": false, \"mlp_bias\": true}", &c),
			 QMLA_OK);
	assert_true(c.rope_interleave && c.mlp_bias);
	/* An end token outside the vocabulary ends nothing. */
	assert_int_equal(parse(V3 ", \"eos_token_id\": 300}", &c), QMLA_OK);
	assert_int_equal(c.eos, -1);
}

/* Both spellings of YaRN: transformers 5, and what DeepSeek publishes. */
static void test_yarn(void **state)
{
	static const char *const texts[] = {
		V3 ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 5e4, "
		   "\"factor\": 40, \"beta_fast\": 16, \"beta_slow\": 2, \"mscale\": 0.707, "
		   "\"mscale_all_dim\": 0.5, \"original_max_position_embeddings\": 4096}}",
		V2 ", \"rope_theta\": 50000, \"rope_scaling\": {\"type\": \"yarn\", "
		   "\"factor\": 40, \"beta_fast\": 16, \"beta_slow\": 2, \"mscale\": 0.707, "
		   "\"mscale_all_dim\": 0.5, \"original_max_position_embeddings\": 4096}}",
	};
	struct qmw_config c;

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(parse(texts[i], &c), QMLA_OK);
		assert_true(c.yarn.enabled && c.yarn.truncate);
		assert_true(c.rope_theta == 50000 && c.yarn.factor == 40);
		assert_true(c.yarn.beta_fast == 16 && c.yarn.beta_slow == 2);
		assert_true(c.yarn.mscale == 0.707 && c.yarn.mscale_all_dim == 0.5);
		assert_true(c.yarn.original_max_position == 4096);
		assert_true(c.yarn.attention_factor == 0);
	}
	/* What is not given: the context as trained, and transformers' betas. */
	assert_int_equal(parse(V3 ", \"rope_parameters\": {\"rope_type\": \"yarn\", "
				  "\"original_max_position_embeddings\": 64, \"truncate\": false}}",
			       &c),
			 QMLA_OK);
	assert_true(c.yarn.factor == 8 && c.yarn.beta_fast == 32 && c.yarn.beta_slow == 1);
	assert_false(c.yarn.truncate);
}

static void test_refused(void **state)
{
	static const struct {
		const char *text;
		qmla_status_t status;
	} cases[] = {
		{"", QMLA_ERR_FORMAT},
		{"{", QMLA_ERR_FORMAT},
		{"[]", QMLA_ERR_FORMAT},
		{"{}", QMLA_ERR_FORMAT},
		{"{" GEOMETRY "}", QMLA_ERR_FORMAT},
		{V3 ", \"vocab_size\": 5}", QMLA_ERR_FORMAT}, /* a key twice */
		{"{\"model_type\": 3, " GEOMETRY "}", QMLA_ERR_FORMAT},
		{"{\"model_type\": \"llama\", " GEOMETRY "}", QMLA_ERR_UNSUPPORTED},
		{"{\"model_type\": \"deepseek_v3\", " DENSE "}", QMLA_ERR_FORMAT},
		/* mixtures of experts without their keys */
		{"{\"model_type\": \"deepseek_v2\", " GEOMETRY "}", QMLA_ERR_FORMAT},
		{"{\"model_type\": \"deepseek_v3\", \"first_k_dense_replace\": 1, " GEOMETRY "}",
		 QMLA_ERR_FORMAT},
		{V3 ", \"q_lora_rank\": 0}", QMLA_ERR_FORMAT},
		{V3 ", \"q_lora_rank\": \"48\"}", QMLA_ERR_FORMAT},
		{V3 ", \"num_key_value_heads\": 1}", QMLA_ERR_UNSUPPORTED},
		{V3 ", \"attention_bias\": 1}", QMLA_ERR_FORMAT},
		{V3 ", \"rms_norm_eps\": -1}", QMLA_ERR_FORMAT},
		{V3 ", \"rms_norm_eps\": \"small\"}", QMLA_ERR_FORMAT},
		{V3 ", \"hidden_act\": \"gelu\"}", QMLA_ERR_UNSUPPORTED},
		{V3 ", \"quantization_config\": {\"quant_method\": \"fp8\"}}",
		 QMLA_ERR_UNSUPPORTED},
		{V3 ", \"rope_theta\": 0}", QMLA_ERR_FORMAT},
		{V3 ", \"rope_parameters\": []}", QMLA_ERR_FORMAT},
		{V3 ", \"rope_parameters\": {\"rope_type\": \"longrope\"}}", QMLA_ERR_FORMAT},
		{V3 ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
		 QMLA_ERR_UNSUPPORTED},
		{V3 ", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}}",
		 QMLA_ERR_UNSUPPORTED},
		{V3 ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": -1}}",
		 QMLA_ERR_FORMAT},
		{V3 ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": \"8\"}}",
		 QMLA_ERR_FORMAT},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct qmw_config c = {.layers = 77};

		if (parse(cases[i].text, &c) != cases[i].status)
			fail_msg("%s is not refused with %d", cases[i].text, (int)cases[i].status);
		assert_int_equal(c.layers, 77); /* nothing written */
	}
}

/* Every size: zero, negative, a fraction, too large. */
static void test_sizes(void **state)
{
	static const char *const keys[] = {"num_hidden_layers", "hidden_size",
					   "intermediate_size", "num_attention_heads",
					   "vocab_size",        "kv_lora_rank",
					   "qk_rope_head_dim",  "qk_nope_head_dim",
					   "v_head_dim",        "max_position_embeddings"};
	static const char *const values[] = {"0", "-1", "1.5", "4294967297", "true"};

	(void)state;
	for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
		for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
			struct qmw_config c;
			char text[2048], quoted[64];
			char *at;

			snprintf(text, sizeof(text), "%s}", V3);
			snprintf(quoted, sizeof(quoted), "\"%s\": ", keys[k]);
			at = strstr(text, quoted) + strlen(quoted);
			memmove(at + strlen(values[v]), at + strcspn(at, ",}"),
				strlen(at + strcspn(at, ",}")) + 1);
			memcpy(at, values[v], strlen(values[v]));
			assert_int_equal(parse(text, &c), QMLA_ERR_FORMAT);
		}
	}
}

/* A model that says it has no experts is dense whatever first_k_dense_replace is. */
static void test_no_experts(void **state)
{
	struct qmw_config c;

	(void)state;
	assert_int_equal(
		parse("{\"model_type\": \"deepseek_v2\", \"n_routed_experts\": null, " GEOMETRY "}",
		      &c),
		QMLA_OK);
}

#define EXPERTS                                                                                    \
	"\"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "     \
	"\"n_shared_experts\": 2, \"first_k_dense_replace\": 1"
#define V2_MOE "{\"model_type\": \"deepseek_v2\", " GEOMETRY ", " EXPERTS
#define V3_MOE "{\"model_type\": \"deepseek_v3\", " GEOMETRY ", " EXPERTS
#define KIMI   "{\"model_type\": \"kimi_k2\", " GEOMETRY ", " EXPERTS
#define GROUPS "\"n_group\": 1, \"topk_group\": 1"
#define SCALE  "\"routed_scaling_factor\": 2.827"
#define GLM    "{\"model_type\": \"glm4_moe_lite\", " GEOMETRY
#define CPM    "{\"model_type\": \"minicpm3\", " GEOMETRY
#define LONGCAT                                                                                    \
	"{\"model_type\": \"longcat_flash\", \"num_layers\": 3, \"ffn_hidden_size\": 40, "         \
	"\"q_lora_rank\": 16, \"expert_ffn_hidden_size\": 24, \"moe_topk\": 3, "                   \
	"\"n_routed_experts\": 8, \"zero_expert_num\": 4, " GEOMETRY

static void test_deepseek_experts(void **state)
{
	struct qmw_config c;

	(void)state;
	assert_int_equal(parse(V2_MOE
			       ", \"topk_method\": \"group_limited_greedy\", \"n_group\": 4, "
			       "\"topk_group\": 2, \"routed_scaling_factor\": 16}",
			       &c),
			 QMLA_OK);
	assert_true(c.moe.gate == QMW_GATE_SOFTMAX && c.moe.group_score == QMW_GROUP_MAX);
	assert_true(c.moe.groups == 4 && c.moe.top_groups == 2 && c.moe.scale == 16);
	assert_true(c.moe.width == 24 && c.moe.shared_width == 48 && c.moe.top_k == 2);
	assert_true(!c.moe.sparse[0] && c.moe.sparse[1] && !c.moe.correction_name);
	/* Greedy knows no groups. */
	assert_int_equal(parse(V2_MOE ", \"topk_method\": \"greedy\", \"n_group\": 4}", &c),
			 QMLA_OK);
	assert_int_equal(c.moe.groups, 1);
	assert_int_equal(parse(V3_MOE ", \"n_group\": 4, \"topk_group\": 2, "
				      "\"moe_layer_freq\": 2}",
			       &c),
			 QMLA_OK);
	assert_true(c.moe.gate == QMW_GATE_SIGMOID && c.moe.group_score == QMW_GROUP_TOP2);
	assert_true(c.moe.normalise && c.moe.groups == 4);
	assert_string_equal(c.moe.correction_name, "gate.e_score_correction_bias");
	assert_false(c.moe.sparse[1]); /* every second layer: 0, which is dense */
	assert_string_equal(c.family, "DeepSeek-V3");
	assert_int_equal(parse(KIMI ", " GROUPS ", " SCALE "}", &c), QMLA_OK);
	assert_string_equal(c.family, "Kimi-K2");
}

#define FEW                                                                                        \
	GEOMETRY ", \"n_routed_experts\": 16, \"num_experts_per_tok\": 2, "                        \
		 "\"moe_intermediate_size\": 24"
#define LONGCAT_FEW                                                                                \
	"\"num_layers\": 3, \"ffn_hidden_size\": 40, \"q_lora_rank\": 16, "                        \
	"\"expert_ffn_hidden_size\": 24, \"moe_topk\": 3, \"n_routed_experts\": 8, " GEOMETRY
#define NGRAMS "\"emb_neighbor_num\": 3, \"emb_split_num\": 2, \"ngram_vocab_size_ratio\": 1.5"

/* What transformers 5.17's configuration classes print for a key that is left out. */
static void test_missing_keys(void **state)
{
	struct qmw_config c;

	(void)state;
	assert_int_equal(parse("{\"model_type\": \"deepseek_v2\", " FEW "}", &c), QMLA_OK);
	assert_true(c.moe.shared_width == 2 * 24 && c.moe.scale == 1 && c.moe.sparse[0]);
	assert_int_equal(
		parse("{\"model_type\": \"deepseek_v3\", \"first_k_dense_replace\": 1, " FEW "}",
		      &c),
		QMLA_OK);
	assert_true(c.moe.shared_width == 24 && c.moe.scale == 2.5f && c.moe.normalise);
	assert_true(c.moe.groups == 8 && c.moe.top_groups == 4);
	/* Two layers and three dense ones in front. */
	assert_int_equal(parse("{\"model_type\": \"deepseek_v3\", " FEW "}", &c), QMLA_OK);
	assert_int_equal(c.moe.experts, 0);
	assert_int_equal(parse("{\"model_type\": \"glm4_moe_lite\", " FEW "}", &c), QMLA_OK);
	assert_true(c.moe.shared_width == 24 && c.moe.scale == 1.8f && c.moe.normalise);
	assert_true(c.moe.groups == 1 && c.moe.top_groups == 1);
	assert_true(!c.moe.sparse[0] && c.moe.sparse[1]);
	assert_int_equal(parse("{\"model_type\": \"longcat_flash\", " LONGCAT_FEW "}", &c),
			 QMLA_OK);
	assert_true(c.moe.zero_experts == 256 && c.moe.scale == 6);
}

/* No class says what these would be, and each of them changes what the model computes. */
static void test_missing_keys_refused(void **state)
{
	static const char *const texts[] = {
		V2_MOE ", \"topk_method\": \"group_limited_greedy\", \"topk_group\": 2}",
		V2_MOE ", \"topk_method\": \"group_limited_greedy\", \"n_group\": 4}",
		V2_MOE ", \"routed_scaling_factor\": null}",
		"{\"model_type\": \"deepseek_v2\", \"n_shared_experts\": null, " FEW "}",
		V3_MOE ", \"n_group\": null, \"topk_group\": 1}",
		V3_MOE ", \"n_group\": 2, \"topk_group\": null}",
		GLM ", " EXPERTS ", \"n_group\": null}",
		KIMI ", " GROUPS "}",
		KIMI ", " SCALE ", \"n_group\": 1}",
		KIMI ", " SCALE ", \"topk_group\": 1}",
		"{\"model_type\": \"kimi_k2\", \"n_shared_experts\": 1, " SCALE ", " GROUPS ", " FEW
		"}",
		"{\"model_type\": \"kimi_k2\", \"first_k_dense_replace\": 1, " SCALE ", " GROUPS
		", " FEW "}",
		LONGCAT ", \"routed_scaling_factor\": null}",
		"{\"model_type\": \"longcat_flash_ngram\", " SCALE ", " NGRAMS ", " LONGCAT_FEW "}",
		"{\"model_type\": \"longcat_flash_ngram\", \"zero_expert_num\": 2, " NGRAMS
		", " LONGCAT_FEW "}",
	};
	struct qmw_config c;

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (parse(texts[i], &c) != QMLA_ERR_FORMAT)
			fail_msg("%s is not refused", texts[i]);
	assert_int_equal(
		parse("{\"model_type\": \"longcat_flash_ngram\", \"zero_expert_num\": 2, " SCALE
		      ", " NGRAMS ", " LONGCAT_FEW "}",
		      &c),
		QMLA_OK);
}

static void test_other_families(void **state)
{
	struct qmw_config c;

	(void)state;
	assert_int_equal(
		parse(GLM ", " EXPERTS ", \"mlp_layer_types\": [\"sparse\", \"dense\"]}", &c),
		QMLA_OK);
	assert_true(c.moe.sparse[0] && !c.moe.sparse[1]);
	assert_true(c.norm_eps == 1e-5f && c.latent_norm_eps == 1e-6f);
	assert_int_equal(parse(LONGCAT "}", &c), QMLA_OK);
	assert_int_equal(c.layers, 6);
	assert_int_equal(qmw_config_decoder_layers(&c), 3);
	assert_true(c.latent_scale == (float)sqrt(0.5) && c.query_scale == 2);
	assert_true(c.moe.sparse[4] && !c.moe.sparse[5] && c.moe.zero_experts == 4);
	assert_true(qmw_config_dense(&c, 4) && qmw_config_joins(&c, 5) && !qmw_config_joins(&c, 4));
	assert_true(c.rope_theta == 1e7);
	assert_int_equal(parse(LONGCAT ", \"mla_scale_kv_lora\": false}", &c), QMLA_OK);
	assert_true(c.latent_scale == 1 && c.query_scale == 2);
	assert_int_equal(parse(CPM "}", &c), QMLA_OK);
	assert_true(c.tied_embeddings && !c.rope_interleave && c.embedding_scale == 12);
	assert_true(c.residual_scale == (float)(1.4 / sqrt(2)) && c.head_scale == 4);
	assert_int_equal(parse(CPM ", \"scale_depth\": null, \"dim_model_base\": null}", &c),
			 QMLA_OK);
	assert_true(c.residual_scale == 1 && c.head_scale == 1);
}

/* A cache cannot change its angles when its text grows: the short context is the context. */
static void test_longrope(void **state)
{
	static const char *const formats[] = {"%s, \"rope_scaling\": {\"type\": \"longrope\", "
					      "\"short_factor\": [%s], "
					      "\"original_max_position_embeddings\": 128}}"};
	char factors[512] = "1.5", text[2048];
	struct qmw_config c;

	(void)state;
	for (int j = 1; j < 32; j++)
		strcat(factors, ", 1.5");
	snprintf(text, sizeof(text), formats[0], CPM, factors);
	assert_int_equal(parse(text, &c), QMLA_OK);
	assert_true(c.longrope.enabled && c.longrope.factor[31] == 1.5);
	assert_int_equal(c.max_position, 128);
	assert_true(fabs(c.longrope.attention_factor - sqrt(1 + log(4) / log(128))) < 1e-12);
	snprintf(text, sizeof(text), formats[0], CPM, "1, 2");
	assert_int_equal(parse(text, &c), QMLA_ERR_FORMAT);
}

static void test_families_refused(void **state)
{
	static const struct {
		const char *text;
		qmla_status_t status;
	} cases[] = {
		{V2_MOE ", \"topk_method\": \"noaux_tc\"}", QMLA_ERR_UNSUPPORTED},
		{V2_MOE ", \"scoring_func\": \"sigmoid\"}", QMLA_ERR_UNSUPPORTED},
		{V2_MOE ", \"norm_topk_prob\": true}", QMLA_ERR_UNSUPPORTED},
		{V3_MOE ", \"scoring_func\": \"softmax\"}", QMLA_ERR_UNSUPPORTED},
		{V3_MOE ", \"topk_method\": \"greedy\"}", QMLA_ERR_UNSUPPORTED},
		{V3_MOE ", \"n_group\": 3}", QMLA_ERR_FORMAT},
		{V3_MOE ", \"n_group\": 8}", QMLA_ERR_FORMAT}, /* one expert a group */
		{V3_MOE ", \"n_group\": 2, \"topk_group\": 3}", QMLA_ERR_FORMAT},
		{V3_MOE ", \"routed_scaling_factor\": \"x\"}", QMLA_ERR_FORMAT},
		{V3_MOE ", \"moe_layer_freq\": 0}", QMLA_ERR_FORMAT},
		{GLM ", " EXPERTS ", \"mlp_layer_types\": [\"sparse\"]}", QMLA_ERR_FORMAT},
		{GLM ", " EXPERTS ", \"mlp_layer_types\": [\"sparse\", \"wide\"]}",
		 QMLA_ERR_FORMAT},
		{LONGCAT ", \"zero_expert_type\": \"copy\"}", QMLA_ERR_UNSUPPORTED},
		{LONGCAT ", \"router_bias\": true}", QMLA_ERR_UNSUPPORTED},
		{LONGCAT ", \"attention_method\": \"MHA\"}", QMLA_ERR_UNSUPPORTED},
		{CPM ", \"scale_emb\": 0}", QMLA_ERR_FORMAT},
		{V3 ", \"quantization_config\": {\"quant_method\": \"fp8\", "
		    "\"weight_block_size\": [64, 128]}}",
		 QMLA_ERR_UNSUPPORTED},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct qmw_config c;

		if (parse(cases[i].text, &c) != cases[i].status)
			fail_msg("%s is not refused with %d", cases[i].text, (int)cases[i].status);
	}
}

static void test_fp8(void **state)
{
	struct qmw_config c;

	(void)state;
	assert_int_equal(parse(V3 ", \"quantization_config\": {\"quant_method\": \"fp8\", "
				  "\"fmt\": \"e4m3\", \"weight_block_size\": [128, 128]}}",
			       &c),
			 QMLA_OK);
	assert_true(c.fp8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_switches),
		cmocka_unit_test(test_yarn),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_no_experts),
		cmocka_unit_test(test_deepseek_experts),
		cmocka_unit_test(test_missing_keys),
		cmocka_unit_test(test_missing_keys_refused),
		cmocka_unit_test(test_other_families),
		cmocka_unit_test(test_longrope),
		cmocka_unit_test(test_families_refused),
		cmocka_unit_test(test_fp8),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
