/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over the float32 cache: plain matrix products, the yardstick of the packed one. */
#include <cblas.h>
#include <math.h>

#include "client/model/forward.h"

/* Scores of one head over its visible keys, to weights that sum to one. */
static void softmax(float *scores, uint32_t count, float scale)
{
	float max = -INFINITY, sum = 0;

	for (uint32_t t = 0; t < count; t++)
		max = fmaxf(max, scores[t]);
	for (uint32_t t = 0; t < count; t++) {
		scores[t] = expf(scale * (scores[t] - max));
		sum += scores[t];
	}
	for (uint32_t t = 0; t < count; t++)
		scores[t] /= sum;
}

/* All heads of one query over the first @total keys, those it sees; scores is [H][total]. */
static void attend_row(const struct qmw_context *context, struct qmw_lane *lane, uint32_t row,
		       const float *keys, uint32_t total, float *scores)
{
	const struct qmw_config *c = &context->model->config;
	blasint heads = (blasint)c->heads, content = (blasint)c->content_dim;
	blasint rope = (blasint)c->rope_dim, width = content + rope, n = (blasint)total;
	const float *q = lane->query_content + (size_t)row * c->heads * c->content_dim;
	const float *q_rope = lane->query_rope + (size_t)row * c->heads * c->rope_dim;

	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, heads, n, content, 1, q, content, keys,
		    width, 0, scores, n);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, heads, n, rope, 1, q_rope, rope,
		    keys + content, width, 1, scores, n);
	for (uint32_t h = 0; h < c->heads; h++)
		softmax(scores + (size_t)h * total, total, context->model->rope.softmax_scale);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, heads, content, n, 1, scores, n,
		    keys, width, 0, lane->mixed + (size_t)row * c->heads * c->content_dim, content);
}

qmla_status_t qmw_attention_float(struct qmw_context *context, struct qmw_lane *lane,
				  const struct qmw_span *span)
{
	const float *keys = qmw_sequence_float_rows(span->sequence, context->layer);
	float *scores = qmw_buffer_reserve(&lane->workspace, (size_t)context->model->config.heads *
								     span->total * sizeof(*scores));

	if (!scores)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t r = 0; r < span->count; r++)
		attend_row(context, lane, r, keys, span->total - span->count + r + 1, scores);
	return QMLA_OK;
}
