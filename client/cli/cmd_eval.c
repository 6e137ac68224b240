/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cmd_eval.h"
#include "client/cli/command.h"
#include "client/cli/eval_cases.h"
#include "client/cli/eval_measure.h"
#include "client/cli/failure.h"
#include "client/cli/text.h"
#include "client/cli/vocabulary.h"
#include "client/cli/window.h"
#include "client/model/config.h"
#include "client/model/eval.h"
#include "client/model/model.h"
#include "common/options.h"

#define PROGRAM    "qmla eval"
#define FILE_LIMIT ((size_t)256 << 20)

struct flags {
	char *model, *text, *recall, *cache, *against, *reference, *quantiser, *protect,
		*arithmetic;
	uint64_t length, sequences, offset, positions, threads, seed;
	bool json, ignore_calibration, layers;
};

/* A model with its own cache, for --offset. */
static qmla_status_t open_cache(const struct flags *f, const char *name, struct qmw_model **model)
{
	struct qmw_model_options options = {.threads = (uint32_t)f->threads,
					    .ignore_calibration = f->ignore_calibration};

	if (strcmp(name, "bf16") == 0)
		options.cache = QMW_CACHE_BF16;
	else if (strcmp(name, "f32") == 0)
		options.cache = QMW_CACHE_F32;
	else if (qmk_format_parse(name, &options.format) != QMLA_OK) {
		fprintf(stderr, "%s: '%s' is none of c4r4, c2r4, paper-c4r4, bf16, f32\n", PROGRAM,
			name);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return qmw_model_open(f->model, &options, model);
}

static bool show_progress(void *user, uint32_t done, uint32_t of)
{
	(void)user;
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r%u of %u%s", done, of, done == of ? "\n" : "");
	return true;
}

static qmla_status_t eval_window(const struct flags *f, const struct qmw_model *model,
				 const struct qmw_model *reference, const struct qmw_text *text,
				 json_t *out)
{
	struct qmw_window window = {.offset = (uint32_t)f->offset,
				    .positions = (uint32_t)f->positions};
	struct qmw_window_score score;
	qmla_status_t status =
		qmw_window_run(model, reference, text->data, text->bytes, &window, &score);

	if (status == QMLA_ERR_INVALID_ARGUMENT)
		fprintf(stderr,
			"%s: --offset %u (from 1) and --positions %u do not lie within the "
			"text's %zu bytes\n",
			PROGRAM, window.offset, window.positions, text->bytes);
	if (status != QMLA_OK)
		return status;
	json_object_set_new(out, "positions", json_integer(score.positions));
	json_object_set_new(out, "bits_per_byte", json_real(score.bits_per_byte));
	if (!reference)
		return QMLA_OK;
	json_object_set_new(out, "reference_bits_per_byte", json_real(score.reference_bits));
	json_object_set_new(out, "kl", json_real(score.kl));
	json_object_set_new(out, "top1", json_real((double)score.same / score.positions));
	return QMLA_OK;
}

/* The files that are read, before the model is: what is wrong with them shows at once. */
struct inputs {
	struct qmw_text text, lines;
	char problem[512]; /* when it is one of this command's own */
};

static qmla_status_t read_input(const char *path, struct qmw_text *text, struct inputs *in)
{
	qmla_status_t status = qmw_text_read(text, PROGRAM, path, FILE_LIMIT);

	if (status != QMLA_OK)
		snprintf(in->problem, sizeof(in->problem), "%s cannot be read", path);
	return status;
}

static qmla_status_t read_inputs(const struct flags *f, struct inputs *in)
{
	qmla_status_t status = QMLA_OK;

	if (f->text)
		status = read_input(f->text, &in->text, in);
	if (status == QMLA_OK && f->recall)
		status = read_input(f->recall, &in->lines, in);
	if (status == QMLA_OK && f->text && f->positions == 0 && in->text.bytes < f->length) {
		snprintf(in->problem, sizeof(in->problem),
			 "%s has %zu bytes, less than one sequence of --length %" PRIu64
			 ": give a longer text or a smaller --length",
			 f->text, in->text.bytes, f->length);
		status = QMLA_ERR_INVALID_ARGUMENT;
	}
	return status;
}

static qmla_status_t run_window(const struct flags *f, const struct inputs *in)
{
	const char *cache = f->cache ? f->cache : "c4r4";
	struct qmw_model *model = NULL, *reference = NULL;
	json_t *out = json_pack("{s:s,s:s}", "model", f->model, "cache", cache);
	qmla_status_t status = open_cache(f, cache, &model);

	if (status == QMLA_OK && f->against && strcmp(f->against, "none") != 0) {
		json_object_set_new(out, "against", json_string(f->against));
		status = open_cache(f, f->against, &reference);
	}
	if (status == QMLA_OK)
		status = eval_window(f, model, reference, &in->text, out);
	if (status == QMLA_OK)
		qmw_eval_print(&out, 1, f->json);
	json_decref(out);
	qmw_model_close(reference);
	qmw_model_close(model);
	return status;
}

static qmla_status_t run_cases(const struct flags *f, const struct inputs *in)
{
	const struct qmw_eval_request request = {
		.model = f->model,
		.reference = f->reference,
		.caches = f->cache,
		.protects = f->protect,
		.quantiser = f->quantiser,
		.against = f->against ? f->against : "bf16",
		.arithmetic = f->arithmetic,
		.ignore_calibration = f->ignore_calibration,
		.layers = f->layers,
		.threads = (uint32_t)f->threads,
	};
	const struct qmw_eval_inputs inputs = {
		.text = f->text ? &in->text : NULL,
		.recall = f->recall ? &in->lines : NULL,
		.layers = f->layers,
		.options = {.length = (uint32_t)f->length,
			    .max_sequences = (uint32_t)f->sequences,
			    .seed = f->seed,
			    .progress = show_progress},
	};
	json_t *rows[QMW_EVAL_CASES_MAX] = {NULL};
	struct qmw_eval_cases *cases = NULL;
	qmla_status_t status = qmw_eval_cases_open(PROGRAM, &request, &cases);
	uint32_t count = status ? 0 : qmw_eval_cases_count(cases);

	if (status == QMLA_OK)
		status = qmw_eval_measure(f->model, cases, &inputs, rows);
	if (status == QMLA_OK)
		qmw_eval_print(rows, count, f->json);
	for (uint32_t i = 0; i < count; i++)
		json_decref(rows[i]);
	qmw_eval_cases_close(cases);
	return status;
}

/* Texts and prompts are read as bytes. */
static qmla_status_t check_vocabulary(const struct flags *f, struct inputs *in)
{
	struct qmw_config config;
	qmla_status_t status = qmw_config_read(f->model, &config);

	return status == QMLA_OK ? qmw_vocabulary_check(PROGRAM, f->model, config.vocab, false,
							in->problem, sizeof(in->problem))
				 : status;
}

static int run(const struct flags *f)
{
	struct inputs in = {0};
	qmla_status_t status = read_inputs(f, &in);

	if (status == QMLA_OK)
		status = check_vocabulary(f, &in);

	if (status == QMLA_OK)
		status = f->positions > 0 ? run_window(f, &in) : run_cases(f, &in);
	if (status != QMLA_OK)
		qmw_failure_print(PROGRAM, f->json, status, "%s",
				  in.problem[0] ? in.problem : qmla_status_text(status));
	qmw_text_free(&in.text);
	qmw_text_free(&in.lines);
	return status == QMLA_OK ? 0 : 1;
}

static int check(const struct flags *f)
{
	if (!f->model || (!f->text && !f->recall)) {
		qmw_failure_print(PROGRAM, f->json, QMLA_ERR_INVALID_ARGUMENT,
				  "--model and --text or --recall are needed");
		return 2;
	}
	if ((f->offset > 0) != (f->positions > 0)) {
		qmw_failure_print(PROGRAM, f->json, QMLA_ERR_INVALID_ARGUMENT,
				  "--offset and --positions go together");
		return 2;
	}
	return 0;
}

static int check_and_run(void *user, int count, char **operands)
{
	const struct flags *f = user;
	int code = check(f);

	(void)count;
	(void)operands;
	return code == QMW_EXIT_OK ? run(f) : code;
}

int qmw_cmd_eval(int argc, char **argv)
{
	struct flags f = {.length = 2048};
	const struct qmc_option table[] = {
		{"model", 'm', QMC_OPTION_STRING, &f.model, "DIR", "checkpoint", 0, 0, false},
		{"text", 't', QMC_OPTION_STRING, &f.text, "FILE", "text to read, a byte is a token",
		 0, 0, false},
		{"recall", 0, QMC_OPTION_STRING, &f.recall, "FILE",
		 "recall prompts, JSON lines {\"text\", \"answers\"}", 0, 0, false},
		{"cache", 0, QMC_OPTION_STRING, &f.cache, "NAME",
		 "c4r4, c2r4, paper-c4r4, bf16, f32; several with commas; default: what the model "
		 "was "
		 "calibrated for, else c4r4",
		 0, 0, false},
		{"protect", 0, QMC_OPTION_STRING, &f.protect, "RULE",
		 "measure with rows kept in BF16: none, block (as the cache does), "
		 "sink4+recent128; "
		 "several with commas; default: run the packed cache itself",
		 0, 0, false},
		{"quantiser", 0, QMC_OPTION_STRING, &f.quantiser, "NAME",
		 "with --protect: default or paper; default: the one the model was calibrated for",
		 0, 0, false},
		{"against", 0, QMC_OPTION_STRING, &f.against, "NAME",
		 "cache to compare with (KL, share of equal greedy bytes), default bf16; none: do "
		 "not",
		 0, 0, false},
		{"reference", 0, QMC_OPTION_STRING, &f.reference, "DIR",
		 "checkpoint to compare with, say the one before fusing; default: --model", 0, 0,
		 false},
		{"layers", 0, QMC_OPTION_BOOL, &f.layers, NULL,
		 "with --protect: error of each layer's output, positional scores and cache as "
		 "well",
		 0, 0, false},
		{"arithmetic", 0, QMC_OPTION_STRING, &f.arithmetic, "NAME",
		 "f32 (default), or bf16: round activations where a BF16 implementation does", 0, 0,
		 false},
		{"seed", 0, QMC_OPTION_UNSIGNED, &f.seed, "N", "of the bootstrap over sequences", 0,
		 UINT32_MAX, false},
		{"length", 'l', QMC_OPTION_UNSIGNED, &f.length, "N",
		 "bytes of a sequence, longest recall prompt; default 2048", 2, UINT32_MAX, false},
		{"sequences", 'n', QMC_OPTION_UNSIGNED, &f.sequences, "N",
		 "sequences or prompts at most, default all", 0, UINT32_MAX, false},
		{"offset", 0, QMC_OPTION_UNSIGNED, &f.offset, "N",
		 "read the text as one sequence and score from this byte on", 0, UINT32_MAX, false},
		{"positions", 0, QMC_OPTION_UNSIGNED, &f.positions, "N",
		 "bytes to score from --offset on", 0, UINT32_MAX, false},
		{"ignore-calibration", 0, QMC_OPTION_BOOL, &f.ignore_calibration, NULL,
		 "run without quantmla.json beside the checkpoint", 0, 0, false},
		{"threads", 0, QMC_OPTION_UNSIGNED, &f.threads, "N",
		 "threads that compute, default: one a processor", 0, 64, false},
		{"json", 0, QMC_OPTION_BOOL, &f.json, NULL, "print one JSON object", 0, 0, false},
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags] --model DIR --text FILE",
		.summary =
			"Lets a byte-level model read a text with one kind of cache and tells its "
			"bits per\nbyte, and how far it is from another kind reading the same "
			"text, with 95 % intervals\nby bootstrap over sequences.",
		.epilogue = "Exit status: 0 done, 1 it could not be measured, 2 wrong usage.",
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
		.max_operands = QMC_OPERANDS_NONE,
	};
	return qmw_command_run(&options, argc, argv, NULL, QMW_TARGET_NODES, check_and_run, &f);
}
