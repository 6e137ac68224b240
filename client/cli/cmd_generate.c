/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cmd_generate.h"
#include "client/cli/command.h"
#include "client/cli/failure.h"
#include "client/cli/text.h"
#include "client/cli/tls.h"
#include "common/address.h"
#include "common/clock.h"
#include "common/options.h"
#include "proto/rpc_client.h"
#include "qmla/v1/worker.pb-c.h"

#define PROGRAM          "qmla generate"
#define PROMPT_MAX       ((size_t)4 << 20)
#define CONNECT_GRACE_NS (10 * QMC_NS_PER_S)

struct flags {
	char *config, *decode, *prompt, *prompt_file, *name_space;
	uint64_t max_tokens, seed;
	double temperature, top_p;
	int64_t timeout;
	bool cache, ignore_eos, json, stats;
	struct qmw_tls tls;
};

/* What came out. */
struct answer {
	struct qmw_text text;
	uint32_t *tokens;
	size_t token_count, token_room;
	bool has_usage;
	json_t *usage;
};

static qmla_status_t read_prompt(const struct flags *flags, const char *operand,
				 struct qmw_text *prompt)
{
	const char *path = flags->prompt_file ? flags->prompt_file : operand;

	if (flags->prompt)
		return qmw_text_append(prompt, flags->prompt, strlen(flags->prompt));
	return qmw_text_read(prompt, PROGRAM, path, PROMPT_MAX);
}

static qmla_status_t keep_tokens(struct answer *answer, const Qmla__V1__GenerateEvent *event)
{
	size_t need = answer->token_count + event->n_tokens;

	if (need > answer->token_room) {
		size_t room = 2 * need + 64;
		uint32_t *larger = realloc(answer->tokens, room * sizeof(*larger));

		if (!larger)
			return QMLA_ERR_NO_MEMORY;
		answer->tokens = larger;
		answer->token_room = room;
	}
	if (event->n_tokens > 0)
		memcpy(answer->tokens + answer->token_count, event->tokens,
		       event->n_tokens * sizeof(*answer->tokens));
	answer->token_count = need;
	return QMLA_OK;
}

/* Text as it comes; for a vocabulary that is not bytes, the token numbers. */
static qmla_status_t show(const Qmla__V1__GenerateEvent *event)
{
	if (event->text.len > 0)
		fwrite(event->text.data, 1, event->text.len, stdout);
	else
		for (size_t i = 0; i < event->n_tokens; i++)
			printf("%" PRIu32 " ", event->tokens[i]);
	return qmw_output_flush(PROGRAM);
}

static json_t *usage_json(const Qmla__V1__Usage *u)
{
	json_t *notes = json_array();

	for (size_t i = 0; i < u->n_notes; i++)
		json_array_append_new(notes, qmw_text_json(u->notes[i], strlen(u->notes[i])));
	return json_pack(
		"{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:o}",
		"prompt_tokens", (json_int_t)u->prompt_tokens, "generated_tokens",
		(json_int_t)u->generated_tokens, "blocks_hit", (json_int_t)u->blocks_hit,
		"blocks_local", (json_int_t)u->blocks_local, "blocks_prefilled",
		(json_int_t)u->blocks_prefilled, "blocks_computed", (json_int_t)u->blocks_computed,
		"tail_tokens", (json_int_t)u->tail_tokens, "first_token_us",
		(json_int_t)u->first_token_us, "total_us", (json_int_t)u->total_us, "fetched_bytes",
		(json_int_t)u->fetched_bytes, "fetch_us", (json_int_t)u->fetch_us, "prefill_us",
		(json_int_t)u->prefill_us, "compute_us", (json_int_t)u->compute_us, "decode_us",
		(json_int_t)u->decode_us, "finish", u->finish, "notes", notes);
}

