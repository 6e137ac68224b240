/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/analysis.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/calibrate/analysis_measure.h"
#include "client/model/stream.h"
#include "common/log.h"

#define COMPONENT "analyze"

struct run {
	const struct qmw_analysis_job *job;
	struct qmw_stream *stream;
	struct qmw_measure_setup setup;
	struct qmw_layer_sums *sums; /* [cache layers] */
	uint32_t count;
	uint32_t sequence; /* that the stream runs now */
	float *hidden;     /* [sequences][length][hidden] */
};

static bool wanted(const struct run *run, uint32_t layer)
{
	return !run->job->layers || run->job->layers[layer];
}

static qmla_status_t visit(void *user, uint32_t layer, const struct qmw_attention_weights *weights,
			   const float *input, uint32_t n)
{
	struct run *run = user;

	(void)n;
	if (!wanted(run, layer))
		return QMLA_OK;
	return qmw_measure_passage(&run->setup, qmw_stream_config(run->stream),
				   qmw_stream_rope(run->stream), weights, input,
				   (uint64_t)layer << 16 | run->sequence, &run->sums[layer]);
}

static qmla_status_t check(const struct run *run)
{
	const struct qmw_analysis_job *job = run->job;

	if (job->sequences == 0 || job->length == 0 || job->probes == 0 || !(job->nmse > 0)) {
		qmc_error(COMPONENT, "sequences, length, probes and NMSE must be above zero");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (job->layers && job->layer_count != run->count) {
		qmc_error(COMPONENT,
			  "layers of a model with %" PRIu32 " were chosen; this one has %" PRIu32,
			  job->layer_count, run->count);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

static qmla_status_t open_run(struct run *run)
{
	const struct qmw_analysis_job *job = run->job;
	uint32_t threads = job->threads ? job->threads : qmw_team_processors(), chosen = 0;
	qmla_status_t status = qmw_stream_open(job->model, threads, &run->stream);

	if (status != QMLA_OK)
		return status;
	run->count = qmw_stream_cache_layers(run->stream);
	status = check(run);
	if (status == QMLA_OK)
		status = qmw_team_create(threads, &run->setup.team);
	if (status != QMLA_OK)
		return status;
	run->sums = calloc(run->count, sizeof(*run->sums));
	run->hidden = malloc((size_t)job->sequences * job->length *
			     qmw_stream_config(run->stream)->hidden * sizeof(*run->hidden));
	if (!run->sums || !run->hidden)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t i = 0; i < run->count && status == QMLA_OK; i++) {
		status = qmw_layer_sums_init(qmw_stream_config(run->stream), &run->sums[i]);
		chosen += wanted(run, i);
	}
	run->setup.job = job;
	run->setup.units = qmw_measure_units(job) * job->sequences * chosen;
	return status;
}

static void close_run(struct run *run)
{
	for (uint32_t i = 0; run->sums && i < run->count; i++)
		qmw_layer_sums_fini(&run->sums[i]);
	free(run->sums);
	free(run->hidden);
	qmw_team_destroy(run->setup.team);
	qmw_stream_close(run->stream);
}

static qmla_status_t run_layer(struct run *run, uint32_t decoder_layer)
{
	size_t rows = (size_t)run->job->length * qmw_stream_config(run->stream)->hidden;
	qmla_status_t status = qmw_stream_load(run->stream, decoder_layer);

	for (uint32_t s = 0; s < run->job->sequences && status == QMLA_OK; s++) {
		run->sequence = s;
		status = qmw_stream_run(run->stream, run->hidden + s * rows, run->job->length,
					visit, run);
	}
	return status;
}

/* Layers behind the last one that was asked for are not run. */
static qmla_status_t run_layers(struct run *run)
{
	const struct qmw_analysis_job *job = run->job;
	size_t rows = (size_t)job->length * qmw_stream_config(run->stream)->hidden;
	qmla_status_t status = QMLA_OK;
	uint32_t first = 0, count = 0, last = 0;

	for (uint32_t i = 0; i < run->count; i++)
		last = wanted(run, i) ? i : last;
	for (uint32_t s = 0; s < job->sequences && status == QMLA_OK; s++)
		status = qmw_stream_embed(run->stream, job->tokens + (size_t)s * job->length,
					  job->length, run->hidden + s * rows);
	for (uint32_t layer = 0; first + count <= last && status == QMLA_OK; layer++) {
		qmw_stream_layer_span(run->stream, layer, &first, &count);
		status = run_layer(run, layer);
	}
	return status;
}

static void summarise(struct qmw_analysis *analysis)
{
	struct qmw_analysis_summary *sum = &analysis->summary;

	for (unsigned s = 0; s < QMW_SHAPES; s++)
		sum->low[s] = INFINITY;
	for (uint32_t i = 0; i < analysis->count; i++) {
		const struct qmw_analysis_layer *layer = &analysis->layers[i];

		if (!layer->done)
			continue;
		sum->layers++;
		sum->tightest = fmax(sum->tightest, layer->tightest);
		for (unsigned s = 0; s < QMW_SHAPES; s++) {
			sum->mean[s] += log(layer->ratio[s]);
			sum->low[s] = fmin(sum->low[s], layer->ratio[s]);
			sum->high[s] = fmax(sum->high[s], layer->ratio[s]);
			sum->log_error[s] += fabs(log(layer->predicted[s] / layer->ratio[s]));
		}
	}
	for (unsigned s = 0; s < QMW_SHAPES; s++) {
		sum->mean[s] = exp(sum->mean[s] / sum->layers);
		sum->log_error[s] /= sum->layers;
	}
}

static qmla_status_t make_result(const struct run *run, struct qmw_analysis **analysis)
{
	const struct qmw_analysis_job *job = run->job;
	const struct qmw_rope *rope = qmw_stream_rope(run->stream);
	struct qmw_analysis *made = calloc(1, sizeof(*made));

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	snprintf(made->model, sizeof(made->model), "%s", job->model);
	made->sequences = job->sequences;
	made->length = job->length;
	made->probes = job->probes;
	made->seed = job->seed;
	made->nmse = job->nmse;
	made->pairs = rope->dim / 2;
	made->layers = calloc(run->count, sizeof(*made->layers));
	made->count = made->layers ? run->count : 0;
	for (uint32_t i = 0; i < made->count; i++) {
		made->layers[i].pair_share = calloc(made->pairs, sizeof(double));
		if (!made->layers[i].pair_share)
			goto err_made;
		if (wanted(run, i))
			qmw_layer_figures(&run->sums[i], rope, &made->layers[i]);
	}
	if (!made->layers)
		goto err_made;
	summarise(made);
	*analysis = made;
	return QMLA_OK;
err_made:
	qmw_analysis_destroy(made);
	return QMLA_ERR_NO_MEMORY;
}

qmla_status_t qmw_analysis_run(const struct qmw_analysis_job *job, struct qmw_analysis **analysis)
{
	struct run run = {.job = job};
	qmla_status_t status = open_run(&run);

	if (status == QMLA_OK)
		status = run_layers(&run);
	if (status == QMLA_OK)
		status = make_result(&run, analysis);
	close_run(&run);
	return status;
}

void qmw_analysis_destroy(struct qmw_analysis *analysis)
{
	if (!analysis)
		return;
	for (uint32_t i = 0; i < analysis->count; i++)
		free(analysis->layers[i].pair_share);
	free(analysis->layers);
	free(analysis);
}
