/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/verify.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/attention64.h"
#include "client/model/fuse.h"
#include "client/model/numeric.h"
#include "client/model/stream.h"
#include "common/log.h"

#define COMPONENT  "verify"
#define LAYER_ROWS 64u  /* tokens that a sub-layer is compared on */
#define LOGIT_ROWS 128u /* logits in memory at a time */

/* A sub-layer's weights, to be fused in place. A NULL query_a: none. */
struct weights {
	double *query_a, *query_a_bias, *query_norm;
	double *query, *query_bias; /* q_proj, or q_b_proj with query_a */
	double *kv_a, *kv_a_bias, *kv_norm, *kv_b;
	double *output, *output_bias;
	double kv_norm_eps, query_norm_eps;
};

struct verification {
	const struct qmw_verify_job *job;
	struct qmw_stream *stream; /* of the checkpoint at work */
	float *hidden;             /* [sequences][length][hidden] */
	uint32_t done, total;      /* decoder layers, of both */
	bool compare;              /* the stream is the source's, the sequence the first */
	struct qmw_verify_report *report;
};

static void free_weights(struct weights *w)
{
	free(w->query_a);
	free(w->query_a_bias);
	free(w->query_norm);
	free(w->query);
	free(w->query_bias);
	free(w->kv_a);
	free(w->kv_a_bias);
	free(w->kv_norm);
	free(w->kv_b);
	free(w->output);
	free(w->output_bias);
}

static qmla_status_t widen_weights(const struct qmw_config *c,
				   const struct qmw_attention_weights *from, struct weights *w)
{
	size_t queries = (size_t)c->heads * (c->nope_dim + c->rope_dim);
	size_t latents = c->content_dim + c->rope_dim, values = (size_t)c->heads * c->value_dim;
	size_t inputs = c->q_rank ? c->q_rank : c->hidden;
	bool low = c->q_rank > 0;

	*w = (struct weights){
		.query_a = qmw_widen(from->query_a, (size_t)c->q_rank * c->hidden),
		.query_a_bias = qmw_widen(from->query_a_bias, c->q_rank),
		.query_norm = qmw_widen(from->query_norm, c->q_rank),
		.query = qmw_widen(low ? from->query_b : from->query, queries * inputs),
		.query_bias = qmw_widen(low ? NULL : from->query_bias, queries),
		.kv_a = qmw_widen(from->kv_a, latents * c->hidden),
		.kv_a_bias = qmw_widen(from->kv_a_bias, latents),
		.kv_norm = qmw_widen(from->kv_norm, c->content_dim),
		.kv_b = qmw_widen(from->kv_b,
				  (size_t)c->heads * (c->nope_dim + c->value_dim) * c->content_dim),
		.output = qmw_widen(from->output, c->hidden * values),
		.output_bias = qmw_widen(from->output_bias, c->hidden),
		.kv_norm_eps = (double)from->kv_norm_eps,
		.query_norm_eps = (double)from->query_norm_eps,
	};
	if (w->query && w->kv_a && w->kv_norm && w->kv_b && w->output &&
	    (!low || (w->query_a && w->query_norm)))
		return QMLA_OK;
	free_weights(w);
	return QMLA_ERR_NO_MEMORY;
}

static qmla_status_t fuse_weights(const struct verification *v, const struct qmw_transform *t,
				  struct weights *w)
{
	const struct qmw_config *c = qmw_stream_config(v->stream);
	const struct qmw_fuse fuse = {.content_dim = c->content_dim,
				      .rope = qmw_stream_rope(v->stream),
				      .rotation = t->rotation,
				      .content_scale = t->content_scale,
				      .rope_angle = t->rope_angle,
				      .rope_scale = t->rope_scale};
	qmla_status_t status = qmw_fuse_kv_a(&fuse, c->hidden, w->kv_a);

	if (!status && w->kv_a_bias)
		status = qmw_fuse_kv_a(&fuse, 1, w->kv_a_bias);
	if (!status)
		status = qmw_fuse_kv_b(&fuse, w->kv_norm, c->heads * (c->nope_dim + c->value_dim),
				       w->kv_b);
	qmw_fuse_queries(&fuse, c->heads, c->nope_dim, c->q_rank ? c->q_rank : c->hidden, w->query);
	if (w->query_bias)
		qmw_fuse_queries(&fuse, c->heads, c->nope_dim, 1, w->query_bias);
	for (uint32_t i = 0; i < c->content_dim; i++)
		w->kv_norm[i] = t->content_scale ? t->content_scale[i] : 1;
	return status;
}

/* |b - a|_F / |a|_F */
static double distance(const double *a, const double *b, size_t count)
{
	double error = 0, energy = 0;

	for (size_t i = 0; i < count; i++) {
		error += (b[i] - a[i]) * (b[i] - a[i]);
		energy += a[i] * a[i];
	}
	return energy > 0 ? sqrt(error / energy) : sqrt(error);
}