static void show_stats(const Qmla__V1__Usage *u)
{
	double seconds = (double)u->decode_us / 1e6;
	uint32_t later = u->generated_tokens > 0 ? u->generated_tokens - 1 : 0;

	fprintf(stderr, "prompt       %6u tokens: %u blocks of 64 and %u more\n", u->prompt_tokens,
		u->prompt_tokens / 64, u->tail_tokens);
	fprintf(stderr, "  hit        %6u blocks (%u of them in the worker's own pool)\n",
		u->blocks_hit, u->blocks_local);
	fprintf(stderr, "  prefilled  %6u blocks, by the prefill worker, in %.1f ms\n",
		u->blocks_prefilled, (double)u->prefill_us / 1e3);
	fprintf(stderr, "  computed   %6u blocks and the tail, by the decode worker, in %.1f ms\n",
		u->blocks_computed, (double)u->compute_us / 1e3);
	fprintf(stderr, "fetched      %9.1f KiB, the first look-up and fetch took %.1f ms\n",
		(double)u->fetched_bytes / 1024, (double)u->fetch_us / 1e3);
	fprintf(stderr, "first token  %9.1f ms after the request came\n",
		(double)u->first_token_us / 1e3);
	fprintf(stderr, "generated    %6u tokens (%s), %.1f tokens a second after the first\n",
		u->generated_tokens, u->finish, seconds > 0 ? later / seconds : 0);
}

static void show_notes(const Qmla__V1__Usage *u)
{
	for (size_t i = 0; i < u->n_notes; i++)
		fprintf(stderr, "note: %s\n", u->notes[i]);
}

static qmla_status_t take_event(const struct flags *flags, const Qmla__V1__GenerateEvent *event,
				struct answer *answer)
{
	qmla_status_t status;

	if (event->usage) {
		answer->has_usage = true;
		answer->usage = flags->json ? usage_json(event->usage) : NULL;
		if (flags->json)
			return QMLA_OK;
		if (answer->text.bytes > 0 && answer->text.data[answer->text.bytes - 1] != '\n')
			puts("");
		if (qmw_output_flush(PROGRAM) != QMLA_OK)
			return QMLA_ERR_IO;
		show_notes(event->usage);
		if (flags->stats)
			show_stats(event->usage);
		return QMLA_OK;
	}
	status = keep_tokens(answer, event);
	if (status == QMLA_OK)
		status = qmw_text_append(&answer->text, event->text.data, event->text.len);
	if (status == QMLA_OK && !flags->json)
		status = show(event);
	return status;
}

static void fill_request(const struct flags *flags, const struct qmw_text *prompt,
			 Qmla__V1__GenerateRequest *request)
{
	qmla__v1__generate_request__init(request);
	request->prompt = (ProtobufCBinaryData){.len = prompt->bytes, .data = prompt->data};
	request->max_tokens = (uint32_t)flags->max_tokens;
	request->temperature = (float)flags->temperature;
	request->top_p = (float)flags->top_p;
	request->seed = flags->seed;
	if (flags->name_space)
		request->cache_namespace = flags->name_space;
	request->no_cache = !flags->cache;
	request->ignore_eos = flags->ignore_eos;
}

/* QMLA_ERR_IO is ours alone here, and its reason has been printed. */
static qmla_status_t run_stream(const struct flags *flags, struct qmp_stream *stream,
				struct answer *answer, struct qmp_error *error)
{
	for (;;) {
		ProtobufCMessage *message = NULL;
		qmla_status_t status = qmp_stream_next(stream, QMC_TIME_NEVER, &message, error);

		if (status != QMLA_OK || !message)
			return status;
		status = take_event(flags, (const Qmla__V1__GenerateEvent *)message, answer);
		qmp_message_free(message);
		if (status != QMLA_OK)
			return status;
	}
}

