/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client/cli/cmd_bench_model.h"
#include "client/cli/spawn.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/options.h"
#include "proto/rpc_client.h"
#include "qmla/v1/worker.pb-c.h"

#define PROGRAM     "qmla bench ttft"
#define LENGTHS_MAX 16
#define ROUNDS_MAX  101
#define TIMEOUT_NS  (300 * QMC_NS_PER_S)

struct flags {
	char *model, *decode, *format, *lengths, *transport;
	uint64_t rounds, threads;
};

/* A decode worker to measure, its own node beside it unless one was named. */
struct bench {
	const struct flags *flags;
	struct qmw_child node, worker;
	struct qmp_channel *channel;
	uint32_t lengths[LENGTHS_MAX];
	size_t length_count;
	uint64_t salt; /* of this run: no block of an earlier one is hit */
};

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint64_t median(uint64_t *values, size_t count)
{
	qsort(values, count, sizeof(*values), compare);
	return values[count / 2];
}

/* Tokens of no meaning: computing them takes as long as any others. */
static void make_tokens(uint32_t *tokens, uint32_t count)
{
	uint64_t state = 42;

	for (uint32_t i = 0; i < count; i++) {
		state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		tokens[i] = 32 + (uint32_t)(state >> 33) % 95;
	}
}

static qmla_status_t drain_stream(struct qmp_stream *stream, Qmla__V1__Usage *usage,
				  struct qmp_error *error)
{
	bool complete = false;

	for (;;) {
		ProtobufCMessage *message = NULL;
		qmla_status_t status = qmp_stream_next(stream, QMC_TIME_NEVER, &message, error);
		const Qmla__V1__GenerateEvent *event = (const Qmla__V1__GenerateEvent *)message;

		if (status != QMLA_OK || !message)
			return status == QMLA_OK && !complete ? QMLA_ERR_UNAVAILABLE : status;
		if (event->usage) {
			*usage = *event->usage; /* only its numbers are used */
			complete = true;
		}
		qmp_message_free(message);
	}
}

/* Asks for one token after @p count tokens; the worker's own clock tells how long it took. */
static qmla_status_t ask(struct bench *b, uint32_t *tokens, uint32_t count, bool cached,
			 Qmla__V1__Usage *usage)
{
	Qmla__V1__GenerateRequest request;
	struct qmp_stream *stream;
	struct qmp_error error = {.detail = ""};
	char name_space[32];
	qmla_status_t status;

	snprintf(name_space, sizeof(name_space), "bench-%016" PRIx64, b->salt);
	qmla__v1__generate_request__init(&request);
	request.tokens = tokens;
	request.n_tokens = count;
	request.max_tokens = 1;
	request.ignore_eos = true;
	request.no_cache = !cached;
	request.cache_namespace = name_space;
	status = qmp_stream_open(b->channel, "/qmla.v1.Worker/Generate", &request.base,
				 &qmla__v1__generate_event__descriptor, qmc_clock_after(TIMEOUT_NS),
				 &stream);
	if (status == QMLA_OK) {
		status = drain_stream(stream, usage, &error);
		qmp_stream_close(stream);
	}
	if (status != QMLA_OK)
		fprintf(stderr, "%s: %s\n", PROGRAM,
			error.detail[0] ? error.detail : qmla_status_text(status));
	return status;
}

/* Has the prompt computed and published; waits until all of it is found. */
static qmla_status_t warm_up(struct bench *b, uint32_t *tokens, uint32_t count)
{
	qmc_time_t deadline = qmc_clock_after(60 * QMC_NS_PER_S);
	Qmla__V1__Usage usage = {0};

	do {
		qmla_status_t status = ask(b, tokens, count, true, &usage);

		if (status != QMLA_OK)
			return status;
		if (usage.blocks_hit == (count - 1) / 64)
			return QMLA_OK;
		qmc_clock_sleep_until(qmc_clock_after(20 * QMC_NS_PER_MS));
	} while (qmc_clock_left(deadline) > 0);
	fprintf(stderr,
		"%s: %u tokens: the cache keeps %u of %u blocks: is the pool large enough?\n",
		PROGRAM, count, usage.blocks_hit, (count - 1) / 64);
	return QMLA_ERR_RESOURCE_EXHAUSTED;
}

