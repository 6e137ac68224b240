/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of the model runtime: prefill, decode and continuing after a cached
 * prefix, one JSON line a case.
 *
 *   bench_model [MODEL_DIRECTORY [PROMPT_TOKENS]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/model.h"
#include "client/model/numeric.h"
#include "common/clock.h"

#define DECODE_STEPS 64u
#define CHUNK        512u

struct bench {
	struct qmw_model *model;
	struct qmw_context *context;
	struct qmk_pool pool;
	uint32_t *tokens;
	uint32_t prompt;
	float *logits;
};

static void fail(const char *what, qmla_status_t status)
{
	fprintf(stderr, "bench_model: %s: %s\n", what, qmla_status_text(status));
	exit(1);
}

static void *allocate(size_t count, size_t size)
{
	void *p = calloc(count, size);

	if (!p)
		fail("memory", QMLA_ERR_NO_MEMORY);
	return p;
}

static double seconds_since(qmc_time_t start)
{
	return (double)(qmc_clock_now() - start) / 1e9;
}

static void check(qmla_status_t status, const char *what)
{
	if (status)
		fail(what, status);
}

static struct qmw_sequence *new_sequence(struct bench *b)
{
	struct qmw_sequence *sequence;
	uint32_t capacity, *slots;

	check(qmw_sequence_create(b->model, b->prompt + DECODE_STEPS + 1, &sequence), "sequence");
	slots = qmw_sequence_slots(sequence, &capacity);
	for (uint32_t i = 0; i < capacity; i++)
		slots[i] = i;
	return sequence;
}

static void forward(struct bench *b, struct qmw_sequence *sequence, const uint32_t *tokens,
		    uint32_t count)
{
	for (uint32_t i = 0; i < count; i += CHUNK) {
		struct qmw_forward_item item = {.sequence = sequence,
						.tokens = tokens + i,
						.count = count - i < CHUNK ? count - i : CHUNK,
						.logits = b->logits};

		check(qmw_model_forward(b->model, b->context, &b->pool, &item, 1), "forward");
	}
}

static void run_case(struct bench *b, const char *format)
{
	struct qmw_sequence *sequence = new_sequence(b);
	struct qmw_sequence *cached = new_sequence(b);
	uint32_t blocks = (b->prompt - 1) / QMK_PAGE_TOKENS;
	qmc_time_t start = qmc_clock_now();
	double prefill, decode, tail;

	forward(b, sequence, b->tokens, b->prompt);
	prefill = seconds_since(start);
	start = qmc_clock_now();
	for (uint32_t i = 0; i < DECODE_STEPS; i++) {
		uint32_t next = qmw_argmax(b->logits, qmw_model_info(b->model)->vocab);

		forward(b, sequence, &next, 1);
	}
	decode = seconds_since(start) / DECODE_STEPS;
	check(qmw_sequence_adopt(cached, blocks), "adopt");
	start = qmc_clock_now();
	forward(b, cached, b->tokens + (size_t)blocks * QMK_PAGE_TOKENS,
		b->prompt - blocks * QMK_PAGE_TOKENS);
	tail = seconds_since(start);
	printf("{\"bench\": \"model\", \"cache\": \"%s\", \"prompt\": %u, \"prefill_s\": %.4f, "
	       "\"prefill_tokens_per_s\": %.0f, \"decode_step_ms\": %.3f, "
	       "\"decode_tokens_per_s\": %.0f, \"after_cached_prefix_s\": %.4f}\n",
	       format, b->prompt, prefill, b->prompt / prefill, decode * 1e3, 1 / decode, tail);
	qmw_sequence_destroy(sequence);
	qmw_sequence_destroy(cached);
}

static void run_format(const char *directory, enum qmk_format format, uint32_t prompt)
{
	const struct qmw_model_options options = {.format = format};
	struct bench b = {.prompt = prompt};
	const struct qmk_layout *layout;

	check(qmw_model_open(directory, &options, &b.model), directory);
	layout = qmw_model_layout(b.model);
	check(qmw_context_create(b.model, CHUNK, &b.context), "context");
	b.pool.stride = layout->block_bytes;
	b.pool.base = aligned_alloc(QMK_ALIGN, (prompt / QMK_PAGE_TOKENS + 2) * b.pool.stride);
	b.tokens = allocate(prompt, sizeof(*b.tokens));
	b.logits = allocate(qmw_model_info(b.model)->vocab, sizeof(*b.logits));
	if (!b.pool.base)
		fail("memory", QMLA_ERR_NO_MEMORY);
	for (uint32_t i = 0; i < prompt; i++)
		b.tokens[i] = (i * 7 + i / 13) % qmw_model_info(b.model)->vocab;
	run_case(&b, qmk_format_name(format));
	free(b.logits);
	free(b.tokens);
	free(b.pool.base);
	qmw_context_destroy(b.context);
	qmw_model_close(b.model);
}

int main(int argc, char **argv)
{
	const char *directory = argc > 1 ? argv[1] : QMLA_SOURCE_DIR "/tests/data/mla-s";
	int prompt = argc > 2 ? atoi(argv[2]) : 1500;

	if (prompt < 2)
		fail("a prompt of two tokens or more is needed", QMLA_ERR_INVALID_ARGUMENT);
	for (int format = QMK_FORMAT_C4R4; format <= QMK_FORMAT_PAPER_C4R4; format++)
		run_format(directory, (enum qmk_format)format, (uint32_t)prompt);
	return 0;
}
