/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A mixture of experts: its weights, and which experts a row goes to. Gates as in
 * transformers' modeling_deepseek_v2.py, modeling_deepseek_v3.py and
 * modeling_longcat_flash.py; of equal scores the lower number wins.
 */
#ifndef QMW_MOE_H
#define QMW_MOE_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/checkpoint.h"
#include "client/model/config.h"
#include "client/model/matrix.h"
#include "client/model/mlp.h"

struct qmw_moe {
	uint32_t count;         /**< experts with weights */
	struct qmw_matrix gate; /**< hidden → experts, those without weights too */
	float *correction;      /**< [experts] or NULL */
	struct qmw_mlp *expert; /**< [count] */
	struct qmw_mlp shared;  /**< all shared ones as one; width 0: none */
};

/** One of a row's experts. */
struct qmw_route {
	uint32_t expert; /**< from qmw_moe_config's `experts` on: it passes its input on */
	float weight;
};

/** Checks the tensors of decoder layer @p layer without reading. Errors as qmw_checkpoint_read. */
qmla_status_t qmw_moe_check(const struct qmw_checkpoint *checkpoint,
			    const struct qmw_config *config, uint32_t layer);

/** Reads and packs them with @p threads threads (0: all processors); *parameters grows by the
 * number of elements. */
qmla_status_t qmw_moe_read(const struct qmw_checkpoint *checkpoint, const struct qmw_config *config,
			   uint32_t layer, uint32_t threads, uint64_t *parameters,
			   struct qmw_moe *moe);
void qmw_moe_free(struct qmw_moe *moe); /**< accepts a zeroed one */

/**
 * The experts of one row, in ascending order of their numbers. @p scores [experts] holds
 * the gate's products and is overwritten, @p choice [experts] is scratch; @p correction may
 * be NULL. @p routes [top_k]. Pure.
 */
void qmw_moe_route(const struct qmw_moe_config *config, const float *correction, float *scores,
		   float *choice, struct qmw_route *routes);

#endif /* QMW_MOE_H */
