/* SPDX-License-Identifier: Apache-2.0 */
/* The output and its first-order change. */
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/attention_real.h"

/* O [rows][d_v] = P V, near rows where the rule says so. */
static void attend(const struct qmw_passage *passage, const struct qmw_span *span,
		   struct qmw_head_scratch *scratch, qmw_real *attended)
{
	size_t n = passage->n, d_v = passage->op->config.value_dim;

	if (!scratch->rule) {
		qmw_gemm(false, false, span->rows, d_v, span->keys, 1, scratch->weight, n,
			 scratch->far.value, d_v, 0, attended, d_v);
		return;
	}
	qmw_head_mask_near(scratch, span, false, scratch->weight, scratch->spare, n);
	qmw_gemm(false, false, span->rows, d_v, span->keys, 1, scratch->spare, n,
		 scratch->far.value, d_v, 0, attended, d_v);
	qmw_head_mask_near(scratch, span, true, scratch->weight, scratch->spare, n);
	qmw_gemm(false, false, span->rows, d_v, span->keys, 1, scratch->spare, n,
		 scratch->near.value, d_v, 1, attended, d_v);
}

/* Y += O W_O,h^T for one block of queries. */
static void project_out(const struct qmw_passage *passage, const struct qmw_span *span,
			uint32_t head, const qmw_real *attended, qmw_real *output)
{
	const struct qmw_config *config = &passage->op->config;
	size_t d_v = config->value_dim, hidden = config->hidden;

	qmw_gemm(false, true, span->rows, hidden, d_v, 1, attended, d_v,
		 passage->op->weights.output + head * d_v, config->heads * d_v, 1,
		 output + span->first * hidden, hidden);
}

static void start_output(const struct qmw_passage *passage, const qmw_real *bias, qmw_real *output)
{
	size_t hidden = passage->op->config.hidden;

	for (size_t t = 0; t < passage->n; t++) {
		if (bias)
			memcpy(output + t * hidden, bias, hidden * sizeof(*output));
		else
			memset(output + t * hidden, 0, hidden * sizeof(*output));
	}
}

qmla_status_t qmw_passage_output(const struct qmw_passage *passage, const struct qmw_rows *rows,
				 qmw_real *output)
{
	struct qmw_head_scratch scratch = {0};
	qmw_real *attended =
		malloc(QMW_QUERY_BLOCK * passage->op->config.value_dim * sizeof(*attended));
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (attended)
		status = qmw_head_scratch_init(passage, rows, &scratch);
	if (status != QMLA_OK)
		goto out;
	start_output(passage, passage->op->weights.output_bias, output);
	for (uint32_t head = 0; head < passage->op->config.heads; head++) {
		qmw_head_load(passage, head, &scratch);
		for (uint32_t first = 0; first < passage->n; first += QMW_QUERY_BLOCK) {
			struct qmw_span span = qmw_query_span(passage->n, first);

			qmw_head_weights(passage, &span, &scratch);
			attend(passage, &span, &scratch, attended);
			project_out(passage, &span, head, attended, output);
		}
	}
out:
	qmw_head_scratch_fini(&scratch);
	free(attended);
	return status;
}

/* dP = P (dS - rowsum(P dS)), in place of dS. */
static void softmax_change(const qmw_real *weight, const struct qmw_span *span, size_t n,
			   qmw_real *change)
{
	for (uint32_t r = 0; r < span->rows; r++) {
		const qmw_real *p = weight + r * n;
		qmw_real *d = change + r * n;
		double mean = 0;

		for (uint32_t j = 0; j < span->keys; j++)
			mean += (double)p[j] * (double)d[j];
		for (uint32_t j = 0; j < span->keys; j++)
			d[j] = p[j] * (d[j] - (qmw_real)mean);
	}
}

