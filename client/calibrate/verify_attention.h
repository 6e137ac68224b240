/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * One attention sub-layer in double, written down plainly: nothing absorbed, no cache. The
 * yardstick of a fusion, so it shares no code with what it judges.
 */
#ifndef QMW_VERIFY_ATTENTION_H
#define QMW_VERIFY_ATTENTION_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/config.h"
#include "client/model/rope.h"

/** Weights as struct qmw_attention_weights has them; a NULL query_a: none. */
struct qmw_verify_weights {
	double *query_a, *query_a_bias, *query_norm;
	double *query, *query_bias; /**< q_proj, or q_b_proj with query_a */
	double *kv_a, *kv_a_bias, *kv_norm, *kv_b;
	double *output, *output_bias;
	double kv_norm_eps, query_norm_eps;
};

/** @p y [n][hidden] from @p input [n][hidden], positions 0 … n-1. QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_verify_attention(const struct qmw_config *config, const struct qmw_rope *rope,
				   const struct qmw_verify_weights *weights, const double *input,
				   uint32_t n, double *y);

#endif /* QMW_VERIFY_ATTENTION_H */
