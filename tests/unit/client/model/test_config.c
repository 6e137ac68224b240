/* SPDX-License-Identifier: Apache-2.0 */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults), cmocka_unit_test(test_switches),
		cmocka_unit_test(test_yarn),     cmocka_unit_test(test_refused),
		cmocka_unit_test(test_sizes),    cmocka_unit_test(test_no_experts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