/*
 * The sub-layer's output y [n][hidden], positions 0 … n-1: by attention64.h, which shares no
 * code with what is judged here.
 */
static qmla_status_t run_attention(const struct verification *v, const struct weights *w,
				   const double *input, uint32_t n, double *y)
{
	const struct qmw_attention_weights64 weights = {
		.query = w->query_a ? NULL : w->query,
		.query_bias = w->query_bias,
		.query_a = w->query_a,
		.query_a_bias = w->query_a_bias,
		.query_norm = w->query_norm,
		.query_b = w->query_a ? w->query : NULL,
		.kv_a = w->kv_a,
		.kv_a_bias = w->kv_a_bias,
		.kv_norm = w->kv_norm,
		.kv_b = w->kv_b,
		.output = w->output,
		.output_bias = w->output_bias,
		.kv_norm_eps = w->kv_norm_eps,
		.query_norm_eps = w->query_norm_eps,
	};
	struct qmw_passage64 *passage = NULL;
	struct qmw_operator64 *op;
	qmla_status_t status = qmw_operator64_create(qmw_stream_config(v->stream),
						     qmw_stream_rope(v->stream), &weights, &op);

	if (status)
		return status;
	status = qmw_passage64_create(op, input, n, &passage);
	if (!status)
		status = qmw_passage64_output(passage, NULL, y);
	qmw_passage64_destroy(passage);
	qmw_operator64_destroy(op);
	return status;
}

/* One sub-layer before and after fusing, on the same input. */
static qmla_status_t compare_outputs(struct verification *v, uint32_t layer, struct weights *w,
				     const double *input, uint32_t n, double *y)
{
	size_t count = (size_t)n * qmw_stream_config(v->stream)->hidden;
	double error;
	qmla_status_t status = run_attention(v, w, input, n, y);

	if (!status)
		status = fuse_weights(v, &v->job->layers[layer], w);
	if (!status)
		status = run_attention(v, w, input, n, y + count);
	if (status)
		return status;
	error = distance(y, y + count, count);
	/* A NaN must not pass for small. */
	if (!(error <= v->report->layer_error)) {
		v->report->layer_error = error;
		v->report->worst_layer = layer;
	}
	return QMLA_OK;
}

static qmla_status_t visit(void *user, uint32_t cache_layer,
			   const struct qmw_attention_weights *weights, const float *input,
			   uint32_t n)
{
	struct verification *v = user;
	uint32_t hidden = qmw_stream_config(v->stream)->hidden;
	uint32_t rows = n < LAYER_ROWS ? n : LAYER_ROWS;
	struct weights w;
	double *wide, *y;
	qmla_status_t status;

	if (!v->compare)
		return QMLA_OK;
	status = widen_weights(qmw_stream_config(v->stream), weights, &w);
	if (status)
		return status;
	wide = qmw_widen(input, (size_t)rows * hidden);
	y = malloc(2 * (size_t)rows * hidden * sizeof(*y));
	status =
		wide && y ? compare_outputs(v, cache_layer, &w, wide, rows, y) : QMLA_ERR_NO_MEMORY;
	free(wide);
	free(y);
	free_weights(&w);
	return status;
}

static qmla_status_t run_layer(struct verification *v, uint32_t layer, bool source)
{
	size_t stride = (size_t)v->job->length * qmw_stream_config(v->stream)->hidden;
	qmla_status_t status = qmw_stream_load(v->stream, layer);

	for (uint32_t s = 0; s < v->job->sequences && !status; s++) {
		v->compare = source && s == 0;
		status =
			qmw_stream_run(v->stream, v->hidden + s * stride, v->job->length, visit, v);
	}
	v->done++;
	if (!status && v->job->progress && !v->job->progress(v->job->user, v->done, v->total))
		status = QMLA_ERR_CANCELLED;
	return status;
}

/* Loss of @p count tokens of a sequence from token @p first on; the last has no next one. */
static qmla_status_t add_loss(struct verification *v, const float *hidden, const uint32_t *tokens,
			      uint32_t first, uint32_t count, float *logits, double *loss)
{
	const struct qmw_config *c = qmw_stream_config(v->stream);
	qmla_status_t status =
		qmw_stream_logits(v->stream, hidden + (size_t)first * c->hidden, count, logits);

	for (uint32_t i = 0; i < count && !status; i++) {
		const float *row = logits + (size_t)i * c->vocab;

		if (first + i + 1 < v->job->length)
			*loss +=
				qmw_log_sum_exp(row, c->vocab) - (double)row[tokens[first + i + 1]];
	}
	return status;
}

