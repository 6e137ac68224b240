/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/config.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/file.h"
#include "common/log.h"
#include "kernels/layout.h"

#define COMPONENT    "model"
#define CONFIG_LIMIT ((size_t)4 << 20)
#define DIM_MAX      (1u << 20)

struct reader {
	const char *label;
	const json_t *root;
	qmla_status_t status; /**< the first failure; later reads do nothing */
};

static void fail(struct reader *r, qmla_status_t status, const char *key, const char *what)
{
	if (r->status)
		return;
	qmc_error(COMPONENT, "%s: \"%s\" %s", r->label, key, what);
	r->status = status;
}

/* The value of @p key, NULL when it is missing or null. */
static const json_t *value_of(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);

	return json_is_null(value) ? NULL : value;
}

/* An integer in [@p min, @p max]; @p missing < 0: it must be there. */
static uint32_t read_count(struct reader *r, const char *key, int64_t missing, uint32_t min,
			   uint32_t max)
{
	const json_t *value = value_of(r->root, key);
	json_int_t number = json_integer_value(value);
	char what[96];

	if (!value && missing >= 0)
		return (uint32_t)missing;
	if (!value) {
		fail(r, QMLA_ERR_FORMAT, key, "is missing");
		return 0;
	}
	if (!json_is_integer(value) || number < min || number > max) {
		snprintf(what, sizeof(what), "must be an integer from %" PRIu32 " to %" PRIu32, min,
			 max);
		fail(r, QMLA_ERR_FORMAT, key, what);
		return 0;
	}
	return (uint32_t)number;
}

static bool read_flag(struct reader *r, const char *key, bool missing)
{
	const json_t *value = value_of(r->root, key);

	if (!value)
		return missing;
	if (!json_is_boolean(value))
		fail(r, QMLA_ERR_FORMAT, key, "must be true or false");
	return json_is_true(value);
}

/* A finite number in [@p min, @p max]; a negative @p missing: it must be there. */
static double read_number(struct reader *r, const json_t *object, const char *key, double missing,
			  double min, double max)
{
	const json_t *value = value_of(object, key);
	double number = json_number_value(value);
	char what[96];

	if (!value && missing >= 0)
		return missing;
	if (!value) {
		fail(r, QMLA_ERR_FORMAT, key, "is missing");
		return 0;
	}
	if (!json_is_number(value) || !(number >= min && number <= max)) {
		snprintf(what, sizeof(what), "must be a number from %g to %g", min, max);
		fail(r, QMLA_ERR_FORMAT, key, what);
		return 0;
	}
	return number;
}

static void read_model_type(struct reader *r, struct qmw_config *config)
{
	const char *type = json_string_value(value_of(r->root, "model_type"));
	const json_t *architectures = value_of(r->root, "architectures");
	const char *name = json_string_value(json_array_get(architectures, 0));

	if (!type) {
		fail(r, QMLA_ERR_FORMAT, "model_type", "is missing or no string");
		return;
	}
	config->v3 = strcmp(type, "deepseek_v3") == 0;
	if (!config->v3 && strcmp(type, "deepseek_v2") != 0) {
		char what[160];

		snprintf(what, sizeof(what),
			 "is \"%.60s\"; only deepseek_v2 and deepseek_v3 are supported", type);
		fail(r, QMLA_ERR_UNSUPPORTED, "model_type", what);
		return;
	}
	snprintf(config->architecture, sizeof(config->architecture), "%s",
		 name         ? name
		 : config->v3 ? "DeepseekV3ForCausalLM"
			      : "DeepseekV2ForCausalLM");
}

