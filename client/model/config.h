/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * config.json of a model with multi-head latent attention: DeepSeek-V2, V3 and what is
 * built like it (R1, Moonlight, Kimi-K2), GLM-4.7-Flash, LongCat-Flash, MiniCPM3. Read
 * in the forms that transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters) write.
 * Defaults for missing keys are those of the family's class in transformers; where it has none,
 * or implementations disagree, the key must be there. What a family means is in config_<family>.c;
 * nothing else of the runtime asks for it.
 */
#ifndef QMW_CONFIG_H
#define QMW_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "kernels/layout.h"

/** transformers builds kv_a_layernorm and q_a_layernorm without the config's rms_norm_eps. */
#define QMW_LATENT_NORM_EPS 1e-6f

struct qmw_yarn {
	bool enabled;
	double factor;
	double beta_fast, beta_slow;
	double mscale, mscale_all_dim; /**< 0: not given */
	double attention_factor;       /**< 0: not given */
	double original_max_position;
	bool truncate;
};

/** LongRoPE's short factors: a text is never longer than the context they are for. */
struct qmw_longrope {
	bool enabled;
	double attention_factor;             /**< on cos and sin */
	double factor[QMK_MAX_ROPE_DIM / 2]; /**< each pair's wavelength is multiplied by it */
};

#define QMW_EXPERTS_MAX 4096u
#define QMW_TOP_K_MAX   64u

enum qmw_gate { QMW_GATE_SOFTMAX, QMW_GATE_SIGMOID };
enum qmw_group_score { QMW_GROUP_MAX, QMW_GROUP_TOP2 /**< sum of its two best */ };

/** A mixture of experts. All zero: every layer is dense. */
struct qmw_moe_config {
	uint32_t experts;      /**< routed, with weights; 0: none */
	uint32_t zero_experts; /**< behind them, that pass their input on */
	uint32_t top_k;
	uint32_t width, shared_width; /**< of an expert; of the shared ones together, 0: none */
	uint32_t groups, top_groups;  /**< experts are chosen in the best top_groups of groups */
	enum qmw_gate gate;
	enum qmw_group_score group_score;
	bool normalise;        /**< the chosen weights sum to `scale` */
	bool shortcut;         /**< beside the dense MLP, added at the end of the decoder layer */
	float scale;           /**< on the chosen weights */
	const char *gate_name; /**< of the layer's tensor: "gate.weight" */
	const char *
		correction_name; /**< of what is added to the scores for the choice only; or NULL */
	bool sparse[QMK_MAX_LAYERS]; /**< cache layers that experts follow */
};

#define QMW_NEIGHBOURS_MAX 8u

/** Embeddings of n-grams (ngram.h). */
struct qmw_ngram_config {
	uint32_t neighbours; /**< longest n-gram, 0: no such embeddings */
	uint32_t splits;     /**< tables for each length */
	double ratio;        /**< rows of a table, in vocabularies */
};

struct qmw_config {
	char architecture[64];
	const char *family; /**< "DeepSeek-V3" */
	bool v3;            /**< all but DeepSeek-V2: a BF16 implementation rounds cos and sin */
	uint32_t layers;    /**< attention sub-layers, each with a cache of its own */
	uint32_t sublayers; /**< of them in a decoder layer: 1, in LongCat 2 */
	uint32_t hidden, intermediate, heads, vocab, max_position;
	uint32_t q_rank; /**< q_lora_rank, 0: none */
	uint32_t content_dim, rope_dim, nope_dim, value_dim;
	float norm_eps, latent_norm_eps; /**< the latter in the attention's two inner norms */
	float latent_scale, query_scale; /**< on what the inner norms give; 1 in most */
	float embedding_scale, residual_scale, head_scale; /**< 1 in most */
	double rope_theta;
	bool rope_interleave;
	bool attention_bias, mlp_bias, tied_embeddings;
	bool fp8;    /**< weights in blocks of 128 x 128 with scales of their own */
	int64_t eos; /**< the first one, -1: none */
	struct qmw_yarn yarn;
	struct qmw_longrope longrope;
	struct qmw_moe_config moe;
	struct qmw_ngram_config ngram;
};

static inline uint32_t qmw_config_ngram_tables(const struct qmw_config *config)
{
	return config->ngram.neighbours ? config->ngram.splits * (config->ngram.neighbours - 1) : 0;
}

/** Tokens before a token that its embedding reads. */
static inline uint32_t qmw_config_history(const struct qmw_config *config)
{
	return config->ngram.neighbours ? config->ngram.neighbours - 1 : 0;
}

/** Decoder layers. */
static inline uint32_t qmw_config_decoder_layers(const struct qmw_config *config)
{
	return config->layers / config->sublayers;
}

/** True when a dense MLP follows cache layer @p layer. */
static inline bool qmw_config_dense(const struct qmw_config *config, uint32_t layer)
{
	return !config->moe.sparse[layer] || config->moe.shortcut;
}

/** True when the experts' output of an earlier sub-layer is added at the end of this one. */
static inline bool qmw_config_joins(const struct qmw_config *config, uint32_t layer)
{
	return config->moe.shortcut && layer % config->sublayers == config->sublayers - 1;
}

/**
 * Reads @p text ([@p length] bytes; @p label names it in messages). Logs the key
 * at fault: QMLA_ERR_FORMAT (missing, wrong type, out of range),
 * QMLA_ERR_UNSUPPORTED (a model type, RoPE type, gate or quantisation that is
 * not ours).
 */
qmla_status_t qmw_config_parse(const char *text, size_t length, const char *label,
			       struct qmw_config *config);

/** Reads @p directory/config.json. Also QMLA_ERR_NOT_FOUND, QMLA_ERR_IO. */
qmla_status_t qmw_config_read(const char *directory, struct qmw_config *config);

#endif /* QMW_CONFIG_H */
