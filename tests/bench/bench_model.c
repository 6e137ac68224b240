/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of the model runtime, one JSON line a case: its products beside those of
 * OpenBLAS on one thread; prefill beside the time its arithmetic takes at the
 * speed of the products; decode; and continuing after a cached prefix.
 *
 *   bench_model [MODEL_DIRECTORY [PROMPT_TOKENS]]
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/matrix.h"
#include "client/model/model.h"
#include "client/model/numeric.h"
#include "client/model/team.h"
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

struct product {
	uint32_t rows, outputs, inputs;
	float *x, *weights, *y;
	struct qmw_matrix matrix;
};

static void run_own(const struct product *p)
{
	qmw_matrix_apply(&p->matrix, 0, p->matrix.panels, p->x, p->inputs, p->rows, p->y,
			 p->outputs);
}

static void run_blas(const struct product *p)
{
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)p->rows, (blasint)p->outputs,
		    (blasint)p->inputs, 1, p->x, (blasint)p->inputs, p->weights, (blasint)p->inputs,
		    0, p->y, (blasint)p->outputs);
}

/* Best of several short runs: others use the machine too. */
static double gigaflops(const struct product *p, void (*run)(const struct product *))
{
	double best = 1e9;

	for (int i = 0; i < 12; i++) {
		qmc_time_t start = qmc_clock_now();
		int count = 0;
		double each;

		do {
			run(p);
			count++;
		} while (seconds_since(start) < 0.01);
		each = seconds_since(start) / count;
		best = each < best ? each : best;
	}
	return 2e-9 * p->rows * p->outputs * p->inputs / best;
}

/* A product of mla-m's size; returns its speed on one thread. */
static double run_product(uint32_t rows, bool bf16)
{
	struct product p = {.rows = rows, .outputs = 2816, .inputs = 512};
	size_t count = (size_t)p.outputs * p.inputs;
	double own, blas;

	p.x = allocate((size_t)rows * p.inputs, sizeof(float));
	p.weights = allocate(count, sizeof(float));
	p.y = allocate((size_t)rows * p.outputs, sizeof(float));
	for (size_t i = 0; i < count; i++)
		p.weights[i] = bf16 ? (float)(i % 255) - 127 : (float)(i % 1021) / 1021;
	check(qmw_matrix_init(&p.matrix, p.outputs, p.inputs, p.weights, p.inputs, NULL), "matrix");
	openblas_set_num_threads(1);
	own = gigaflops(&p, run_own);
	blas = gigaflops(&p, run_blas);
	printf("{\"bench\": \"product\", \"rows\": %u, \"outputs\": %u, \"inputs\": %u, "
	       "\"weights\": \"%s\", \"gflops\": %.1f, \"openblas_gflops\": %.1f}\n",
	       rows, p.outputs, p.inputs, bf16 ? "bf16" : "f32", own, blas);
	qmw_matrix_fini(&p.matrix);
	free(p.x);
	free(p.weights);
	free(p.y);
	return own;
}

/* Multiply-adds of a prompt: every weight once a token, and absorbed attention. */
static double prompt_gigaflop(const struct qmw_model_info *info, uint32_t prompt)
{
	double keys = 0.5 * prompt * prompt * info->heads * info->layers;

	return 2e-9 * ((double)info->parameters * prompt +
		       keys * (2.0 * info->content_dim + info->rope_dim));
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

static void run_case(struct bench *b, const char *format, double speed)
{
	double limit = prompt_gigaflop(qmw_model_info(b->model), b->prompt) /
		       (speed * qmw_team_processors());
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
	qmw_sequence_remember(cached, b->tokens, blocks * QMK_PAGE_TOKENS);
	check(qmw_sequence_adopt(cached, blocks), "adopt");
	start = qmc_clock_now();
	forward(b, cached, b->tokens + (size_t)blocks * QMK_PAGE_TOKENS,
		b->prompt - blocks * QMK_PAGE_TOKENS);
	tail = seconds_since(start);
	printf("{\"bench\": \"model\", \"cache\": \"%s\", \"prompt\": %u, \"prefill_s\": %.4f, "
	       "\"prefill_tokens_per_s\": %.0f, \"prefill_limit_s\": %.4f, \"decode_step_ms\": "
	       "%.3f, "
	       "\"decode_tokens_per_s\": %.0f, \"after_cached_prefix_s\": %.4f}\n",
	       format, b->prompt, prefill, b->prompt / prefill, limit, decode * 1e3, 1 / decode,
	       tail);
	qmw_sequence_destroy(sequence);
	qmw_sequence_destroy(cached);
}

static void run_format(const char *directory, enum qmk_format format, uint32_t prompt, double speed)
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
	run_case(&b, qmk_format_name(format), speed);
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
	double speed;

	if (prompt < 2)
		fail("a prompt of two tokens or more is needed", QMLA_ERR_INVALID_ARGUMENT);
	run_product(1, false);
	run_product(1, true);
	run_product(256, true);
	speed = run_product(256, false);
	for (int format = QMK_FORMAT_C4R4; format <= QMK_FORMAT_PAPER_C4R4; format++)
		run_format(directory, (enum qmk_format)format, (uint32_t)prompt, speed);
	return 0;
}