static void read_geometry(struct reader *r, struct qmw_config *c)
{
	c->sublayers = 1;
	c->latent_scale = c->query_scale = 1;
	c->latent_norm_eps = QMW_LATENT_NORM_EPS;
	c->layers = read_count(r, "num_hidden_layers", -1, 1, QMK_MAX_LAYERS);
	c->hidden = read_count(r, "hidden_size", -1, 1, DIM_MAX);
	c->intermediate = read_count(r, "intermediate_size", -1, 1, DIM_MAX);
	c->heads = read_count(r, "num_attention_heads", -1, 1, 1024);
	c->vocab = read_count(r, "vocab_size", -1, 1, 1u << 24);
	c->max_position = read_count(r, "max_position_embeddings", -1, 1, 1u << 28);
	c->content_dim = read_count(r, "kv_lora_rank", -1, 64, QMK_MAX_CONTENT_DIM);
	c->rope_dim = read_count(r, "qk_rope_head_dim", -1, 2, QMK_MAX_ROPE_DIM);
	c->nope_dim = read_count(r, "qk_nope_head_dim", -1, 1, 4096);
	c->value_dim = read_count(r, "v_head_dim", -1, 1, 4096);
	c->q_rank = read_count(r, "q_lora_rank", 0, 1, DIM_MAX);
	if (!r->status && c->rope_dim % 2)
		fail(r, QMLA_ERR_FORMAT, "qk_rope_head_dim", "must be even");
	if (!r->status && read_count(r, "num_key_value_heads", c->heads, 1, 1024) != c->heads)
		fail(r, QMLA_ERR_UNSUPPORTED, "num_key_value_heads",
		     "differs from num_attention_heads, which MLA does not have");
}

static void read_switches(struct reader *r, struct qmw_config *c)
{
	const char *activation = json_string_value(value_of(r->root, "hidden_act"));

	c->norm_eps = (float)read_number(r, r->root, "rms_norm_eps", 1e-6, 0, 1);
	c->attention_bias = read_flag(r, "attention_bias", false);
	c->mlp_bias = !c->v3 && read_flag(r, "mlp_bias", false);
	c->tied_embeddings = read_flag(r, "tie_word_embeddings", false);
	c->rope_interleave = !c->v3 || read_flag(r, "rope_interleave", true);
	if (activation && strcmp(activation, "silu") != 0)
		fail(r, QMLA_ERR_UNSUPPORTED, "hidden_act", "is not \"silu\"");
	if (value_of(r->root, "quantization_config"))
		fail(r, QMLA_ERR_UNSUPPORTED, "quantization_config",
		     "is set: quantised weights are not supported, use a BF16, F16 or F32 "
		     "checkpoint");
}

/* Layers from first_k_dense_replace on are MoE, unless the model has no experts. */
static void check_dense(struct reader *r, const struct qmw_config *c)
{
	const json_t *experts = json_object_get(r->root, "n_routed_experts");
	uint32_t dense = read_count(r, "first_k_dense_replace", c->v3 ? 3 : 0, 0, UINT32_MAX);
	bool none = json_is_null(experts) ||
		    (json_is_integer(experts) && json_integer_value(experts) == 0);
	char what[160];

	if (r->status || none || dense >= c->layers)
		return;
	snprintf(what, sizeof(what),
		 "is %" PRIu32 " of %" PRIu32
		 " layers: the others are mixtures of experts, which this runtime does not support",
		 dense, c->layers);
	fail(r, QMLA_ERR_UNSUPPORTED, "first_k_dense_replace", what);
}

static void read_eos(struct reader *r, struct qmw_config *c)
{
	const json_t *eos = value_of(r->root, "eos_token_id");

	if (json_is_array(eos))
		eos = json_array_get(eos, 0);
	c->eos = json_is_integer(eos) ? json_integer_value(eos) : -1;
	if (c->eos >= (int64_t)c->vocab)
		c->eos = -1;
}

