/* SPDX-License-Identifier: Apache-2.0 */
/** @file The weights of one attention sub-layer as a checkpoint means them. */
#ifndef QMW_ATTENTION_WEIGHTS_H
#define QMW_ATTENTION_WEIGHTS_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/checkpoint.h"
#include "client/model/config.h"

#define QMW_TENSOR_NAME_BYTES 192

/**
 * Float32, [out][in], nothing of a calibration fused; constant factors of a family
 * (LongCat's latent scaling) are folded into the norm weights. Biases may be NULL.
 */
struct qmw_attention_weights {
	const float *query, *query_bias; /**< [H (d_n + d_r)][hidden]; NULL with q_lora */
	const float *query_a, *query_a_bias, *query_norm; /**< [q_rank][hidden], [q_rank] */
	const float *query_b;                             /**< [H (d_n + d_r)][q_rank] */
	const float *kv_a, *kv_a_bias;                    /**< [d_c + d_r][hidden] */
	const float *kv_norm;                             /**< Gamma, [d_c] */
	const float *kv_b;                 /**< a head: d_n rows of W_UK, d_v of W_UV; [..][d_c] */
	const float *output, *output_bias; /**< [hidden][H d_v] */
	float kv_norm_eps, query_norm_eps;
};

/**
 * "model.layers.3.self_attn.q_proj.weight" of cache layer 3 for module "self_attn" and
 * @p rest "q_proj.weight". With two sub-layers a decoder layer, cache layer 7 is
 * "model.layers.3.self_attn.1.…".
 */
void qmw_module_name(const struct qmw_config *config, uint32_t cache_layer, const char *module,
		     const char *rest, char name[QMW_TENSOR_NAME_BYTES]);

/** Checks names, shapes and dtypes without reading. Errors as qmw_checkpoint_read. */
qmla_status_t qmw_attention_weights_check(const struct qmw_checkpoint *checkpoint,
					  const struct qmw_config *config, uint32_t cache_layer);

/** Reads them; *parameters grows by the number of elements. Errors as qmw_checkpoint_read. */
qmla_status_t qmw_attention_weights_read(const struct qmw_checkpoint *checkpoint,
					 const struct qmw_config *config, uint32_t cache_layer,
					 uint64_t *parameters,
					 struct qmw_attention_weights *weights);
void qmw_attention_weights_free(struct qmw_attention_weights *weights); /**< accepts a zeroed one */

#endif /* QMW_ATTENTION_WEIGHTS_H */
