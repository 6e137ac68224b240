/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/calibrate.h"

#include <cblas.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/corpus.h"
#include "client/calibrate/disk.h"
#include "client/calibrate/figures.h"
#include "client/calibrate/layer_state.h"
#include "client/calibrate/walk.h"
#include "client/calibrate/workplace.h"
#include "common/clock.h"
#include "common/log.h"

#define COMPONENT "calibrate"
#define LAYER     "layer-#.state"
#define OUTPUT    "output.rows"
#define FUSED     "fused"
/* Tokens of the proof: the loss of fewer depends on single ones. */
#define VERIFY_TOKENS 8192u

struct run {
	const struct qmw_calibrate_job *job;
	struct qmw_corpus corpus;
	struct qmw_workplace *workplace;
	struct qmw_stream *stream;
	struct qmw_team *team;
	struct qmw_walk walk;
	uint32_t layers; /* cache layers */
	struct qmw_transform *transforms;
	struct qmw_layer_figures *figures;
	bool *known; /* [layers]: learned, by this run or an earlier one */
	uint32_t continued;
	uint32_t at; /* cache layer at work */
	bool cancelled;
};

/* ---- progress ---- */

static bool tell(struct run *run, struct qmw_calibrate_progress progress)
{
	progress.cache_layers = run->layers;
	if (run->job->progress && !run->job->progress(run->job->user, &progress))
		run->cancelled = true;
	return !run->cancelled;
}

static bool tell_walk(void *user, uint32_t cache_layer, uint32_t done, uint32_t of)
{
	return tell(user, (struct qmw_calibrate_progress){.stage = QMW_STAGE_RUN,
							  .cache_layer = cache_layer,
							  .done = done,
							  .of = of});
}

static void tell_learn(void *user, const char *path, uint32_t done, uint32_t of)
{
	struct run *run = user;

	tell(run, (struct qmw_calibrate_progress){.stage = QMW_STAGE_LEARN,
						  .cache_layer = run->at,
						  .path = path,
						  .done = done,
						  .of = of});
}

static bool tell_wave(void *user)
{
	struct run *run = user;

	return tell(run, (struct qmw_calibrate_progress){.stage = QMW_STAGE_LEARN,
							 .cache_layer = run->at});
}

static bool tell_fuse(void *user, uint64_t done, uint64_t of)
{
	return tell(user, (struct qmw_calibrate_progress){
				  .stage = QMW_STAGE_FUSE, .done = done, .of = of});
}

static bool tell_verify(void *user, uint32_t done, uint32_t of)
{
	return tell(user, (struct qmw_calibrate_progress){
				  .stage = QMW_STAGE_VERIFY, .done = done, .of = of});
}

static bool tell_layer(struct run *run, uint32_t layer, double seconds)
{
	return tell(run, (struct qmw_calibrate_progress){.stage = QMW_STAGE_LAYER,
							 .cache_layer = layer,
							 .done = layer + 1,
							 .of = run->layers,
							 .figures = &run->figures[layer],
							 .seconds = seconds});
}

/* ---- learned layers on the disk ---- */

static qmla_status_t layer_place(const struct run *run, uint32_t layer, char **path,
				 uint8_t tag[QMC_SHA256_BYTES])
{
	qmla_status_t status = qmw_workplace_tag(run->workplace, LAYER, layer, tag);

	if (status != QMLA_OK)
		return status;
	*path = qmw_workplace_path(run->workplace, LAYER, layer);
	return *path ? QMLA_OK : QMLA_ERR_NO_MEMORY;
}

static qmla_status_t load_layer(struct run *run, uint32_t layer)
{
	uint8_t tag[QMC_SHA256_BYTES];
	char *path;
	qmla_status_t status = layer_place(run, layer, &path, tag);

	if (status != QMLA_OK)
		return status;
	status = qmw_layer_state_load(path, tag, &run->transforms[layer], &run->figures[layer]);
	free(path);
	if (status == QMLA_ERR_NOT_FOUND || status == QMLA_ERR_CORRUPT)
		return QMLA_OK;
	if (status != QMLA_OK)
		return status;
	run->known[layer] = true;
	run->continued++;
	return tell_layer(run, layer, 0) ? QMLA_OK : QMLA_ERR_CANCELLED;
}

static qmla_status_t save_layer(const struct run *run, uint32_t layer)
{
	uint8_t tag[QMC_SHA256_BYTES];
	char *path;
	qmla_status_t status = layer_place(run, layer, &path, tag);

	if (status != QMLA_OK)
		return status;
	status = qmw_layer_state_save(path, tag, &run->transforms[layer], &run->figures[layer]);
	free(path);
	return status;
}

