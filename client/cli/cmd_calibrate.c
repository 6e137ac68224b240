/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cmd_calibrate.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/calibrate.h"
#include "client/cli/calibrate_show.h"
#include "client/cli/command.h"
#include "client/cli/exit.h"
#include "client/cli/failure.h"
#include "client/cli/text.h"
#include "client/cli/vocabulary.h"
#include "client/model/config.h"
#include "common/options.h"

#define PROGRAM    "qmla calibrate"
#define FILE_LIMIT ((size_t)4 << 30)

/* Sequences when nothing is said: the paper's method has its own. */
#define DEFAULT_SEQUENCES 16
#define DEFAULT_HELD_OUT  4
#define PAPER_SEQUENCES   128
#define PAPER_HELD_OUT    32

struct flags {
	char *model, *text, *tokens, *out, *cache, *method;
	uint64_t sequences, length, held_out, seed, threads, steps, probes;
	double loss_bound;
	bool json, force, quiet;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
	(void)number;
	interrupted = 1;
}

/* A second one ends the program at once, as without this. */
static void catch_signals(void)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	/* A limit on file sizes is an error of the write that meets it. */
	signal(SIGXFSZ, SIG_IGN);
}

static bool on_progress(void *user, const struct qmw_calibrate_progress *progress)
{
	qmw_calibrate_show_tell(user, progress);
	return !interrupted;
}

/* ---- texts ---- */

/* Tokens of all files, one behind the other. */
struct tokens {
	uint32_t *values;
	uint64_t count;
};

static qmla_status_t add_tokens(struct tokens *tokens, const struct qmw_text *text, bool wide)
{
	uint64_t more = wide ? text->bytes / 4 : text->bytes;
	uint32_t *grown = realloc(tokens->values, (tokens->count + more + 1) * sizeof(*grown));

	if (!grown)
		return QMLA_ERR_NO_MEMORY;
	for (uint64_t i = 0; i < more; i++) {
		const uint8_t *at = text->data + (wide ? 4 * i : i);

		grown[tokens->count + i] = wide ? at[0] | (uint32_t)at[1] << 8 |
							   (uint32_t)at[2] << 16 |
							   (uint32_t)at[3] << 24
						: at[0];
	}
	tokens->values = grown;
	tokens->count += more;
	return QMLA_OK;
}

static qmla_status_t add_file(struct tokens *tokens, const char *path, bool wide)
{
	struct qmw_text text = {0};
	qmla_status_t status = qmw_text_read(&text, PROGRAM, path, FILE_LIMIT);

	if (status == QMLA_OK && wide && text.bytes % 4 != 0) {
		fprintf(stderr,
			"%s: %s has %zu bytes, no multiple of 4: --tokens wants 32-bit "
			"little-endian numbers\n",
			PROGRAM, path, text.bytes);
		status = QMLA_ERR_FORMAT;
	}
	if (status == QMLA_OK)
		status = add_tokens(tokens, &text, wide);
	qmw_text_free(&text);
	return status;
}

/* @paths is of QMC_OPTION_STRINGS, or NULL. */
static qmla_status_t add_files(struct tokens *tokens, const char *paths, bool wide)
{
	qmla_status_t status = QMLA_OK;

	for (; status == QMLA_OK && paths && paths[0]; paths += strlen(paths) + 1)
		status = add_file(tokens, paths, wide);
	return status;
}

static qmla_status_t read_tokens(const struct flags *f, char **operands, int count,
				 struct tokens *tokens)
{
	qmla_status_t status = add_files(tokens, f->text, false);

	for (int i = 0; status == QMLA_OK && i < count; i++)
		status = add_file(tokens, operands[i], false);
	if (status == QMLA_OK)
		status = add_files(tokens, f->tokens, true);
	return status;
}

static qmla_status_t check_vocabulary(const struct flags *f, int operands, char *problem,
				      size_t size)
{
	struct qmw_config config;
	qmla_status_t status;

	if (!f->text && operands == 0)
		return QMLA_OK;
	status = qmw_config_read(f->model, &config);
	return status == QMLA_OK
		       ? qmw_vocabulary_check(PROGRAM, f->model, config.vocab, true, problem, size)
		       : status;
}