static void print_line(const struct bench *b, uint32_t count, uint64_t cold, uint64_t warm,
		       uint64_t fetch)
{
	double ratio = (double)warm / (double)cold;
	json_t *line = json_pack("{s:s,s:i,s:i,s:f,s:f,s:f,s:f,s:s,s:f,s:b}", "bench", "ttft",
				 "tokens", (int)count, "rounds", (int)b->flags->rounds, "cold_ms",
				 (double)cold / 1e3, "warm_ms", (double)warm / 1e3, "fetch_ms",
				 (double)fetch / 1e3, "warm_over_cold", ratio, "limit_is",
				 "computing it", "limit", 1.0, "pass", ratio <= 1.0);

	json_dumpf(line, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
	puts("");
	fflush(stdout);
	json_decref(line);
}

/* Cold and warm in turn, so that both see the same machine. */
static qmla_status_t measure(struct bench *b, uint32_t count, bool *pass)
{
	uint64_t cold[ROUNDS_MAX], warm[ROUNDS_MAX], fetch[ROUNDS_MAX];
	uint32_t *tokens = malloc(count * sizeof(*tokens));
	size_t rounds = (size_t)b->flags->rounds;
	qmla_status_t status;

	if (!tokens)
		return QMLA_ERR_NO_MEMORY;
	make_tokens(tokens, count);
	status = warm_up(b, tokens, count);
	for (size_t i = 0; i < rounds && status == QMLA_OK; i++) {
		Qmla__V1__Usage computed, found;

		status = ask(b, tokens, count, false, &computed);
		if (status == QMLA_OK)
			status = ask(b, tokens, count, true, &found);
		if (status != QMLA_OK)
			break;
		cold[i] = computed.first_token_us;
		warm[i] = found.first_token_us;
		fetch[i] = found.fetch_us;
	}
	free(tokens);
	if (status != QMLA_OK)
		return status;
	*pass = *pass && median(warm, rounds) <= median(cold, rounds);
	print_line(b, count, median(cold, rounds), median(warm, rounds), median(fetch, rounds));
	return QMLA_OK;
}

static qmla_status_t parse_lengths(struct bench *b)
{
	const char *text = b->flags->lengths ? b->flags->lengths : "256,512,1024,2048,4096";

	while (*text && b->length_count < LENGTHS_MAX) {
		char *end;
		unsigned long value = strtoul(text, &end, 10);

		if (end == text || (*end && *end != ',') || value < 65 || value > 1u << 20) {
			fprintf(stderr, "%s: --lengths: numbers from 65 on with commas between\n",
				PROGRAM);
			return QMLA_ERR_INVALID_ARGUMENT;
		}
		b->lengths[b->length_count++] = (uint32_t)value;
		text = *end ? end + 1 : end;
	}
	return QMLA_OK;
}

static qmla_status_t start_servers(struct bench *b)
{
	const char *node[] = {"--pool-size", "512MiB", NULL};
	const char *worker[QMW_SPAWN_ARGUMENTS] = {
		"decode",        "--model",
		b->flags->model, "--no-local-reuse",
		"--pool-size",   "512MiB",
		"--format",      b->flags->format ? b->flags->format : "c4r4",
		"--transport",   b->flags->transport ? b->flags->transport : "auto",
		"--nodes",       b->node.address};
	char threads[24];
	size_t n = 12;
	qmla_status_t status = qmw_spawn("qmla-node", node, &b->node);

	if (status != QMLA_OK)
		return status;
	snprintf(threads, sizeof(threads), "%" PRIu64, b->flags->threads);
	if (b->flags->threads > 0) {
		worker[n++] = "--threads";
		worker[n] = threads;
	}
	return qmw_spawn("qmla-worker", worker, &b->worker);
}

static qmla_status_t connect_worker(struct bench *b)
{
	struct qmp_channel_config config = {.target = b->flags->decode ? b->flags->decode
								       : b->worker.address};

	return qmp_channel_create(&config, &b->channel);
}

static int run(const struct flags *flags)
{
	struct bench b = {.flags = flags};
	bool pass = true;
	qmla_status_t status = parse_lengths(&b);

	if (status == QMLA_OK && getrandom(&b.salt, sizeof(b.salt), 0) != sizeof(b.salt))
		status = QMLA_ERR_INTERNAL;
	if (status == QMLA_OK && !flags->decode)
		status = start_servers(&b);
	if (status == QMLA_OK)
		status = connect_worker(&b);
	for (size_t i = 0; i < b.length_count && status == QMLA_OK; i++)
		status = measure(&b, b.lengths[i], &pass);
	qmp_channel_destroy(b.channel);
	qmw_spawn_end(&b.worker);
	qmw_spawn_end(&b.node);
	return status == QMLA_OK && pass ? 0 : 1;
}

int qmw_cmd_bench_ttft(int argc, char **argv)
{
	struct flags f = {.rounds = 5};
	const struct qmc_option table[] = {
		{"model", 'm', QMC_OPTION_STRING, &f.model, "DIR",
		 "checkpoint; a node and a decode worker are started for it", 0, 0, false},
		{"decode", 'd', QMC_OPTION_STRING, &f.decode, "ADDR",
		 "measure this decode worker instead (start it with --no-local-reuse)", 0, 0,
		 false},
		{"lengths", 'n', QMC_OPTION_STRING, &f.lengths, "LIST",
		 "prompt lengths, default 256,512,1024,2048,4096", 0, 0, false},
		{"rounds", 0, QMC_OPTION_UNSIGNED, &f.rounds, "N",
		 "of each; medians are printed; default 5", 1, ROUNDS_MAX, false},
		{"format", 'f', QMC_OPTION_STRING, &f.format, "NAME", "packed cache, default c4r4",
		 0, 0, false},
		{"transport", 0, QMC_OPTION_STRING, &f.transport, "NAME",
		 "auto (default), verbs, shm, tcp", 0, 0, false},
		{"threads", 0, QMC_OPTION_UNSIGNED, &f.threads, "N",
		 "threads that compute, default: one a processor", 0, 64, false},
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "--model DIR | --decode ADDR",
		.summary =
			"Time to first token of a prompt that is computed, and of the same "
			"prompt found on a\nnode: one JSON line a length. A prefix that is found "
			"must not be slower.",
		.epilogue = "Exit status: 0 never slower warm, 1 slower or not measured, 2 wrong "
			    "usage.",
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
		.max_operands = QMC_OPERANDS_NONE,
	};
	int operand, rc = 2;
	enum qmc_options_result result = qmc_options_parse(&options, argc, argv, &operand);

	if (result == QMC_OPTIONS_EXIT_OK) {
		rc = 0;
	} else if (result == QMC_OPTIONS_RUN && !f.model == !f.decode) {
		fprintf(stderr, "%s: name --model or --decode\n", PROGRAM);
	} else if (result == QMC_OPTIONS_RUN) {
		qmc_log_configure(QMC_LOG_WARN, QMC_LOG_TEXT);
		rc = run(&f);
	}
	qmc_options_release(&options);
	return rc;
}
