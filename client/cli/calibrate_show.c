/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/calibrate_show.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

#include "client/calibrate/figures.h"

#define BETWEEN_NS (200 * QMC_NS_PER_MS)

void qmw_calibrate_show_start(struct qmw_calibrate_show *show, bool quiet)
{
	*show = (struct qmw_calibrate_show){
		.quiet = quiet, .terminal = isatty(STDERR_FILENO) == 1, .begin = qmc_clock_now()};
}

void qmw_calibrate_show_end(struct qmw_calibrate_show *show)
{
	if (show->shown)
		fprintf(stderr, "\r\033[K");
	show->shown = false;
}

static void tell_layer(const struct qmw_calibrate_progress *progress)
{
	const struct qmw_held_out *before = &progress->figures->before;
	const struct qmw_held_out *after = &progress->figures->after;

	fprintf(stderr,
		"layer %" PRIu32 " of %" PRIu32
		": output error %.3g -> %.3g (content %.3g -> %.3g, RoPE %.3g -> %.3g)",
		progress->cache_layer + 1, progress->cache_layers, before->both, after->both,
		before->content, after->content, before->rope, after->rope);
	if (progress->seconds > 0)
		fprintf(stderr, ", %.1f s\n", progress->seconds);
	else
		fprintf(stderr, ", from an earlier run\n");
}

/* "layer 2 of 4: sequence 5 of 16" and the like, on one line that moves. */
static void tell_moving(const struct qmw_calibrate_progress *progress)
{
	static const char *const words[] = {[QMW_STAGE_RUN] = "sequence",
					    [QMW_STAGE_LEARN] = "step",
					    [QMW_STAGE_LAYER] = "layer",
					    [QMW_STAGE_FUSE] = "fusing: byte",
					    [QMW_STAGE_VERIFY] = "verifying: layer"};

	fprintf(stderr, "\r\033[K");
	if (progress->stage == QMW_STAGE_RUN || progress->stage == QMW_STAGE_LEARN)
		fprintf(stderr, "layer %" PRIu32 " of %" PRIu32 ": ", progress->cache_layer + 1,
			progress->cache_layers);
	if (progress->of == 0)
		fprintf(stderr, "measuring");
	else
		fprintf(stderr, "%s%s%s %" PRIu64 " of %" PRIu64,
			progress->path ? progress->path : "", progress->path ? " " : "",
			words[progress->stage], progress->done, progress->of);
}

void qmw_calibrate_show_tell(struct qmw_calibrate_show *show,
			     const struct qmw_calibrate_progress *progress)
{
	if (progress->stage == QMW_STAGE_LAYER) {
		qmw_calibrate_show_end(show);
		if (!show->quiet)
			tell_layer(progress);
		return;
	}
	if (!show->terminal || qmc_clock_now() < show->next)
		return;
	tell_moving(progress);
	fflush(stderr);
	show->shown = true;
	show->next = qmc_clock_after(BETWEEN_NS);
}

static double seconds_since(qmc_time_t begin)
{
	return (double)(qmc_clock_now() - begin) / QMC_NS_PER_S;
}

static void print_json(const struct qmw_calibrate_show *show, const struct qmw_calibrate_job *job,
		       const struct qmw_calibrate_report *report)
{
	enum qmw_method method = job->method.method;
	char digest[2 * QMC_SHA256_BYTES + 1];
	json_t *root;

	qmc_hex_encode(report->fused.digest, QMC_SHA256_BYTES, digest);
	root = json_pack(
		"{s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:f,s:s,s:o,s:{s:f,s:I,s:f,s:f,s:f}}",
		"model", job->model, "out", job->output, "method", qmw_method_name(method), "cache",
		job->cache, "length", (json_int_t)job->length, "sequences",
		(json_int_t)report->train, "held_out", (json_int_t)report->held_out, "seed",
		(json_int_t)job->seed, "layers_continued", (json_int_t)report->continued, "seconds",
		seconds_since(show->begin), "model_sha256", digest, "layers",
		qmw_figures_array(method, report->figures, report->layers), "equivalence",
		"layer_error", report->verified.layer_error, "worst_layer",
		(json_int_t)report->verified.worst_layer, "source_nats",
		report->verified.source_nats, "fused_nats", report->verified.fused_nats,
		"drift_nats", report->verified.drift);
	json_dumpf(root, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
	puts("");
	json_decref(root);
}

static void print_table(const struct qmw_calibrate_report *report)
{
	printf("Held-out error of each attention sub-layer, squared and normalised, before -> "
	       "after\n");
	printf("%5s  %-22s %-22s %-22s %-22s\n", "layer", "output", "content alone", "RoPE alone",
	       "positional scores");
	for (uint32_t i = 0; i < report->layers; i++) {
		const struct qmw_held_out *a = &report->figures[i].before;
		const struct qmw_held_out *b = &report->figures[i].after;

		printf("%5" PRIu32 "  %.2e -> %.2e   %.2e -> %.2e   %.2e -> %.2e   %.2e -> %.2e\n",
		       i, a->both, b->both, a->content, b->content, a->rope, b->rope, a->score,
		       b->score);
	}
}

static void print_text(const struct qmw_calibrate_show *show, const struct qmw_calibrate_job *job,
		       const struct qmw_calibrate_report *report)
{
	print_table(report);
	printf("\nWithout quantisation: layer outputs equal to %.1e (double), loss %.6f -> %.6f "
	       "nats a token\n",
	       report->verified.layer_error, report->verified.source_nats,
	       report->verified.fused_nats);
	printf("%s: %" PRIu32 " sequences of %" PRIu32 " tokens, %" PRIu32
	       " held out; %.0f s\n%s is ready\n",
	       qmw_method_name(job->method.method), report->train, job->length, report->held_out,
	       seconds_since(show->begin), job->output);
}

void qmw_calibrate_show_report(const struct qmw_calibrate_show *show,
			       const struct qmw_calibrate_job *job,
			       const struct qmw_calibrate_report *report, bool json)
{
	if (json)
		print_json(show, job, report);
	else
		print_text(show, job, report);
}