/* ---- learning ---- */

/* The exact outputs that the paper's objective compares with. */
static qmla_status_t make_outputs(const struct run *run, struct qmw_samples *samples,
				  struct qmw_row_file **outputs)
{
	char *path = qmw_workplace_path(run->workplace, OUTPUT, 0);
	uint8_t tag[QMC_SHA256_BYTES];
	qmla_status_t status = path ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (status == QMLA_OK)
		status = qmw_workplace_tag(run->workplace, OUTPUT, samples->cache_layer, tag);
	if (status == QMLA_OK)
		status = qmw_row_file_create(path, tag, samples->train + samples->held_out,
					     (uint64_t)samples->length * samples->config->hidden,
					     outputs);
	if (status == QMLA_OK)
		status = qmw_samples_outputs(samples, *outputs);
	free(path);
	return status;
}

static qmla_status_t learn_layer(struct run *run, uint32_t layer, const struct qmw_row_file *inputs)
{
	struct qmw_method_options options = run->job->method;
	struct qmw_samples samples = {.config = qmw_stream_config(run->stream),
				      .rope = qmw_stream_rope(run->stream),
				      .inputs = inputs,
				      .team = run->team,
				      .train = run->corpus.train,
				      .held_out = run->corpus.held_out,
				      .length = run->corpus.length,
				      .cache_layer = layer,
				      .seed = run->job->seed,
				      .go_on = tell_wave,
				      .user = run};
	struct qmw_row_file *outputs = NULL;
	struct qmw_operator *op = NULL;
	qmc_time_t begin = qmc_clock_now();
	qmla_status_t status = qmw_operator_create(samples.config, samples.rope,
						   qmw_stream_attention(run->stream, layer), &op);

	samples.op = op;
	run->at = layer;
	options.progress = tell_learn;
	options.user = run;
	if (status == QMLA_OK && options.method == QMW_METHOD_PAPER)
		status = make_outputs(run, &samples, &outputs);
	if (status == QMLA_OK)
		status = qmw_method_learn(&samples, &options, &run->transforms[layer],
					  &run->figures[layer]);
	if (status == QMLA_OK)
		status = save_layer(run, layer);
	qmw_row_file_close(outputs);
	qmw_operator_destroy(op);
	if (status != QMLA_OK)
		return status;
	run->known[layer] = true;
	return tell_layer(run, layer, (double)(qmc_clock_now() - begin) / QMC_NS_PER_S)
		       ? QMLA_OK
		       : QMLA_ERR_CANCELLED;
}

static bool span_known(const struct run *run, uint32_t decoder_layer)
{
	uint32_t first, count;

	qmw_stream_layer_span(run->stream, decoder_layer, &first, &count);
	for (uint32_t i = 0; i < count; i++)
		if (!run->known[first + i])
			return false;
	return true;
}

/* Walks one decoder layer and learns what of it is not known yet. */
static qmla_status_t do_decoder_layer(struct run *run, uint32_t decoder_layer)
{
	struct qmw_row_file *inputs[QMW_WALK_SUBLAYERS] = {NULL, NULL};
	bool known = span_known(run, decoder_layer);
	uint32_t first, count;
	qmla_status_t status = qmw_walk_layer(&run->walk, decoder_layer, known ? NULL : inputs);

	qmw_stream_layer_span(run->stream, decoder_layer, &first, &count);
	for (uint32_t i = 0; status == QMLA_OK && i < count; i++)
		if (!run->known[first + i])
			status = learn_layer(run, first + i, inputs[i]);
	for (uint32_t i = 0; i < QMW_WALK_SUBLAYERS; i++)
		qmw_row_file_close(inputs[i]);
	if (status == QMLA_OK)
		qmw_walk_leave(&run->walk, decoder_layer);
	return status;
}

static qmla_status_t learn_all(struct run *run)
{
	uint32_t decoder_layers = run->walk.decoder_layers, done = 0, start;
	qmla_status_t status = QMLA_OK;

	for (uint32_t i = 0; status == QMLA_OK && i < run->layers; i++)
		status = load_layer(run, i);
	while (status == QMLA_OK && done < decoder_layers && span_known(run, done))
		done++;
	if (status != QMLA_OK || done == decoder_layers)
		return status;
	/* The nearest hidden states in front of what is to be learned. */
	for (start = done; start > 0 && !qmw_walk_has(&run->walk, start); start--)
		;
	if (start == 0 && !qmw_walk_has(&run->walk, 0))
		status = qmw_walk_begin(&run->walk);
	for (uint32_t i = start; status == QMLA_OK && i < decoder_layers; i++)
		status = do_decoder_layer(run, i);
	return status;
}