static qmla_status_t measure_loss(struct verification *v, double *nats)
{
	const struct qmw_config *c = qmw_stream_config(v->stream);
	uint32_t length = v->job->length;
	float *logits = malloc((size_t)LOGIT_ROWS * c->vocab * sizeof(*logits));
	qmla_status_t status = logits ? QMLA_OK : QMLA_ERR_NO_MEMORY;
	double loss = 0;

	for (uint32_t s = 0; s < v->job->sequences && !status; s++) {
		for (uint32_t i = 0; i < length && !status; i += LOGIT_ROWS)
			status = add_loss(v, v->hidden + (size_t)s * length * c->hidden,
					  v->job->tokens + (size_t)s * length, i,
					  length - i < LOGIT_ROWS ? length - i : LOGIT_ROWS, logits,
					  &loss);
	}
	free(logits);
	if (!status)
		*nats = loss / ((double)v->job->sequences * (length - 1));
	return status;
}

static qmla_status_t run_model(struct verification *v, bool source, double *nats)
{
	const struct qmw_verify_job *job = v->job;
	size_t stride = (size_t)job->length * qmw_stream_config(v->stream)->hidden;
	qmla_status_t status = QMLA_OK;

	v->hidden = malloc(job->sequences * stride * sizeof(*v->hidden));
	if (!v->hidden)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t s = 0; s < job->sequences && !status; s++)
		status = qmw_stream_embed(v->stream, job->tokens + (size_t)s * job->length,
					  job->length, v->hidden + s * stride);
	for (uint32_t i = 0; i < qmw_stream_layers(v->stream) && !status; i++)
		status = run_layer(v, i, source);
	if (!status)
		status = measure_loss(v, nats);
	free(v->hidden);
	v->hidden = NULL;
	return status;
}

static qmla_status_t check_job(const struct verification *v)
{
	const struct qmw_config *c = qmw_stream_config(v->stream);
	const struct qmw_verify_job *job = v->job;

	if (job->count != qmw_stream_cache_layers(v->stream)) {
		qmc_error(COMPONENT, "%" PRIu32 " transforms for a model of %" PRIu32 " layers",
			  job->count, qmw_stream_cache_layers(v->stream));
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	for (uint32_t i = 0; i < job->count; i++)
		if (job->layers[i].content_dim != c->content_dim ||
		    job->layers[i].rope_dim != c->rope_dim) {
			qmc_error(COMPONENT, "transform of layer %" PRIu32 " is of another model",
				  i);
			return QMLA_ERR_INVALID_ARGUMENT;
		}
	return QMLA_OK;
}

static qmla_status_t run_directory(struct verification *v, const char *directory, bool source,
				   double *nats)
{
	qmla_status_t status = qmw_stream_open(directory, v->job->threads, &v->stream);

	if (status)
		return status;
	if (source)
		v->total = 2 * qmw_stream_layers(v->stream);
	status = check_job(v);
	if (!status)
		status = run_model(v, source, nats);
	qmw_stream_close(v->stream);
	v->stream = NULL;
	return status;
}

/* The verdict; written so that a NaN fails. */
static bool differs(const struct qmw_verify_report *r, double loss_bound)
{
	bool layers = !(r->layer_error <= QMW_VERIFY_LAYER_BOUND);
	bool loss = !(r->drift <= loss_bound);

	if (layers)
		qmc_error(COMPONENT,
			  "the fused layer %" PRIu32 " is another function: its output differs by "
			  "%.2e, allowed are %.0e; do not use this checkpoint",
			  r->worst_layer, r->layer_error, QMW_VERIFY_LAYER_BOUND);
	if (loss)
		qmc_error(COMPONENT,
			  "the fused checkpoint's loss is %.5f nats a token, its source's %.5f: "
			  "the difference may be %g (rounding the changed weights to their dtype "
			  "again: FP8 needs a wider --loss-bound); do not use this checkpoint",
			  r->fused_nats, r->source_nats, loss_bound);
	return layers || loss;
}

qmla_status_t qmw_verify(const struct qmw_verify_job *job, struct qmw_verify_report *report)
{
	struct qmw_verify_report measured = {.drift = 0};
	struct verification v = {.job = job, .report = &measured};
	qmla_status_t status;

	if (job->sequences == 0 || job->length < 2) {
		qmc_error(COMPONENT, "verifying needs at least one sequence of two tokens");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	status = run_directory(&v, job->source, true, &measured.source_nats);
	if (!status)
		status = run_directory(&v, job->fused, false, &measured.fused_nats);
	if (status)
		return status;
	measured.drift = fabs(measured.fused_nats - measured.source_nats);
	measured.differs =
		differs(&measured, job->loss_bound > 0 ? job->loss_bound : QMW_VERIFY_LOSS_BOUND);
	*report = measured;
	return measured.differs ? QMLA_ERR_INTERNAL : QMLA_OK;
}
