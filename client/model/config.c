/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/config.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/config_reader.h"
#include "client/model/file.h"
#include "client/model/matrix.h"
#include "common/log.h"

#define COMPONENT    "model"
#define CONFIG_LIMIT ((size_t)4 << 20)

static const struct qmw_family *const families[] = {
	&qmw_family_deepseek_v2,   &qmw_family_deepseek_v3,   &qmw_family_kimi_k2,
	&qmw_family_glm4_moe_lite, &qmw_family_longcat_flash, &qmw_family_longcat_flash_ngram,
	&qmw_family_minicpm3};

#define FAMILIES (sizeof(families) / sizeof(families[0]))

static void refuse_type(struct qmw_reader *r, const char *type)
{
	char what[320];
	int used = snprintf(what, sizeof(what), "is \"%.60s\"; supported are", type);

	for (size_t i = 0; i < FAMILIES; i++)
		used += snprintf(what + used, sizeof(what) - (size_t)used, "%s %s", i ? "," : "",
				 families[i]->model_type);
	qmw_reader_fail(r, QMLA_ERR_UNSUPPORTED, "model_type", what);
}

/* NULL, with the failure noted, when there is none. */
static const struct qmw_family *find_family(struct qmw_reader *r)
{
	const char *type = json_string_value(qmw_reader_value(r->root, "model_type"));

	if (!type) {
		qmw_reader_fail(r, QMLA_ERR_FORMAT, "model_type", "is missing or no string");
		return NULL;
	}
	for (size_t i = 0; i < FAMILIES; i++)
		if (strcmp(type, families[i]->model_type) == 0)
			return families[i];
	refuse_type(r, type);
	return NULL;
}

static void read_names(struct qmw_reader *r, const struct qmw_family *family, struct qmw_config *c)
{
	const json_t *architectures = qmw_reader_value(r->root, "architectures");
	const char *name = json_string_value(json_array_get(architectures, 0));

	c->family = family->label;
	c->v3 = family != &qmw_family_deepseek_v2;
	snprintf(c->architecture, sizeof(c->architecture), "%s",
		 name ? name : family->architecture);
}

static void read_geometry(struct qmw_reader *r, const struct qmw_family *family,
			  struct qmw_config *c)
{
	c->sublayers = family->sublayers;
	c->layers = c->sublayers *
		    qmw_reader_count(r, family->layers_key, -1, 1, QMK_MAX_LAYERS / c->sublayers);
	c->hidden = qmw_reader_count(r, "hidden_size", -1, 1, QMW_DIM_MAX);
	c->intermediate = qmw_reader_count(r, family->intermediate_key, -1, 1, QMW_DIM_MAX);
	c->heads = qmw_reader_count(r, "num_attention_heads", -1, 1, 1024);
	c->vocab = qmw_reader_count(r, "vocab_size", -1, 1, 1u << 24);
	c->max_position = qmw_reader_count(r, "max_position_embeddings", -1, 1, 1u << 28);
	c->content_dim = qmw_reader_count(r, "kv_lora_rank", -1, 64, QMK_MAX_CONTENT_DIM);
	c->rope_dim = qmw_reader_count(r, "qk_rope_head_dim", -1, 2, QMK_MAX_ROPE_DIM);
	c->nope_dim = qmw_reader_count(r, "qk_nope_head_dim", -1, 1, 4096);
	c->value_dim =
		qmw_reader_count(r, "v_head_dim", c->heads ? c->hidden / c->heads : 0, 1, 4096);
	c->q_rank = qmw_reader_count(r, "q_lora_rank", 0, 1, QMW_DIM_MAX);
	if (!r->status && (c->value_dim < 1 || c->value_dim > 4096))
		qmw_reader_fail(r, QMLA_ERR_FORMAT, "v_head_dim", "is missing");
	if (!r->status && c->rope_dim % 2)
		qmw_reader_fail(r, QMLA_ERR_FORMAT, "qk_rope_head_dim", "must be even");
	if (!r->status && qmw_reader_count(r, "num_key_value_heads", c->heads, 1, 1024) != c->heads)
		qmw_reader_fail(r, QMLA_ERR_UNSUPPORTED, "num_key_value_heads",
				"differs from num_attention_heads, which MLA does not have");
}

/* DeepSeek's 8-bit weights: E4M3, a scale for each block of 128 x 128. */
static void read_quantisation(struct qmw_reader *r, struct qmw_config *c)
{
	const json_t *q = qmw_reader_value(r->root, "quantization_config");
	const char *method = json_string_value(qmw_reader_value(q, "quant_method"));
	const char *format = json_string_value(qmw_reader_value(q, "fmt"));
	const json_t *block = qmw_reader_value(q, "weight_block_size");

	if (!q)
		return;
	c->fp8 = method && strcmp(method, "fp8") == 0 && (!format || strcmp(format, "e4m3") == 0) &&
		 json_array_size(block) == 2 &&
		 json_integer_value(json_array_get(block, 0)) == QMW_FP8_BLOCK &&
		 json_integer_value(json_array_get(block, 1)) == QMW_FP8_BLOCK;
	if (!c->fp8)
		qmw_reader_fail(r, QMLA_ERR_UNSUPPORTED, "quantization_config",
				"is none of ours: only quant_method \"fp8\" with fmt \"e4m3\" and "
				"weight_block_size [128, 128] is supported; use such a checkpoint, "
				"or one in BF16, F16 or F32");
}

static void read_switches(struct qmw_reader *r, const struct qmw_family *family,
			  struct qmw_config *c)
{
	c->latent_norm_eps = QMW_LATENT_NORM_EPS;
	c->latent_scale = c->query_scale = 1;
	c->embedding_scale = c->residual_scale = c->head_scale = 1;
	c->norm_eps = (float)qmw_reader_number(r, r->root, "rms_norm_eps", family->norm_eps, 0, 1);
	c->attention_bias = qmw_reader_flag(r, "attention_bias", false);
	c->tied_embeddings = qmw_reader_flag(r, "tie_word_embeddings", family->tied);
	qmw_reader_only(r, "hidden_act", "silu");
	read_quantisation(r, c);
}

static void read_eos(struct qmw_reader *r, struct qmw_config *c)
{
	const json_t *eos = qmw_reader_value(r->root, "eos_token_id");

	if (json_is_array(eos))
		eos = json_array_get(eos, 0);
	c->eos = json_is_integer(eos) ? json_integer_value(eos) : -1;
	if (c->eos >= (int64_t)c->vocab)
		c->eos = -1;
}

static void read_all(struct qmw_reader *r, struct qmw_config *c)
{
	const struct qmw_family *family = find_family(r);

	if (!family)
		return;
	read_names(r, family, c);
	read_geometry(r, family, c);
	read_switches(r, family, c);
	read_eos(r, c);
	if (!r->status)
		qmw_reader_rope(r, family, c);
	if (!r->status)
		family->read(r, c);
	qmw_reader_check_experts(r, c);
}

qmla_status_t qmw_config_parse(const char *text, size_t length, const char *label,
			       struct qmw_config *config)
{
	struct qmw_config parsed = {0};
	json_error_t error;
	json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
	struct qmw_reader r = {.label = label, .root = root};

	if (!json_is_object(root)) {
		qmc_error(COMPONENT, "%s: line %d: %s", label, root ? 1 : error.line,
			  root ? "is no JSON object" : error.text);
		json_decref(root);
		return QMLA_ERR_FORMAT;
	}
	read_all(&r, &parsed);
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
