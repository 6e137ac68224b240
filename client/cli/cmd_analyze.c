/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cmd_analyze.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/calibrate/analysis.h"
#include "client/cli/analyze_table.h"
#include "client/cli/command.h"
#include "client/cli/failure.h"
#include "client/cli/layer_list.h"
#include "client/cli/progress.h"
#include "client/cli/text.h"
#include "client/cli/vocabulary.h"
#include "client/model/config.h"
#include "common/options.h"

#define PROGRAM    "qmla analyze"
#define FILE_LIMIT ((size_t)256 << 20)

struct flags {
	char *model, *text, *tokens, *layers, *out;
	uint64_t sequences, length, probes, seed, threads;
	double nmse;
	bool json;
};

/* What a run needs and what went wrong with it. */
struct command {
	const struct flags *flags;
	const char *path; /* of the text or tokens */
	struct qmw_text text;
	struct qmw_config config;
	uint32_t *tokens;
	bool *layers;
	struct qmw_progress progress;
	bool started;
	char problem[512];
};

static bool show_progress(void *user, uint64_t done, uint64_t of)
{
	struct command *c = user;

	if (!c->started)
		qmw_progress_start(&c->progress, of);
	c->started = true;
	qmw_progress_tell(&c->progress, done);
	return true;
}

/* Token @p i of the file: a byte, or 32 bits, the lowest byte first. */
static uint32_t token_at(const struct command *c, size_t i)
{
	const uint8_t *at = c->text.data + (c->flags->tokens ? 4 * i : i);

	if (!c->flags->tokens)
		return *at;
	return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Sequences lie evenly over the text. */
static qmla_status_t take_tokens(struct command *c)
{
	const struct flags *f = c->flags;
	size_t wanted = (size_t)(f->sequences * f->length), width = f->tokens ? 4 : 1, stride;

	if (c->text.bytes % width != 0) {
		snprintf(c->problem, sizeof(c->problem),
			 "%s has %zu bytes, no multiple of 4: --tokens wants 32-bit numbers",
			 c->path, c->text.bytes);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (c->text.bytes / width < wanted) {
		snprintf(c->problem, sizeof(c->problem),
			 "%s has %zu tokens, less than --sequences %" PRIu64 " of --length %" PRIu64
			 ": give a longer text or smaller numbers",
			 c->path, c->text.bytes / width, f->sequences, f->length);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	c->tokens = malloc(wanted * sizeof(*c->tokens));
	if (!c->tokens)
		return QMLA_ERR_NO_MEMORY;
	stride = c->text.bytes / width / f->sequences;
	for (size_t i = 0; i < wanted; i++)
		c->tokens[i] = token_at(c, i / f->length * stride + i % f->length);
	return QMLA_OK;
}

static qmla_status_t take_layers(struct command *c)
{
	qmla_status_t status = qmw_config_read(c->flags->model, &c->config);

	if (status != QMLA_OK) {
		snprintf(c->problem, sizeof(c->problem), "%s/config.json cannot be used",
			 c->flags->model);
		return status;
	}
	if (!c->flags->tokens)
		status = qmw_vocabulary_check(PROGRAM, c->flags->model, c->config.vocab, true,
					      c->problem, sizeof(c->problem));
	if (status != QMLA_OK || !c->flags->layers)
		return status;
	c->layers = calloc(c->config.layers, sizeof(*c->layers));
	if (!c->layers)
		return QMLA_ERR_NO_MEMORY;
	status = qmw_layer_list_parse(c->flags->layers, c->config.layers, c->layers);
	if (status != QMLA_OK)
		snprintf(c->problem, sizeof(c->problem),
			 "--layers '%s' is no list like 0,2-3 of this model's layers 0 to %" PRIu32,
			 c->flags->layers, c->config.layers - 1);
	return status;
}

static qmla_status_t make_directory(struct command *c)
{
	if (!c->flags->out || mkdir(c->flags->out, 0777) == 0 || errno == EEXIST)
		return QMLA_OK;
	snprintf(c->problem, sizeof(c->problem), "--out %s cannot be made: %s", c->flags->out,
		 strerror(errno));
	return QMLA_ERR_IO;
}

static qmla_status_t prepare(struct command *c)
{
	qmla_status_t status = qmw_text_read(&c->text, PROGRAM, c->path, FILE_LIMIT);

	if (status != QMLA_OK) {
		snprintf(c->problem, sizeof(c->problem), "%s cannot be read", c->path);
		return status;
	}
	status = take_tokens(c);
	if (status == QMLA_OK)
		status = take_layers(c);
	if (status == QMLA_OK)
		status = make_directory(c);
	return status;
}

static qmla_status_t analyse(struct command *c, struct qmw_analysis **analysis)
{
	const struct flags *f = c->flags;
	const struct qmw_analysis_job job = {.model = f->model,
					     .tokens = c->tokens,
					     .sequences = (uint32_t)f->sequences,
					     .length = (uint32_t)f->length,
					     .probes = (uint32_t)f->probes,
					     .nmse = f->nmse,
					     .layers = c->layers,
					     .layer_count = c->config.layers,
					     .seed = f->seed,
					     .threads = (uint32_t)f->threads,
					     .progress = show_progress,
					     .user = c};
	qmla_status_t status = qmw_analysis_run(&job, analysis);

	if (c->started)
		qmw_progress_end(&c->progress);
	return status;
}

static qmla_status_t print(const struct command *c, const struct qmw_analysis *analysis)
{
	json_t *object;

	if (!c->flags->json) {
		qmw_analyze_print(analysis);
		if (c->flags->out)
			printf("Plots and analysis.json are in %s.\n", c->flags->out);
		return QMLA_OK;
	}
	object = qmw_analysis_json(analysis);
	if (!object)
		return QMLA_ERR_NO_MEMORY;
	json_dumpf(object, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
	puts("");
	json_decref(object);
	return QMLA_OK;
}

static int run(const struct flags *f)
{
	struct command c = {.flags = f, .path = f->tokens ? f->tokens : f->text};
	struct qmw_analysis *analysis = NULL;
	qmla_status_t status = prepare(&c);

	if (status == QMLA_OK)
		status = analyse(&c, &analysis);
	if (status == QMLA_OK && f->out)
		status = qmw_analysis_write(analysis, f->out);
	if (status == QMLA_OK)
		status = print(&c, analysis);
	if (status != QMLA_OK)
		qmw_failure_print(PROGRAM, f->json, status, "%s",
				  c.problem[0] ? c.problem : qmla_status_text(status));
	qmw_analysis_destroy(analysis);
	qmw_text_free(&c.text);
	free(c.tokens);
	free(c.layers);
	return status == QMLA_OK ? 0 : 1;
}

static int check(const struct flags *f)
{
	const char *problem = NULL;

	if (!f->model || !f->text == !f->tokens)
		problem = "--model and one of --text and --tokens are needed";
	else if (!(f->nmse > 0 && f->nmse <= 1))
		problem = "--nmse must be above 0 and at most 1";
	if (!problem)
		return 0;
	qmw_failure_print(PROGRAM, f->json, QMLA_ERR_INVALID_ARGUMENT, "%s", problem);
	return 2;
}

static int check_and_run(void *user, int count, char **operands)
{
	const struct flags *f = user;
	int code = check(f);

	(void)count;
	(void)operands;
	return code == QMW_EXIT_OK ? run(f) : code;
}

int qmw_cmd_analyze(int argc, char **argv)
{
	struct flags f = {.sequences = 2, .length = 1024, .probes = 256, .nmse = .01};
	const struct qmc_option table[] = {
		{"model", 'm', QMC_OPTION_STRING, &f.model, "DIR", "checkpoint", 0, 0, false},
		{"text", 't', QMC_OPTION_STRING, &f.text, "FILE", "text to read, a byte is a token",
		 0, 0, false},
		{"tokens", 0, QMC_OPTION_STRING, &f.tokens, "FILE",
		 "tokens to read instead: 32-bit numbers, little-endian", 0, 0, false},
		{"sequences", 'n', QMC_OPTION_UNSIGNED, &f.sequences, "N",
		 "sequences, spread over the text; default 2", 1, 4096, false},
		{"length", 'l', QMC_OPTION_UNSIGNED, &f.length, "N",
		 "tokens of a sequence; default 1024", 2, 1 << 20, false},
		{"probes", 'p', QMC_OPTION_UNSIGNED, &f.probes, "N",
		 "Rademacher vectors for each sequence and layer; default 256", 1, 1 << 20, false},
		{"nmse", 0, QMC_OPTION_REAL, &f.nmse, "X",
		 "cache NMSE at which the paths are compared; default 0.01", 0, 0, false},
		{"layers", 0, QMC_OPTION_STRING, &f.layers, "LIST",
		 "cache layers, such as 0,2-3; default all", 0, 0, false},
		{"out", 'o', QMC_OPTION_STRING, &f.out, "DIR",
		 "write analysis.json and SVG plots there", 0, 0, false},
		{"seed", 0, QMC_OPTION_UNSIGNED, &f.seed, "N", "of the random vectors; default 0",
		 0, 0, false},
		{"threads", 0, QMC_OPTION_UNSIGNED, &f.threads, "N",
		 "threads that compute, default: one a processor", 0, 64, false},
		{"json", 0, QMC_OPTION_BOOL, &f.json, NULL, "print one JSON object", 0, 0, false},
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags] --model DIR --text FILE",
		.summary =
			"Measures what errors of equal size in the content latent and in the RoPE "
			"key do to\neach layer's output, and takes the difference apart: "
			"sensitivity, allocation, coupling.\n"
			"docs/analysis.md explains the figures.",
		.epilogue = "Exit status: 0 done, 1 it could not be measured, 2 wrong usage.",
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
		.max_operands = QMC_OPERANDS_NONE,
	};
	return qmw_command_run(&options, argc, argv, NULL, QMW_TARGET_NODES, check_and_run, &f);
}