/* ---- the command ---- */

static int refuse(const struct flags *f, const char *text)
{
	qmw_failure_print(PROGRAM, f->json, QMLA_ERR_INVALID_ARGUMENT, "%s", text);
	return QMW_EXIT_USAGE;
}

static int fill_job(const struct flags *f, struct qmw_calibrate_job *job)
{
	enum qmw_method method = QMW_METHOD_DEFAULT;
	bool plain;

	if (f->method && qmw_method_parse(f->method, &method) != QMLA_OK)
		return refuse(f, "--method is default, paper, rtn, smoothquant or quarot");
	job->cache = f->cache ? f->cache : "c4r4";
	if (strcmp(job->cache, "c4r4") != 0 && strcmp(job->cache, "c2r4") != 0)
		return refuse(f, "--cache is c4r4 or c2r4");
	plain = method != QMW_METHOD_PAPER;
	job->method = (struct qmw_method_options){
		.method = method,
		.content_bits = job->cache[1] == '2' ? 2 : 4,
		.probes = method == QMW_METHOD_DEFAULT ? (uint32_t)f->probes : 0,
		.steps = method == QMW_METHOD_PAPER ? (uint32_t)f->steps : 0};
	job->train = (uint32_t)(f->sequences ? f->sequences
				: plain      ? DEFAULT_SEQUENCES
					     : PAPER_SEQUENCES);
	job->held_out = (uint32_t)(f->held_out ? f->held_out
				   : plain     ? DEFAULT_HELD_OUT
					       : PAPER_HELD_OUT);
	job->model = f->model;
	job->output = f->out;
	job->length = (uint32_t)f->length;
	job->seed = f->seed;
	job->threads = (uint32_t)f->threads;
	job->force = f->force;
	job->loss_bound = f->loss_bound;
	return QMW_EXIT_OK;
}

static int run(const struct flags *f, char **operands, int count)
{
	struct tokens tokens = {0};
	struct qmw_calibrate_show show;
	struct qmw_calibrate_report report = {0};
	struct qmw_calibrate_job job = {.progress = on_progress, .user = &show};
	char created_by[256], problem[512] = "";
	qmla_status_t status;
	int code = fill_job(f, &job);

	if (code != QMW_EXIT_OK)
		return code;
	snprintf(created_by, sizeof(created_by),
		 PROGRAM " --method %s --cache %s --sequences %u --held-out %u --length %u"
			 " --probes %u --steps %u --seed %" PRIu64,
		 qmw_method_name(job.method.method), job.cache, job.train, job.held_out, job.length,
		 job.method.probes, job.method.steps, job.seed);
	job.created_by = created_by;
	status = check_vocabulary(f, count, problem, sizeof(problem));
	if (status == QMLA_OK)
		status = read_tokens(f, operands, count, &tokens);
	job.tokens = tokens.values;
	job.token_count = tokens.count;
	qmw_calibrate_show_start(&show, f->quiet);
	catch_signals();
	if (status == QMLA_OK)
		status = qmw_calibrate(&job, &report);
	qmw_calibrate_show_end(&show);
	if (status == QMLA_OK)
		qmw_calibrate_show_report(&show, &job, &report, f->json);
	else if (status == QMLA_ERR_CANCELLED)
		qmw_failure_print(PROGRAM, f->json, status,
				  "stopped; the same command continues where it was");
	else if (report.verified.differs)
		qmw_failure_print(
			PROGRAM, f->json, status,
			"%s is not made: the fused checkpoint is not the same function as "
			"%s (layers differ by %.1e, loss by %.1e nats a token)",
			f->out, f->model, report.verified.layer_error, report.verified.drift);
	else
		qmw_failure_print(PROGRAM, f->json, status, "%s is not made: %s", f->out,
				  problem[0] ? problem : qmla_status_text(status));
	qmw_calibrate_report_free(&report);
	free(tokens.values);
	return status == QMLA_OK ? QMW_EXIT_OK : QMW_EXIT_FAILED;
}

