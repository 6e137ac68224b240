/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * attention.h in double, function by function: for checks of equivalence and of
 * gradients. The same sources, compiled twice. Angles are the model's float32 ones.
 */
#ifndef QMW_CALIBRATE_ATTENTION64_H
#define QMW_CALIBRATE_ATTENTION64_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/config.h"
#include "client/model/rope.h"

struct qmw_operator64;
struct qmw_passage64;

/** qmw_attention_weights in double. */
struct qmw_attention_weights64 {
	const double *query, *query_bias;
	const double *query_a, *query_a_bias, *query_norm;
	const double *query_b;
	const double *kv_a, *kv_a_bias;
	const double *kv_norm;
	const double *kv_b;
	const double *output, *output_bias;
	double kv_norm_eps, query_norm_eps;
};

struct qmw_near64 {
	const double *content, *key;
	uint32_t block, recent, sink;
};

struct qmw_rows64 {
	const double *content, *key;
	const struct qmw_near64 *near;
	const double *value_content;
};

qmla_status_t qmw_operator64_create(const struct qmw_config *config, const struct qmw_rope *rope,
				    const struct qmw_attention_weights64 *weights,
				    struct qmw_operator64 **op);
void qmw_operator64_destroy(struct qmw_operator64 *op);

qmla_status_t qmw_passage64_create(const struct qmw_operator64 *op, const double *input, uint32_t n,
				   struct qmw_passage64 **passage);
void qmw_passage64_destroy(struct qmw_passage64 *passage);

uint32_t qmw_passage64_tokens(const struct qmw_passage64 *passage);
const double *qmw_passage64_content(const struct qmw_passage64 *passage);
const double *qmw_passage64_key(const struct qmw_passage64 *passage);
const double *qmw_passage64_query(const struct qmw_passage64 *passage);

qmla_status_t qmw_passage64_output(const struct qmw_passage64 *passage,
				   const struct qmw_rows64 *rows, double *output);
qmla_status_t qmw_passage64_vjp(const struct qmw_passage64 *passage, const struct qmw_rows64 *rows,
				uint32_t count, const double *cotangent, double *content,
				double *key);
qmla_status_t qmw_passage64_jvp(const struct qmw_passage64 *passage, const struct qmw_rows64 *rows,
				const double *content, const double *key, double *output);
qmla_status_t qmw_passage64_loss(const struct qmw_passage64 *passage, const struct qmw_rows64 *rows,
				 const double *reference, double *loss, double *content,
				 double *key);
qmla_status_t qmw_passage64_positional(const struct qmw_passage64 *passage, const double *key,
				       double *error, double *energy, double *gradient);
void qmw_passage64_query_energy(const struct qmw_passage64 *passage, double *energy);
qmla_status_t qmw_passage64_value_norms(const struct qmw_passage64 *passage, const double *content,
					double *norms);
void qmw_passage64_rotate(const struct qmw_passage64 *passage, bool inverse, double *key);

#endif /* QMW_CALIBRATE_ATTENTION64_H */
