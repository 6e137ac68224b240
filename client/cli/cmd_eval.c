/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cmd_eval.h"
#include "client/cli/failure.h"
#include "client/cli/text.h"
#include "client/cli/window.h"
#include "client/model/eval.h"
#include "client/model/model.h"
#include "common/options.h"

#define PROGRAM    "qmla eval"
#define FILE_LIMIT ((size_t)256 << 20)

struct flags {
	char *model, *text, *recall, *cache, *against;
	uint64_t length, sequences, offset, positions, threads;
	bool json, ignore_calibration;
};

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

static qmla_status_t eval_text(const struct flags *f, const struct qmw_model *model,
			       const struct qmw_model *reference, const struct qmw_text *text,
			       json_t *out)
{
	struct qmw_eval_options options = {.length = (uint32_t)f->length,
					   .max_sequences = (uint32_t)f->sequences,
					   .progress = show_progress};
	struct qmw_eval_text result;
	qmla_status_t status =
		qmw_eval_text(model, reference, text->data, text->bytes, &options, &result);

	if (status != QMLA_OK)
		return status;
	json_object_set_new(out, "sequences", json_integer(result.sequences));
	json_object_set_new(out, "positions", json_integer((json_int_t)result.positions));
	json_object_set_new(out, "bits_per_byte", json_real(result.bits_per_byte));
	if (!result.compared)
		return QMLA_OK;
	json_object_set_new(out, "reference_bits_per_byte", json_real(result.reference_bits));
	json_object_set_new(out, "kl", json_real(result.kl));
	json_object_set_new(out, "top1", json_real(result.top1));
	return QMLA_OK;
}

static qmla_status_t eval_recall(const struct flags *f, const struct qmw_model *model,
				 const struct qmw_text *lines, json_t *out)
{
	struct qmw_eval_options options = {.length = (uint32_t)f->length,
					   .max_sequences = (uint32_t)f->sequences,
					   .progress = show_progress};
	struct qmw_eval_recall result;
	qmla_status_t status =
		qmw_eval_recall(model, (const char *)lines->data, lines->bytes, &options, &result);

	if (status != QMLA_OK)
		return status;
	json_object_set_new(out, "recall_prompts", json_integer(result.prompts));
	json_object_set_new(out, "recall_answers", json_integer(result.answers));
	json_object_set_new(out, "recall", json_real(result.recall));
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

static qmla_status_t eval_inputs(const struct flags *f, const struct qmw_model *model,
				 const struct qmw_model *reference, const struct inputs *in,
				 json_t *out)
{
	qmla_status_t status = QMLA_OK;

	if (f->text)
		status = f->positions > 0 ? eval_window(f, model, reference, &in->text, out)
					  : eval_text(f, model, reference, &in->text, out);
	if (status == QMLA_OK && f->recall)
		status = eval_recall(f, model, &in->lines, out);
	return status;
}

static void print(const struct flags *f, json_t *out)
{
	const char *key;
	json_t *value;

	if (f->json) {
		json_dumpf(out, stdout,
			   JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
		puts("");
		return;
	}
	json_object_foreach(out, key, value)
	{
		if (json_is_real(value))
			printf("%-24s %.5f\n", key, json_real_value(value));
		else if (json_is_integer(value))
			printf("%-24s %" JSON_INTEGER_FORMAT "\n", key, json_integer_value(value));
		else
			printf("%-24s %s\n", key, json_string_value(value));
	}
}

static int run(const struct flags *f)
{
	struct qmw_model *model = NULL, *reference = NULL;
	struct inputs in = {0};
	const char *cache = f->cache ? f->cache : "c4r4";
	json_t *out = json_pack("{s:s,s:s}", "model", f->model, "cache", cache);
	qmla_status_t status = read_inputs(f, &in);

	if (status == QMLA_OK)
		status = open_cache(f, cache, &model);
	if (status == QMLA_OK && f->against) {
		json_object_set_new(out, "against", json_string(f->against));
		status = open_cache(f, f->against, &reference);
	}
	if (status == QMLA_OK)
		status = eval_inputs(f, model, reference, &in, out);
	if (status == QMLA_OK)
		print(f, out);
	else
		qmw_failure_print(PROGRAM, f->json, status, "%s",
				  in.problem[0] ? in.problem : qmla_status_text(status));
	json_decref(out);
	qmw_model_close(reference);
	qmw_model_close(model);
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

int qmw_cmd_eval(int argc, char **argv)
{
	struct flags f = {.length = 2048};
	const struct qmc_option table[] = {
		{"model", 'm', QMC_OPTION_STRING, &f.model, "DIR", "checkpoint", 0, 0, false},
		{"text", 't', QMC_OPTION_STRING, &f.text, "FILE", "text to read", 0, 0, false},
		{"recall", 0, QMC_OPTION_STRING, &f.recall, "FILE",
		 "recall prompts, JSON lines {\"text\", \"answers\"}", 0, 0, false},
		{"cache", 0, QMC_OPTION_STRING, &f.cache, "NAME",
		 "c4r4 (default), c2r4, paper-c4r4, bf16, f32", 0, 0, false},
		{"against", 0, QMC_OPTION_STRING, &f.against, "NAME",
		 "cache to compare with: KL and share of equal greedy bytes", 0, 0, false},
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
			"text.",
		.epilogue = "Exit status: 0 done, 1 it could not be measured, 2 wrong usage.",
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
		.max_operands = QMC_OPERANDS_NONE,
	};
	int operand, rc = 2;
	enum qmc_options_result result = qmc_options_parse(&options, argc, argv, &operand);

	if (result == QMC_OPTIONS_EXIT_OK)
		rc = 0;
	if (result == QMC_OPTIONS_RUN)
		rc = check(&f);
	if (result == QMC_OPTIONS_RUN && rc == 0)
		rc = run(&f);
	qmc_options_release(&options);
	return rc;
}
