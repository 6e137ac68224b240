/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/run.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/disk.h"
#include "client/calibrate/figures.h"
#include "client/calibrate/fuse_files.h"

#define FUSED "fused"
/* Tokens of the proof: the loss of fewer depends on single ones. */
#define VERIFY_TOKENS 8192u

static bool tell_fuse(void *user, uint64_t done, uint64_t of)
{
	return qmw_run_tell(user, (struct qmw_calibrate_progress){
					  .stage = QMW_STAGE_FUSE, .done = done, .of = of});
}

static bool tell_verify(void *user, uint32_t done, uint32_t of)
{
	return qmw_run_tell(user, (struct qmw_calibrate_progress){
					  .stage = QMW_STAGE_VERIFY, .done = done, .of = of});
}

static qmla_status_t fuse(struct qmw_run *run, const char *fused, struct qmw_fuse_report *report)
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

	/* What a run left that was killed while it fused would count as room that is missing. */
	if (status == QMLA_OK)
		status = qmw_workplace_sweep(run->workplace, FUSED QMW_FUSE_PARTIAL);
	if (status == QMLA_OK)
		status = qmw_fuse_checkpoint(&fuse_job, report);
	free(figures);
	json_decref(array);
	return status;
}

/* Sequences of the whole text: the loss of a few would hang on single tokens. */
static qmla_status_t pick_proof(const struct qmw_run *run, struct qmw_corpus *corpus)
{
	uint32_t length = run->corpus.length;

	return qmw_corpus_init(run->job->tokens, run->job->token_count, length, 1,
			       (VERIFY_TOKENS + length - 1) / length, corpus);
}

static qmla_status_t verify(struct qmw_run *run, const char *fused,
			    struct qmw_verify_report *report)
{
	struct qmw_verify_job job = {.source = run->job->model,
				     .fused = fused,
				     .layers = run->transforms,
				     .count = run->layers,
				     .length = run->corpus.length,
				     .threads = run->job->threads,
				     .loss_bound = run->job->loss_bound,
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

qmla_status_t qmw_run_finish(struct qmw_run *run, struct qmw_calibrate_report *report)
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