/* ---- the result ---- */

static qmla_status_t fuse(struct run *run, const char *fused, struct qmw_fuse_report *report)
{
	const struct qmw_calibrate_job *job = run->job;
	json_t *array = qmw_figures_array(job->method.method, run->figures, run->layers);
	char *figures = json_dumps(array, JSON_COMPACT | JSON_REAL_PRECISION(6));
	bool paper = qmw_method_quantiser(job->method.method) == QMW_QUANTISER_PAPER;
	struct qmw_fuse_job fuse_job = {.source = job->model,
					.output = fused,
					.layers = run->transforms,
					.count = run->layers,
					.recipe = qmw_method_recipe(job->method.method),
					.method = qmw_method_name(job->method.method),
					.cache = job->cache,
					.quantiser = paper ? "paper" : "default",
					.created_by = job->created_by,
					.figures = figures,
					.progress = tell_fuse,
					.user = run};
	qmla_status_t status = figures ? qmw_disk_remove(fused) : QMLA_ERR_NO_MEMORY;

	if (status == QMLA_OK)
		status = qmw_fuse_checkpoint(&fuse_job, report);
	free(figures);
	json_decref(array);
	return status;
}

/* Sequences of the whole text: the loss of a few would hang on single tokens. */
static qmla_status_t pick_proof(const struct run *run, struct qmw_corpus *corpus)
{
	uint32_t length = run->corpus.length;

	return qmw_corpus_init(run->job->tokens, run->job->token_count, length, 1,
			       (VERIFY_TOKENS + length - 1) / length, corpus);
}

static qmla_status_t verify(struct run *run, const char *fused, struct qmw_verify_report *report)
{
	struct qmw_verify_job job = {.source = run->job->model,
				     .fused = fused,
				     .layers = run->transforms,
				     .count = run->layers,
				     .length = run->corpus.length,
				     .threads = run->job->threads,
				     .progress = tell_verify,
				     .user = run};
	size_t length = run->corpus.length;
	struct qmw_corpus corpus;
	uint32_t *tokens;
	qmla_status_t status = pick_proof(run, &corpus);

	if (status != QMLA_OK)
		return status;
	tokens = malloc(corpus.held_out * length * sizeof(*tokens));
	for (uint32_t i = 0; tokens && i < corpus.held_out; i++)
		memcpy(tokens + i * length, qmw_corpus_sequence(&corpus, corpus.train + i),
		       length * sizeof(*tokens));
	job.tokens = tokens;
	job.sequences = corpus.held_out;
	status = tokens ? qmw_verify(&job, report) : QMLA_ERR_NO_MEMORY;
	free(tokens);
	qmw_corpus_fini(&corpus);
	return status;
}

static qmla_status_t finish(struct run *run, struct qmw_calibrate_report *report)
{
	char *fused = qmw_workplace_path(run->workplace, FUSED, 0);
	qmla_status_t status = fused ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (status == QMLA_OK)
		status = fuse(run, fused, &report->fused);
	if (status == QMLA_OK)
		status = verify(run, fused, &report->verified);
	if (status == QMLA_OK)
		status = qmw_workplace_deliver(run->workplace, FUSED);
	free(fused);
	return status;
}

/* ---- beginning and end ---- */

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
static uint64_t room_needed(const struct run *run)
{
	const struct qmw_config *config = qmw_stream_config(run->stream);
	uint64_t sequences = run->corpus.train + run->corpus.held_out;
	uint64_t files = 3 + (run->job->method.method == QMW_METHOD_PAPER);

	return files * sequences * run->corpus.length * config->hidden * sizeof(float);
}

static qmla_status_t begin(struct run *run)
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

static void end(struct run *run)
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

static qmla_status_t pick(struct run *run)
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
	struct run run = {.job = job};
	qmla_status_t status;

	/* Sequences are spread over our own threads; results must not depend on the BLAS's. */
	openblas_set_num_threads(1);
	status = pick(&run);
	if (status == QMLA_OK)
		status = begin(&run);
	if (status == QMLA_OK)
		status = learn_all(&run);
	if (status == QMLA_OK)
		status = finish(&run, &found);
	if (status == QMLA_OK || status == QMLA_ERR_INTERNAL) {
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