static void print_json(const struct answer *answer)
{
	json_t *tokens = json_array();
	json_t *root;

	for (size_t i = 0; i < answer->token_count; i++)
		json_array_append_new(tokens, json_integer(answer->tokens[i]));
	root = json_pack("{s:o,s:o,s:O}", "text",
			 qmw_text_json(answer->text.data, answer->text.bytes), "tokens", tokens,
			 "usage", answer->usage);
	json_dumpf(root, stdout, JSON_COMPACT);
	puts("");
	json_decref(root);
}

static qmla_status_t generate(const struct flags *flags, struct qmp_channel *channel,
			      const struct qmw_text *prompt, struct answer *answer,
			      struct qmp_error *error)
{
	struct qmp_stream *stream;
	Qmla__V1__GenerateRequest request;
	qmla_status_t status;

	fill_request(flags, prompt, &request);
	status = qmp_stream_open(channel, "/qmla.v1.Worker/Generate", &request.base,
				 &qmla__v1__generate_event__descriptor,
				 qmc_clock_after(flags->timeout), &stream);
	if (status != QMLA_OK)
		return status;
	status = run_stream(flags, stream, answer, error);
	qmp_stream_close(stream);
	if (status == QMLA_OK && !answer->has_usage) {
		snprintf(error->detail, sizeof(error->detail), "the answer ended half way");
		status = QMLA_ERR_UNAVAILABLE;
	}
	return status;
}

static void fail(const struct flags *flags, const struct answer *answer, qmla_status_t status,
		 const struct qmp_error *error)
{
	if (!flags->json && answer->text.bytes > 0)
		puts("");
	qmw_failure_print(PROGRAM, flags->json, status, "%s: %s", flags->decode,
			  error->detail[0] ? error->detail : qmla_status_text(status));
}

static int ask(const struct flags *flags, struct qmp_channel *channel,
	       const struct qmw_text *prompt)
{
	struct answer answer = {0};
	struct qmp_error error = {.detail = ""};
	qmla_status_t status = generate(flags, channel, prompt, &answer, &error);

	if (status == QMLA_OK && flags->json)
		print_json(&answer);
	else if (status != QMLA_OK && status != QMLA_ERR_IO)
		fail(flags, &answer, status, &error);
	json_decref(answer.usage);
	free(answer.tokens);
	qmw_text_free(&answer.text);
	return qmw_exit_of(status);
}

static int run(struct flags *flags, const char *operand)
{
	struct qmp_channel_config config = {.target = flags->decode,
					    .tls = qmw_tls_files(&flags->tls)};
	struct qmp_channel *channel;
	struct qmw_text prompt = {0};
	qmla_status_t status = qmp_channel_create(&config, &channel);
	int code;

	if (status != QMLA_OK) {
		qmw_failure_print(PROGRAM, flags->json, status, "%s: no connection can be made",
				  flags->decode);
		return qmw_command_open_exit(status);
	}
	status = read_prompt(flags, operand, &prompt);
	if (status == QMLA_OK) {
		code = ask(flags, channel, &prompt);
	} else { /* the reason has been printed */
		qmw_failure_print(PROGRAM, flags->json, status, "the prompt cannot be read");
		code = QMW_EXIT_FAILED;
	}
	qmw_text_free(&prompt);
	qmp_channel_destroy(channel);
	return code;
}

static bool check_address(const struct flags *flags)
{
	struct qmc_address address;

	if (qmc_address_parse(flags->decode, &address) == QMLA_OK && address.host[0] &&
	    address.port > 0)
		return true;
	qmw_failure_print(PROGRAM, flags->json, QMLA_ERR_INVALID_ARGUMENT,
			  "--decode: '%s' is no address, expected host:port or [v6]:port",
			  flags->decode);
	return false;
}

