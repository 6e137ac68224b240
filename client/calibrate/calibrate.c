/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/calibrate.h"

#include <cblas.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/run.h"
#include "common/log.h"

#define COMPONENT "calibrate"

bool qmw_run_tell(struct qmw_run *run, struct qmw_calibrate_progress progress)
{
	progress.cache_layers = run->layers;
	if (run->job->progress && !run->job->progress(run->job->user, &progress))
		run->cancelled = true;
	return !run->cancelled;
}

static bool tell_walk(void *user, uint32_t cache_layer, uint32_t done, uint32_t of)
{
	return qmw_run_tell(user, (struct qmw_calibrate_progress){.stage = QMW_STAGE_RUN,
								  .cache_layer = cache_layer,
								  .done = done,
								  .of = of});
}

/* Everything beside the model's files that decides the result. */
static char *describe(const struct qmw_calibrate_job *job, const struct qmw_corpus *corpus)
{
	uint8_t digest[QMC_SHA256_BYTES];
	char hex[2 * QMC_SHA256_BYTES + 1], *text;
	json_t *run;

	if (qmc_sha256(job->tokens, job->token_count * sizeof(*job->tokens), digest) != QMLA_OK)
		return NULL;
	qmc_hex_encode(digest, sizeof(digest), hex);
	run = json_pack("{s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:s}", "method",
			qmw_method_name(job->method.method), "recipe",
			qmw_method_recipe(job->method.method), "cache", job->cache, "length",
			(json_int_t)corpus->length, "train", (json_int_t)corpus->train, "held_out",
			(json_int_t)corpus->held_out, "probes", (json_int_t)job->method.probes,
			"steps", (json_int_t)job->method.steps, "seed", (json_int_t)job->seed,
			"tokens_sha256", hex);
	text = json_dumps(run, JSON_COMPACT);
	json_decref(run);
	return text;
}

/* Hidden states in front of and behind a layer, inputs of it, outputs, and the checkpoint. */
static uint64_t room_needed(const struct qmw_run *run)
{
	const struct qmw_config *config = qmw_stream_config(run->stream);
	uint64_t sequences = run->corpus.train + run->corpus.held_out;
	uint64_t files = 3 + (run->job->method.method == QMW_METHOD_PAPER);

	return files * sequences * run->corpus.length * config->hidden * sizeof(float);
}

static qmla_status_t begin(struct qmw_run *run)
{
	const struct qmw_calibrate_job *job = run->job;
	struct qmw_workplace_options options = {
		.model = job->model, .output = job->output, .force = job->force};
	char *text = describe(job, &run->corpus);
	qmla_status_t status = text ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	options.run = text;
	/* The model first: a wrong --model is told before anything is made at --out. */
	if (status == QMLA_OK)
		status = qmw_stream_open(job->model, job->threads, &run->stream);
	if (status == QMLA_OK)
		status = qmw_workplace_open(&options, &run->workplace);
	free(text);
	if (status != QMLA_OK)
		return status;
	if (!qmw_workplace_resumed(run->workplace))
		status = qmw_workplace_room(run->workplace, room_needed(run));
	run->layers = qmw_stream_cache_layers(run->stream);
	run->transforms = calloc(run->layers, sizeof(*run->transforms));
	run->figures = calloc(run->layers, sizeof(*run->figures));
	run->known = calloc(run->layers, sizeof(*run->known));
	if (!run->transforms || !run->figures || !run->known)
		return QMLA_ERR_NO_MEMORY;
	run->walk = (struct qmw_walk){
		.stream = run->stream,
		.workplace = run->workplace,
		.corpus = &run->corpus,
		.decoder_layers = qmw_config_decoder_layers(qmw_stream_config(run->stream)),
		.progress = tell_walk,
		.user = run};
	if (status == QMLA_OK)
		status = qmw_team_create(job->threads ? job->threads : qmw_team_processors(),
					 &run->team);
	return status;
}

static void end(struct qmw_run *run)
{
	for (uint32_t i = 0; run->transforms && i < run->layers; i++)
		qmw_transform_free(&run->transforms[i]);
	qmw_team_destroy(run->team);
	qmw_stream_close(run->stream);
	qmw_workplace_close(run->workplace);
	qmw_corpus_fini(&run->corpus);
	free(run->known);
	free(run->figures);
	free(run->transforms);
}

static qmla_status_t pick(struct qmw_run *run)
{
	const struct qmw_calibrate_job *job = run->job;
	qmla_status_t status = qmw_corpus_init(job->tokens, job->token_count, job->length,
					       job->train, job->held_out, &run->corpus);

	if (status == QMLA_ERR_INVALID_ARGUMENT)
		qmc_error(COMPONENT,
			  "the texts have %" PRIu64 " tokens, too few for two sequences of %" PRIu32
			  ": give more text or a smaller --length",
			  job->token_count, job->length);
	if (status == QMLA_OK &&
	    run->corpus.train + run->corpus.held_out < (uint64_t)job->train + job->held_out)
		qmc_warn(COMPONENT,
			 "the texts hold %" PRIu64 " sequences of %" PRIu32 " tokens: %" PRIu32
			 " calibrate and %" PRIu32 " are held out, instead of %" PRIu32
			 " and %" PRIu32,
			 job->token_count / job->length, job->length, run->corpus.train,
			 run->corpus.held_out, job->train, job->held_out);
	return status;
}

qmla_status_t qmw_calibrate(const struct qmw_calibrate_job *job,
			    struct qmw_calibrate_report *report)
{
	struct qmw_calibrate_report found = {0};
	struct qmw_run run = {.job = job};
	qmla_status_t status;

	/* Sequences are spread over our own threads; results must not depend on the BLAS's. */
	openblas_set_num_threads(1);
	status = pick(&run);
	if (status == QMLA_OK)
		status = begin(&run);
	if (status == QMLA_OK)
		status = qmw_run_learn(&run);
	if (status == QMLA_OK)
		status = qmw_run_finish(&run, &found);
	if (status == QMLA_OK || found.verified.differs) {
		found.train = run.corpus.train;
		found.held_out = run.corpus.held_out;
		found.layers = run.layers;
		found.continued = run.continued;
		found.figures = run.figures;
		run.figures = NULL;
		*report = found;
	}
	end(&run);
	return run.cancelled ? QMLA_ERR_CANCELLED : status;
}

void qmw_calibrate_report_free(struct qmw_calibrate_report *report)
{
	free(report->figures);
	memset(report, 0, sizeof(*report));
}