static void read_yarn(struct reader *r, const json_t *rope, struct qmw_config *c)
{
	struct qmw_yarn *yarn = &c->yarn;
	const json_t *truncate = value_of(rope, "truncate");
	double original = read_number(r, r->root, "original_max_position_embeddings", 0, 1, 1e12);

	yarn->enabled = true;
	yarn->original_max_position =
		original > 0 ? original
			     : read_number(r, rope, "original_max_position_embeddings",
					   c->max_position, 1, 1e12);
	yarn->factor = read_number(r, rope, "factor", 0, 1e-3, 1e6);
	if (yarn->factor == 0 && yarn->original_max_position > 0)
		yarn->factor = c->max_position / yarn->original_max_position;
	yarn->beta_fast = read_number(r, rope, "beta_fast", 32, 0, 1e6);
	yarn->beta_slow = read_number(r, rope, "beta_slow", 1, 0, 1e6);
	/* As in transformers, zero stands for the default. */
	yarn->beta_fast = yarn->beta_fast > 0 ? yarn->beta_fast : 32;
	yarn->beta_slow = yarn->beta_slow > 0 ? yarn->beta_slow : 1;
	yarn->mscale = read_number(r, rope, "mscale", 0, 0, 1e3);
	yarn->mscale_all_dim = read_number(r, rope, "mscale_all_dim", 0, 0, 1e3);
	yarn->attention_factor = read_number(r, rope, "attention_factor", 0, 1e-6, 1e3);
	yarn->truncate = !truncate || !json_is_false(truncate);
}

static void read_rope(struct reader *r, struct qmw_config *c)
{
	const json_t *rope = value_of(r->root, "rope_scaling");
	const char *type;
	char what[160];

	if (!rope)
		rope = value_of(r->root, "rope_parameters");
	if (rope && !json_is_object(rope)) {
		fail(r, QMLA_ERR_FORMAT, "rope_parameters", "must be an object");
		return;
	}
	c->rope_theta = read_number(r, r->root, "rope_theta", 10000, 1.0001, 1e12);
	if (value_of(rope, "rope_theta"))
		c->rope_theta = read_number(r, rope, "rope_theta", -1, 1.0001, 1e12);
	if (read_number(r, rope, "partial_rotary_factor", 1, 0, 1) < 1)
		fail(r, QMLA_ERR_UNSUPPORTED, "partial_rotary_factor", "is not 1");
	type = json_string_value(value_of(rope, "rope_type"));
	if (!type)
		type = json_string_value(value_of(rope, "type"));
	if (!type || strcmp(type, "default") == 0)
		return;
	if (strcmp(type, "yarn") == 0) {
		read_yarn(r, rope, c);
		return;
	}
	snprintf(what, sizeof(what), "is \"%.60s\"; only \"default\" and \"yarn\" are supported",
		 type);
	fail(r, QMLA_ERR_UNSUPPORTED, "rope_type", what);
}

qmla_status_t qmw_config_parse(const char *text, size_t length, const char *label,
			       struct qmw_config *config)
{
	struct qmw_config parsed = {0};
	json_error_t error;
	json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
	struct reader r = {.label = label, .root = root};

	if (!json_is_object(root)) {
		qmc_error(COMPONENT, "%s: line %d: %s", label, root ? 1 : error.line,
			  root ? "is no JSON object" : error.text);
		json_decref(root);
		return QMLA_ERR_FORMAT;
	}
	read_model_type(&r, &parsed);
	read_geometry(&r, &parsed);
	read_switches(&r, &parsed);
	check_dense(&r, &parsed);
	read_eos(&r, &parsed);
	read_rope(&r, &parsed);
	json_decref(root);
	if (!r.status)
		*config = parsed;
	return r.status;
}

qmla_status_t qmw_config_read(const char *directory, struct qmw_config *config)
{
	char *path = qmw_path_join(directory, "config.json");
	void *text;
	size_t length;
	qmla_status_t status;

	if (!path)
		return QMLA_ERR_NO_MEMORY;
	status = qmw_file_read(path, CONFIG_LIMIT, &text, &length);
	if (!status) {
		status = qmw_config_parse(text, length, path, config);
		free(text);
	}
	free(path);
	return status;
}