static bool check_prompt(const struct flags *flags, const char *operand)
{
	int sources = (flags->prompt != NULL) + (flags->prompt_file != NULL) + (operand != NULL);

	if (sources != 1) {
		qmw_failure_print(PROGRAM, flags->json, QMLA_ERR_INVALID_ARGUMENT,
				  "give one prompt: --prompt TEXT, --prompt-file FILE, or - for "
				  "standard input");
		return false;
	}
	if (operand && strcmp(operand, "-") != 0) {
		qmw_failure_print(PROGRAM, flags->json, QMLA_ERR_INVALID_ARGUMENT,
				  "'%s': a prompt is given with --prompt TEXT, a file with "
				  "--prompt-file",
				  operand);
		return false;
	}
	return true;
}

static int check_and_run(void *user, int count, char **operands)
{
	const char *operand = count > 0 ? operands[0] : NULL;
	struct flags *flags = user;

	if (!flags->decode)
		flags->decode = strdup("127.0.0.1:7200");
	if (!flags->decode)
		return QMW_EXIT_FAILED;
	if (!check_address(flags) || !check_prompt(flags, operand) ||
	    !qmw_tls_check(&flags->tls, PROGRAM))
		return QMW_EXIT_USAGE;
	return run(flags, operand);
}

int qmw_cmd_generate(int argc, char **argv)
{
	struct flags f = {.max_tokens = 128, .timeout = 600 * QMC_NS_PER_S, .cache = true};
	const struct qmc_option table[] = {
		{"decode", 'd', QMC_OPTION_STRING, &f.decode, "ADDR",
		 "decode worker, default 127.0.0.1:7200", 0, 0, false},
		{"prompt", 'p', QMC_OPTION_STRING, &f.prompt, "TEXT", "the prompt", 0, 0, false},
		{"prompt-file", 0, QMC_OPTION_STRING, &f.prompt_file, "FILE",
		 "read the prompt from FILE, - for standard input", 0, 0, false},
		{"max-tokens", 'n', QMC_OPTION_UNSIGNED, &f.max_tokens, "N",
		 "tokens to generate, default 128", 1, UINT32_MAX, false},
		{"temperature", 0, QMC_OPTION_REAL, &f.temperature, "X", "0: greedy (default)", 0,
		 0, false},
		{"top-p", 0, QMC_OPTION_REAL, &f.top_p, "X", "0 or 1: off (default)", 0, 0, false},
		{"seed", 0, QMC_OPTION_UNSIGNED, &f.seed, "N", "of the sampling, default 0", 0, 0,
		 false},
		{"namespace", 0, QMC_OPTION_STRING, &f.name_space, "TEXT",
		 "share cached blocks only within it", 0, 0, false},
		{"cache", 0, QMC_OPTION_BOOL, &f.cache, NULL,
		 "use cached blocks and publish new ones (default on)", 0, 0, false},
		{"ignore-eos", 0, QMC_OPTION_BOOL, &f.ignore_eos, NULL, "go on past the end token",
		 0, 0, false},
		{"timeout", 0, QMC_OPTION_DURATION, &f.timeout, "TIME",
		 "of the whole call, default 10m", QMC_NS_PER_MS, 86400 * QMC_NS_PER_S, false},
		{"json", 0, QMC_OPTION_BOOL, &f.json, NULL, "print one JSON object at the end", 0,
		 0, false},
		{QMW_TLS_CA_OPTION(f.tls)},
		{QMW_TLS_CERTIFICATE_OPTION(f.tls)},
		{QMW_TLS_KEY_OPTION(f.tls)},
		{"stats", 0, QMC_OPTION_BOOL, &f.stats, NULL,
		 "print to standard error where the time went", 0, 0, false},
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags] --prompt TEXT | --prompt-file FILE | -",
		.summary = "Sends a prompt to a decode worker and prints the text as it comes.",
		.epilogue =
			"Exit status: 0 done, 1 the worker refused or failed, 2 wrong usage, 3 it "
			"did "
			"not answer.\nWith --json a failure is an object too: error and status.",
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
		.max_operands = 1,
	};
	return qmw_command_run(&options, argc, argv, NULL, QMW_TARGET_NODES, check_and_run, &f);
}
