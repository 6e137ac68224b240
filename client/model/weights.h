/* SPDX-License-Identifier: Apache-2.0 */
/** @file A model's weights in memory: float32, transforms fused, packed for matrix.h. */
#ifndef QMW_WEIGHTS_H
#define QMW_WEIGHTS_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/attention_weights.h"
#include "client/model/checkpoint.h"
#include "client/model/config.h"
#include "client/model/constants.h"
#include "client/model/fuse.h"
#include "client/model/matrix.h"
#include "client/model/mlp.h"
#include "client/model/moe.h"
#include "client/model/ngram.h"
#include "client/model/rope.h"
#include "kernels/ops.h"

#define QMW_NORM_NAME "model.norm.weight"

/** The token embeddings' tensor: one of the two names under which it is shared with n-grams. */
const char *qmw_embedding_name(const struct qmw_checkpoint *checkpoint);

/** The output head's tensor: with tied embeddings those. */
const char *qmw_head_name(const struct qmw_checkpoint *checkpoint, const struct qmw_config *config);

/** One attention sub-layer and what follows it. */
struct qmw_layer {
	float *input_norm, *post_norm; /**< [hidden] */
	struct qmw_matrix query;       /**< hidden → H (d_n + d_r); unused with q_lora */
	struct qmw_matrix query_a;     /**< hidden → q_rank */
	float *query_norm;             /**< [q_rank] */
	struct qmw_matrix query_b;     /**< q_rank → H (d_n + d_r) */
	struct qmw_matrix kv_a;        /**< hidden → d_c + d_r, rotated */
	struct qmw_matrix *key_up;     /**< [H]: d_n → d_c, W_UK absorbed */
	struct qmw_matrix *value_up;   /**< [H]: d_c → d_v */
	struct qmw_matrix output;      /**< H d_v → hidden */
	struct qmw_mlp mlp;            /**< dense; width 0: none */
	struct qmw_moe moe;            /**< count 0: none */
	float kv_norm_eps, query_norm_eps;
};

struct qmw_weights {
	uint32_t layers, heads;
	float *embedding;        /**< [vocab][hidden] */
	struct qmw_ngram ngram;  /**< reads from the checkpoint as long as the model lives */
	float *norm;             /**< [hidden] */
	struct qmw_matrix head;  /**< hidden → vocab */
	struct qmw_layer *layer; /**< [layers] */
	uint64_t parameters;     /**< elements read */
};

/** Reads, checks, fuses and packs everything that @p config asks for, with @p threads threads (0:
 * all processors). Logs what is wrong. With n-grams @p checkpoint must outlive the weights. */
qmla_status_t qmw_weights_load(const struct qmw_checkpoint *checkpoint,
			       const struct qmw_config *config,
			       const struct qmw_constants *constants, const struct qmw_rope *rope,
			       uint32_t threads, struct qmw_weights *weights);
void qmw_weights_free(struct qmw_weights *weights); /**< accepts a zeroed structure */

/** Checks every name, shape and dtype that loading asks for, and reads nothing. Errors as load. */
qmla_status_t qmw_weights_check(const struct qmw_checkpoint *checkpoint,
				const struct qmw_config *config);

/** Fuses the transforms into copies of a sub-layer's attention weights and packs them into @p
 * layer; norms and MLPs are left as they are. QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_layer_pack(const struct qmw_config *config, const struct qmw_fuse *fuse,
			     const struct qmw_attention_weights *weights, struct qmw_layer *layer);

/** Reads one cache layer, nothing of a calibration fused. Its attention weights go to @p raw when
 * that is not NULL, to be freed by the caller. Errors as load. */
qmla_status_t qmw_layer_read(const struct qmw_checkpoint *checkpoint,
			     const struct qmw_config *config, const struct qmw_rope *rope,
			     uint32_t cache_layer, uint32_t threads,
			     struct qmw_attention_weights *raw, struct qmw_layer *layer);
void qmw_layer_free(struct qmw_layer *layer, uint32_t heads); /**< accepts a zeroed structure */

#endif /* QMW_WEIGHTS_H */
