/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The steps of a forward call. A call's rows are the items' tokens in order;
 * "tiles" are up to 64 consecutive rows, of whatever sequences; "spans" are the parts
 * of one sequence's block. A row's result depends on neither division.
 */
#ifndef QMW_FORWARD_H
#define QMW_FORWARD_H

#include "client/model/internal.h"

#define QMW_LOGIT_ROWS 16u

/**
 * Keys attended in one pass. A longer past is attended in parts of this many
 * positions and merged, by every caller alike, so that one request's decode step
 * can use all threads and still has the bits of the prefill.
 */
#define QMW_ATTENTION_PART 2048u

/**
 * Checks the items (logs what is wrong: QMLA_ERR_INVALID_ARGUMENT) and fills the
 * context's rows, spans and wanted logits. Changes no sequence.
 */
qmla_status_t qmw_plan(struct qmw_context *context, const struct qmk_pool *pool,
		       const struct qmw_forward_item *items, uint32_t count);

/** Makes the call's tokens part of their sequences. */
void qmw_plan_commit(struct qmw_context *context, const struct qmw_forward_item *items,
		     uint32_t count);

/** Input norm, queries and cache rows of rows [first, first + count) in the context's layer. */
void qmw_layer_begin(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
		     uint32_t count);

/** Output projection, residual and MLP of the context's layer for those rows. */
void qmw_layer_finish(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
		      uint32_t count);

/** y = down(silu(gate(x)) * up(x)): @p x and @p y [count][hidden], count <= 64; @p y may be @p x.
 */
void qmw_layer_mlp(struct qmw_context *context, struct qmw_lane *lane, const struct qmw_mlp *mlp,
		   const float *x, uint32_t count, float *y);

/** As finish, in a layer with experts, up to the choice of experts for those rows of the band. */
void qmw_layer_route(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
		     uint32_t count);

/** And the rest, once the band's experts have run. */
void qmw_layer_mix(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
		   uint32_t count);

/** Readies the planned rows' angles and tiles: once before the first layer. */
void qmw_forward_begin(struct qmw_context *context);

/** Runs one cache layer over the context's hidden rows. */
qmla_status_t qmw_forward_layer(struct qmw_context *context, uint32_t layer);

/** Packs the span's block, when it fills, into its slot. */
void qmw_attention_pack(struct qmw_context *context, struct qmw_lane *lane,
			const struct qmw_span *span);

/** Attention of the span's rows: from context->query to context->heads. */
void qmw_attention_run(struct qmw_context *context, struct qmw_lane *lane,
		       const struct qmw_span *span);

#endif /* QMW_FORWARD_H */