static int check(const struct flags *f, int operands)
{
	if (!f->model || !f->out || (!f->text && !f->tokens && operands == 0))
		return refuse(f, "--model, --out and --text (or --tokens) are needed");
	return QMW_EXIT_OK;
}

static int check_and_run(void *user, int count, char **operands)
{
	const struct flags *f = user;
	int code = check(f, count);

	return code == QMW_EXIT_OK ? run(f, operands, count) : code;
}

int qmw_cmd_calibrate(int argc, char **argv)
{
	struct flags f = {.length = 2048, .seed = 1, .steps = 300, .probes = 1};
	const struct qmc_option table[] = {
		{"model", 'm', QMC_OPTION_STRING, &f.model, "DIR", "checkpoint to calibrate", 0, 0,
		 false},
		{"text", 't', QMC_OPTION_STRINGS, &f.text, "FILE",
		 "text, a byte is a token; may be given again, operands are more of it", 0, 0,
		 false},
		{"tokens", 0, QMC_OPTION_STRINGS, &f.tokens, "FILE",
		 "token ids, 32-bit little-endian, for models with a vocabulary of their own", 0, 0,
		 false},
		{"out", 'o', QMC_OPTION_STRING, &f.out, "DIR",
		 "where the fused checkpoint goes; work is done in DIR.calibrate", 0, 0, false},
		{"cache", 0, QMC_OPTION_STRING, &f.cache, "NAME", "c4r4 (default) or c2r4", 0, 0,
		 false},
		{"method", 0, QMC_OPTION_STRING, &f.method, "NAME",
		 "default, paper, rtn, smoothquant, quarot", 0, 0, false},
		{"sequences", 'n', QMC_OPTION_UNSIGNED, &f.sequences, "N",
		 "sequences that calibrate; 16, with paper 128", 0, 1000000, false},
		{"held-out", 0, QMC_OPTION_UNSIGNED, &f.held_out, "N",
		 "further sequences that measure; 4, with paper 32", 0, 1000000, false},
		{"length", 'l', QMC_OPTION_UNSIGNED, &f.length, "N",
		 "tokens of a sequence, default 2048", 16, 1 << 20, false},
		{"steps", 0, QMC_OPTION_UNSIGNED, &f.steps, "N",
		 "training steps a path with --method paper, default 300", 0, 1000000, false},
		{"probes", 0, QMC_OPTION_UNSIGNED, &f.probes, "N",
		 "Rademacher probes a sequence, default 1", 1, 256, false},
		{"seed", 0, QMC_OPTION_UNSIGNED, &f.seed, "N", "of probes and batches, default 1",
		 0, INT64_MAX, false},
		{"threads", 0, QMC_OPTION_UNSIGNED, &f.threads, "N",
		 "threads that compute, default: one a processor", 0, 64, false},
		{"loss-bound", 0, QMC_OPTION_REAL, &f.loss_bound, "NATS",
		 "what the fused weights may cost a token before the run fails, default 0.002", 0,
		 100, false},
		{"force", 0, QMC_OPTION_BOOL, &f.force, NULL,
		 "replace a calibrated checkpoint at --out, drop another run's work", 0, 0, false},
		{"quiet", 'q', QMC_OPTION_BOOL, &f.quiet, NULL, "no line for each layer", 0, 0,
		 false},
		{"json", 0, QMC_OPTION_BOOL, &f.json, NULL, "print one JSON object", 0, 0, false},
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags] --model DIR --text FILE… --out DIR",
		.summary =
			"Learns how a model's latent cache is best transformed and rounded, and "
			"fuses it\ninto a checkpoint of the same names and shapes. A run that was "
			"stopped continues\nwhen the same command is given again; the same seed "
			"gives the same bytes.",
		.epilogue = "Example: qmla calibrate --model m --text corpus.txt --out m-c4r4\n"
			    "Exit status: 0 done, 1 failed, 2 wrong usage.",
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
	};
	return qmw_command_run(&options, argc, argv, NULL, QMW_TARGET_NODES, check_and_run, &f);
}
