/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * config.json of a DeepSeek-V2 or V3 checkpoint with dense MLP layers, in the
 * forms that transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters)
 * write. Defaults for missing keys are transformers'.
 */
#ifndef QMW_CONFIG_H
#define QMW_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

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

struct qmw_config {
	char architecture[64];
	bool v3;            /**< else V2 */
	uint32_t layers;    /**< attention sub-layers, each with a cache of its own */
	uint32_t sublayers; /**< of them in a decoder layer: 1, in LongCat 2 */
	uint32_t hidden, intermediate, heads, vocab, max_position;
	uint32_t q_rank; /**< q_lora_rank, 0: none */
	uint32_t content_dim, rope_dim, nope_dim, value_dim;
	float norm_eps, latent_norm_eps; /**< the latter in the attention's two inner norms */
	float latent_scale, query_scale; /**< on what the inner norms give; 1 in most */
	double rope_theta;
	bool rope_interleave; /**< V2: always */
	bool attention_bias, mlp_bias, tied_embeddings;
	int64_t eos; /**< the first one, -1: none */
	struct qmw_yarn yarn;
};

/**
 * Reads @p text ([@p length] bytes; @p label names it in messages). Logs the key
 * at fault: QMLA_ERR_FORMAT (missing, wrong type, out of range),
 * QMLA_ERR_UNSUPPORTED (other model type, MoE layers, other RoPE type,
 * quantised weights).
 */
qmla_status_t qmw_config_parse(const char *text, size_t length, const char *label,
			       struct qmw_config *config);

/** Reads @p directory/config.json. Also QMLA_ERR_NOT_FOUND, QMLA_ERR_IO. */
qmla_status_t qmw_config_read(const char *directory, struct qmw_config *config);

#endif /* QMW_CONFIG_H */
