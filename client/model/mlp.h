/* SPDX-License-Identifier: Apache-2.0 */
/** @file A gated MLP: down(silu(gate(x)) * up(x)), dense, shared or one of many experts. */
#ifndef QMW_MLP_H
#define QMW_MLP_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/attention_weights.h"
#include "client/model/checkpoint.h"
#include "client/model/matrix.h"

struct qmw_mlp {
	uint32_t width;            /**< of the gated middle; 0: there is none */
	struct qmw_matrix gate_up; /**< hidden → 2 width: gates, then ups */
	struct qmw_matrix down;    /**< width → hidden */
};

/** The dense MLP's prefix in a cache layer: "model.layers.3.mlp". */
void qmw_mlp_prefix(const struct qmw_config *config, uint32_t cache_layer,
		    char prefix[QMW_TENSOR_NAME_BYTES]);

/** Checks "<prefix>.{gate,up,down}_proj.{weight,bias}" without reading. */
qmla_status_t qmw_mlp_check(const struct qmw_checkpoint *checkpoint, const char *prefix,
			    uint32_t hidden, uint32_t width, bool biased);

/** Reads and packs them; *parameters grows by the number of elements. */
qmla_status_t qmw_mlp_read(const struct qmw_checkpoint *checkpoint, const char *prefix,
			   uint32_t hidden, uint32_t width, bool biased, uint64_t *parameters,
			   struct qmw_mlp *mlp);
void qmw_mlp_free(struct qmw_mlp *mlp); /**< accepts a zeroed one */

#endif /* QMW_MLP_H */