/* O's change for one block: dP V + P dV, only far rows move. */
static void attend_change(const struct qmw_passage *passage, const struct qmw_span *span,
			  struct qmw_head_scratch *scratch, const struct qmw_head_rows *tangent,
			  qmw_real *attended)
{
	size_t n = passage->n, d_qk = qmw_query_dim(passage->op);
	size_t d_v = passage->op->config.value_dim, ldq = passage->op->config.heads * d_qk;
	qmw_real *change = scratch->spare, *weight = scratch->weight;

	qmw_gemm(false, true, span->rows, span->keys, d_qk,
		 (qmw_real)passage->op->rope.softmax_scale,
		 passage->query + span->first * ldq + scratch->head * d_qk, ldq, tangent->key, d_qk,
		 0, change, n);
	if (scratch->rule)
		qmw_head_mask_near(scratch, span, false, change, change, n);
	softmax_change(weight, span, n, change);
	if (!scratch->rule) {
		qmw_gemm(false, false, span->rows, d_v, span->keys, 1, change, n,
			 scratch->far.value, d_v, 0, attended, d_v);
		qmw_gemm(false, false, span->rows, d_v, span->keys, 1, weight, n, tangent->value,
			 d_v, 1, attended, d_v);
		return;
	}
	qmw_head_mask_near(scratch, span, false, weight, weight, n);
	qmw_gemm(false, false, span->rows, d_v, span->keys, 1, weight, n, tangent->value, d_v, 0,
		 attended, d_v);
	qmw_head_mask_near(scratch, span, false, change, weight, n);
	qmw_gemm(false, false, span->rows, d_v, span->keys, 1, weight, n, scratch->far.value, d_v,
		 1, attended, d_v);
	qmw_head_mask_near(scratch, span, true, change, weight, n);
	qmw_gemm(false, false, span->rows, d_v, span->keys, 1, weight, n, scratch->near.value, d_v,
		 1, attended, d_v);
}

static void jvp_heads(const struct qmw_passage *passage, struct qmw_head_scratch *scratch,
		      struct qmw_head_scratch *tangent, qmw_real *attended, qmw_real *output)
{
	for (uint32_t head = 0; head < passage->op->config.heads; head++) {
		qmw_head_load(passage, head, scratch);
		qmw_head_load(passage, head, tangent);
		for (uint32_t first = 0; first < passage->n; first += QMW_QUERY_BLOCK) {
			struct qmw_span span = qmw_query_span(passage->n, first);

			qmw_head_weights(passage, &span, scratch);
			attend_change(passage, &span, scratch, &tangent->far, attended);
			project_out(passage, &span, head, attended, output);
		}
	}
}

qmla_status_t qmw_passage_jvp(const struct qmw_passage *passage, const struct qmw_rows *rows,
			      const qmw_real *content, const qmw_real *key, qmw_real *output)
{
	const struct qmw_config *config = &passage->op->config;
	struct qmw_head_scratch scratch = {0}, tangent = {0};
	size_t wide =
		config->content_dim > config->rope_dim ? config->content_dim : config->rope_dim;
	qmw_real *zero, *attended;
	struct qmw_rows moved;
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (rows && rows->value_content)
		return QMLA_ERR_INVALID_ARGUMENT;
	zero = calloc(passage->n * wide, sizeof(*zero));
	attended = malloc(QMW_QUERY_BLOCK * (size_t)config->value_dim * sizeof(*attended));
	moved = (struct qmw_rows){.content = content ? content : zero, .key = key ? key : zero};
	if (zero && attended)
		status = qmw_head_scratch_init(passage, rows, &scratch);
	if (status == QMLA_OK)
		status = qmw_head_scratch_init(passage, &moved, &tangent);
	if (status == QMLA_OK) {
		start_output(passage, NULL, output);
		jvp_heads(passage, &scratch, &tangent, attended, output);
	}
	qmw_head_scratch_fini(&tangent);
	qmw_head_scratch_fini(&scratch);
	free(attended);
	free(zero);
	return status;
}
