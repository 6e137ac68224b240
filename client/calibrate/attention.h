/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * One attention sub-layer as a function of its cache rows, in the checkpoint's own
 * (not absorbed) form, with its derivatives: what calibration learns from and what
 * the error analysis measures. Float32 with BLAS; attention64.h is the same in double.
 *
 *   u_t  latent normalised without weight      [d_c]   "content row"
 *   k_t  RoPE key before the rotation          [d_r]   "key row", the checkpoint's pair order
 *   Y    output after o_proj                   [n][hidden]
 *
 *   c = Gamma u,  K_h = [W_UK,h c | RoPE k],  V_h = W_UV,h c,  P_h = softmax(tau Q_h K_h^T + mask)
 *   Y = sum_h P_h V_h W_O,h^T + bias          (paper.md, "Setting"; quantisation.md, 3)
 *
 * Every function takes rows in these coordinates, whatever a transform makes of them:
 * quantise in the cache's own coordinates, come back to (u', k'), and chain gradients by
 * u' = zhat S^-1 R^T + mean. A quantiser that works on rotated keys goes there and back
 * with qmw_passage_rotate.
 *
 * Objects are immutable after their creation: any number of threads may call functions
 * on the same passage at once. Each call works on the calling thread, allocates its own
 * scratch of O(n (d_n + d_r + d_v + 128) + 128 n) numbers and takes queries in blocks of
 * 128. Results do not depend on the thread. BLAS must run single-threaded then
 * (openblas_set_num_threads(1)); run passages in parallel instead. QMLA_ERR_NO_MEMORY is
 * the only error where none is named.
 */
#ifndef QMW_CALIBRATE_ATTENTION_H
#define QMW_CALIBRATE_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/config.h"
#include "client/model/rope.h"
#include "client/model/stream.h"

struct qmw_operator; /**< a sub-layer's weights */
struct qmw_passage;  /**< one sequence that it reads: queries, content rows and key rows */

/**
 * Rows that some queries see instead, as the cache rule has it: query i reads row j from
 * here when j < sink, j >= i - i % block, or j > i - recent. Zero switches a clause off.
 */
struct qmw_near {
	const float *content, *key; /**< [n][d_c], [n][d_r]; NULL: the passage's own */
	uint32_t block, recent, sink;
};

/** What the cache holds. */
struct qmw_rows {
	const float *content, *key;  /**< [n][d_c], [n][d_r]; NULL: the passage's own */
	const struct qmw_near *near; /**< NULL: every query reads the rows above */
	/**
	 * Rows that values are made of instead of the content above; NULL: the same. It takes
	 * a content error's two ways to the output apart, matching and aggregation, in
	 * qmw_passage_output alone: the derivatives are INVALID_ARGUMENT with it.
	 */
	const float *value_content;
};

/**
 * Takes the weights by reference: they must live as long as the operator and its
 * passages (qmw_stream_load ends a layer's). @p config and @p rope are copied.
 */
qmla_status_t qmw_operator_create(const struct qmw_config *config, const struct qmw_rope *rope,
				  const struct qmw_attention_weights *weights,
				  struct qmw_operator **op);
void qmw_operator_destroy(struct qmw_operator *op); /**< accepts NULL */

/**
 * Projects @p input [n][hidden] (the sub-layer's normalised input) at positions
 * 0 … n-1. Keeps no reference to it. Holds n (H (d_n + d_r) + d_c + 2 d_r) numbers.
 */
qmla_status_t qmw_passage_create(const struct qmw_operator *op, const float *input, uint32_t n,
				 struct qmw_passage **passage);
void qmw_passage_destroy(struct qmw_passage *passage); /**< accepts NULL */

uint32_t qmw_passage_tokens(const struct qmw_passage *passage);
const float *qmw_passage_content(const struct qmw_passage *passage); /**< u [n][d_c] */
const float *qmw_passage_key(const struct qmw_passage *passage);     /**< k [n][d_r] */

/** Queries [n][H][d_n + d_r], the last d_r rotated by their position; tau not in. */
const float *qmw_passage_query(const struct qmw_passage *passage);

/** Y [n][hidden] with the given rows; @p rows NULL: exact. */
qmla_status_t qmw_passage_output(const struct qmw_passage *passage, const struct qmw_rows *rows,
				 float *output);

/**
 * Vector-Jacobian products at @p rows for @p count cotangents at once (the softmax is
 * computed once for all): gradients of <G, Y> with respect to rows->content and rows->key.
 * @p cotangent [count][n][hidden], @p content [count][n][d_c], @p key [count][n][d_r]
 * (before the rotation); either output may be NULL. Near rows are constants.
 */
qmla_status_t qmw_passage_vjp(const struct qmw_passage *passage, const struct qmw_rows *rows,
			      uint32_t count, const float *cotangent, float *content, float *key);

/**
 * Jacobian-vector product at @p rows: the first-order change of Y, [n][hidden], when the
 * rows move by @p content [n][d_c] and @p key [n][d_r]; either may be NULL.
 */
qmla_status_t qmw_passage_jvp(const struct qmw_passage *passage, const struct qmw_rows *rows,
			      const float *content, const float *key, float *output);

/**
 * The paper's content objective, ||Y(rows) - reference||^2 / ||reference||^2, and its
 * gradients as in qmw_passage_vjp. @p reference is qmw_passage_output with exact rows.
 * Both gradients NULL: the loss alone, at half the cost.
 */
qmla_status_t qmw_passage_loss(const struct qmw_passage *passage, const struct qmw_rows *rows,
			       const float *reference, double *loss, float *content, float *key);

/**
 * The paper's RoPE objective. With Z_h = Qr_h Kr^T over causal pairs (without tau):
 * *error = sum_h ||Z_h(key) - Z_h(own)||^2, *energy = sum_h ||Z_h(own)||^2, and
 * @p gradient [n][d_r] of *error / *energy with respect to @p key (before the rotation;
 * NULL: not wanted). Exact, in O(n d_r (H + d_r)): the sum over queries at and behind a
 * key is a d_r x d_r matrix.
 */
qmla_status_t qmw_passage_positional(const struct qmw_passage *passage, const float *key,
				     double *error, double *energy, float *gradient);

/** Mean over tokens and heads of a query pair's squared length: @p energy [d_r / 2]. */
void qmw_passage_query_energy(const struct qmw_passage *passage, double *energy);

/**
 * Squared spectral norms ||C B_h||_2^2 of every head, B_h = W_UV,h W_O,h, C the content
 * rows with Gamma (@p content NULL: own): @p norms [H]. An upper bound that is tight to
 * 1e-4 (trace of the 2^16th power).
 */
qmla_status_t qmw_passage_value_norms(const struct qmw_passage *passage, const float *content,
				      double *norms);

/** Rotates rows [n][d_r] in place by their positions, or exactly back. Pure. */
void qmw_passage_rotate(const struct qmw_passage *passage, bool inverse, float *key);

#endif /* QMW_CALIBRATE_ATTENTION_H */
