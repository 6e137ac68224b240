/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times the CUDA attention, whole call (queries staged, packed tiles, BF16 rows,
 * combine; the plan is made once a decode step and timed by itself), and the kernels that
 * write, read and check pages beside a plain copy. One JSON line a case: median of 30
 * samples; block tables rotate so that the L2 does not help.
 *
 * `of_byte_floor` is the time that the packed bytes take at the copy's rate, over the
 * time taken; `of_mma_floor` the same for the products at the chip's dense rates, scores
 * as 8-bit integers, the rest as fp16.
 *
 * `flashmla_ms` are figures of FlashMLA's BF16 dense decode on an H200 (n1-based
 * b = 128, L = 8,192 and b = 8 and 1, L = 131,072), measured apart from this program.
 */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"

#define POOL_PAGES 98304u
#define SAMPLES    30
#define SCALE      0.0721688f

struct attention_case {
	enum qmk_format format;
	uint32_t heads, queries, batch, tokens, query_bits;
	double flashmla_ms, wanted;
	uint32_t tail; /* BF16 rows after the packed tokens */
};

static const struct attention_case cases[] = {
	{QMK_FORMAT_C4R4, 16, 1, 128, 8192, 0, 0.289, 3.3, 0},
	{QMK_FORMAT_C4R4, 16, 1, 128, 8192, 8, 0.289, 3.3, 0},
	{QMK_FORMAT_C4R4, 32, 1, 128, 8192, 0, 0.289, 2.7, 0},
	{QMK_FORMAT_C4R4, 32, 1, 128, 8192, 8, 0.289, 2.7, 0},
	{QMK_FORMAT_C4R4, 64, 1, 128, 8192, 0, 0.291, 1.6, 0},
	{QMK_FORMAT_C4R4, 64, 1, 128, 8192, 8, 0.291, 1.6, 0},
	{QMK_FORMAT_C4R4, 128, 1, 128, 8192, 0, 0.460, 1.25, 0},
	{QMK_FORMAT_C4R4, 128, 1, 128, 8192, 8, 0.460, 1.25, 0},
	{QMK_FORMAT_C4R4, 16, 1, 8, 131072, 0, 0.294, 3.3, 0},
	{QMK_FORMAT_C4R4, 16, 1, 8, 131072, 8, 0.294, 3.3, 0},
	{QMK_FORMAT_C4R4, 16, 1, 1, 131072, 0, 0.084, 3.3, 0},
	{QMK_FORMAT_C4R4, 16, 1, 1, 131072, 8, 0.084, 3.3, 0},
	{QMK_FORMAT_C4R4, 128, 1, 8, 131072, 8, 0.440, 1.25, 0},
	{QMK_FORMAT_C4R4, 128, 1, 1, 131072, 8, 0.100, 1.25, 0},
	{QMK_FORMAT_C2R4, 16, 1, 128, 8192, 0, 0.289, 4.0, 0},
	{QMK_FORMAT_C2R4, 16, 1, 128, 8192, 8, 0.289, 4.0, 0},
	{QMK_FORMAT_C4R4, 16, 2, 128, 8192, 0, 0.289, 2.7, 0},
	{QMK_FORMAT_C4R4, 16, 2, 128, 8192, 8, 0.289, 2.7, 0},
	{QMK_FORMAT_C4R4, 16, 1, 128, 8192, 8, 0.289, 3.3, 32},
};

#define INT8_OPS 1.979e15 /* H200, dense */
#define FP16_OPS 9.895e14

static double copy_bytes_per_ms; /* read plus written, measured first */

static void must(cudaError_t error, const char *what)
{
	if (error != cudaSuccess) {
		fprintf(stderr, "bench_attention: %s: %s\n", what, cudaGetErrorString(error));
		exit(1);
	}
}

static void must_ok(qmla_status_t status, const char *what)
{
	if (status != QMLA_OK) {
		fprintf(stderr, "bench_attention: %s: %s\n", what, qmla_status_text(status));
		exit(1);
	}
}

static void *device_bytes(size_t bytes)
{
	void *memory = NULL;

	must(cudaMalloc(&memory, bytes), "device memory");
	return memory;
}

static uint32_t next_random(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(*state >> 33);
}

/* Random codes, scales of a realistic spread; a few hundred pages repeated over the pool. */
static void fill_pool(const struct qmk_layout *layout, const struct qmk_pool *pool)
{
	const uint32_t distinct = 512;
	uint8_t *host = malloc((size_t)distinct * pool->stride);
	uint64_t state = 1;

	for (size_t i = 0; i < (size_t)distinct * pool->stride; i++)
		host[i] = (uint8_t)next_random(&state);
	for (uint32_t p = 0; p < distinct; p++) {
		uint8_t *page = host + p * pool->stride + layout->header_bytes;

		for (uint32_t t = 0; t < 128; t++) {
			/* 0x2c00 is 1/16, 0x3000 is 1/8: scales between them. */
			uint16_t scale = (uint16_t)(0x2c00 + next_random(&state) % 0x400);

			memcpy(page + layout->content_scales_offset + 2 * t, &scale, 2);
		}
	}
	for (uint32_t first = 0; first < POOL_PAGES; first += distinct)
		must(cudaMemcpy((uint8_t *)pool->base + (size_t)first * pool->stride, host,
				(size_t)distinct * pool->stride, cudaMemcpyHostToDevice),
		     "filling the pool");
	free(host);
}

static uint32_t *random_table(uint32_t entries, uint64_t *state)
{
	uint32_t *table = malloc(entries * sizeof(*table));
	uint32_t *device = device_bytes(entries * sizeof(*table));

	for (uint32_t i = 0; i < entries; i++)
		table[i] = next_random(state) % POOL_PAGES;
	must(cudaMemcpy(device, table, entries * sizeof(*table), cudaMemcpyHostToDevice), "table");
	free(table);
	return device;
}

static void *random_queries(size_t count, uint64_t *state)
{
	uint16_t *host = malloc(count * sizeof(*host));
	void *device = device_bytes(count * sizeof(*host));

	for (size_t i = 0; i < count; i++) {
		/* BF16 of about unit size with random sign and mantissa. */
		host[i] = (uint16_t)(0x3f00 + next_random(state) % 0x100 +
				     (next_random(state) & 1 ? 0x8000 : 0));
	}
	must(cudaMemcpy(device, host, count * sizeof(*host), cudaMemcpyHostToDevice), "queries");
	free(host);
	return device;
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* Median milliseconds of one call of @run over rotating @tables. */
static double time_calls(struct qmk_attend_args *args, uint32_t *const *tables, uint32_t rotation,
			 qmla_status_t (*run)(const struct qmk_attend_args *))
{
	float sample[SAMPLES];
	cudaEvent_t begin, end;

	must(cudaEventCreate(&begin), "event");
	must(cudaEventCreate(&end), "event");
	for (int i = -2; i < SAMPLES; i++) {
		must(cudaEventRecord(begin, NULL), "event");
		for (uint32_t k = 0; k < rotation; k++) {
			args->block_table = tables[k];
			must_ok(run(args), "launch");
		}
		must(cudaEventRecord(end, NULL), "event");
		must(cudaEventSynchronize(end), "kernel");
		if (i >= 0) {
			must(cudaEventElapsedTime(&sample[i], begin, end), "event");
			sample[i] /= (float)rotation;
		}
	}
	(void)cudaEventDestroy(begin);
	(void)cudaEventDestroy(end);
	qsort(sample, SAMPLES, sizeof(sample[0]), by_value);
	return sample[SAMPLES / 2];
}

static void report(const struct attention_case *c, const struct qmk_layout *layout, double ms,
		   double plan_ms)
{
	double tokens = (double)c->batch * c->tokens;
	double bytes = tokens * layout->page_bytes / QMK_PAGE_TOKENS;
	double rows = (double)c->heads * c->queries;
	double flops = tokens * rows * 2 * (512 + 64 + 512);
	double planes = c->query_bits == 8 ? 1 : 2;
	double mma_ms = 1e3 * tokens * rows * (2 * 512 * planes / INT8_OPS + 2 * 576 / FP16_OPS);

	printf("{\"bench\":\"attention\",\"format\":\"%s\",\"heads\":%u,\"queries\":%u,"
	       "\"batch\":%u,\"tokens\":%u,\"tail\":%u,\"query_bits\":%u,\"ms\":%.4f,"
	       "\"plan_ms\":%.4f,\"bytes\":%.0f,\"gbytes_per_s\":%.0f,\"tflops\":%.0f,"
	       "\"ps_per_token\":%.1f,\"of_byte_floor\":%.2f,\"of_mma_floor\":%.2f,"
	       "\"flashmla_ms\":%.3f,\"ratio\":%.2f,\"required\":%.2f}\n",
	       qmk_format_name(c->format), c->heads, c->queries, c->batch, c->tokens, c->tail,
	       c->query_bits, ms, plan_ms, bytes, bytes / ms / 1e6, flops / ms / 1e9,
	       ms * 1e9 / tokens, bytes / copy_bytes_per_ms / ms, mma_ms / ms, c->flashmla_ms,
	       c->flashmla_ms / ms, c->wanted);
	fflush(stdout);
}

static void run_case(const struct attention_case *c, const struct qmk_layout *layout,
		     const struct qmk_pool *pool, const struct qmk_rope *rope,
		     const struct qmk_constants *constants)
{
	const struct qmk_ops *cuda = qmk_cuda_ops();
	const uint32_t pages = c->tokens / QMK_PAGE_TOKENS;
	const uint32_t rows = c->batch * c->queries;
	const uint32_t rotation = c->batch * pages < 4096 ? 12 : 4;
	struct qmk_sequence *sequences = calloc(c->batch, sizeof(*sequences));
	uint32_t *tables[12];
	uint64_t state = 7;
	struct qmk_attend_args args = {
		.layout = layout,
		.constants = constants,
		.rope = rope,
		.pool = *pool,
		.batch = c->batch,
		.heads = c->heads,
		.rows = rows,
		.max_queries = c->queries,
		.max_total = c->tokens + c->tail,
		.query_dtype = QMK_BF16,
		.query_bits = c->query_bits,
		.scale = SCALE,
		.output_dtype = QMK_BF16,
	};
	uint16_t *tails;
	double ms, plan_ms;

	tails = random_queries((size_t)c->batch * c->tail * 576 + 1, &state);
	for (uint32_t b = 0; b < c->batch; b++)
		sequences[b] =
			(struct qmk_sequence){.total = c->tokens + c->tail,
					      .recent_rows = tails + (size_t)b * c->tail * 576,
					      .queries = c->queries,
					      .query_row = b * c->queries,
					      .packed_end = c->tokens,
					      .table_start = b * pages};
	args.sequences = device_bytes(c->batch * sizeof(*sequences));
	must(cudaMemcpy((void *)args.sequences, sequences, c->batch * sizeof(*sequences),
			cudaMemcpyHostToDevice),
	     "sequences");
	args.query_content = random_queries((size_t)rows * c->heads * 512, &state);
	args.query_rope = random_queries((size_t)rows * c->heads * 64, &state);
	args.output = device_bytes((size_t)rows * c->heads * 512 * 2);
	args.workspace_bytes = cuda->attend_workspace(&args);
	args.workspace = device_bytes(args.workspace_bytes);
	for (uint32_t k = 0; k < rotation; k++)
		tables[k] = random_table(c->batch * pages, &state);
	plan_ms = time_calls(&args, tables, rotation, cuda->plan);
	ms = time_calls(&args, tables, rotation, cuda->attend);
	report(c, layout, ms, plan_ms);
	for (uint32_t k = 0; k < rotation; k++)
		(void)cudaFree(tables[k]);
	(void)cudaFree((void *)args.sequences);
	(void)cudaFree((void *)args.query_content);
	(void)cudaFree((void *)args.query_rope);
	(void)cudaFree(args.output);
	(void)cudaFree(args.workspace);
	(void)cudaFree(tails);
	free(sequences);
}

/* ---- Pages: written, read, checked ---- */

#define PAGES 8192u /* 524,288 tokens of one layer */

static union {
	struct qmk_pack_args pack;
	struct qmk_unpack_args unpack;
	struct qmk_checksum_args checksum;
} page_call;
static void *copy_to, *copy_from;
static size_t copy_bytes;

static void run_pack(void)
{
	must_ok(qmk_cuda_ops()->pack(&page_call.pack), "pack");
}

static void run_unpack(void)
{
	must_ok(qmk_cuda_ops()->unpack(&page_call.unpack), "unpack");
}

static void run_checksum(void)
{
	must_ok(qmk_cuda_ops()->checksum(&page_call.checksum), "checksum");
}

static void run_copy(void)
{
	must(cudaMemcpyAsync(copy_to, copy_from, copy_bytes, cudaMemcpyDeviceToDevice, NULL),
	     "copy");
}

static double time_pages(void (*run)(void))
{
	float sample[SAMPLES];
	cudaEvent_t begin, end;

	must(cudaEventCreate(&begin), "event");
	must(cudaEventCreate(&end), "event");
	for (int i = -2; i < SAMPLES; i++) {
		must(cudaEventRecord(begin, NULL), "event");
		run();
		must(cudaEventRecord(end, NULL), "event");
		must(cudaEventSynchronize(end), "kernel");
		if (i >= 0)
			must(cudaEventElapsedTime(&sample[i], begin, end), "event");
	}
	(void)cudaEventDestroy(begin);
	(void)cudaEventDestroy(end);
	qsort(sample, SAMPLES, sizeof(sample[0]), by_value);
	return sample[SAMPLES / 2];
}

static void report_pages(const char *what, const char *format, uint32_t pages, double bytes,
			 double ms)
{
	printf("{\"bench\":\"%s\",\"format\":\"%s\",\"pages\":%u,\"ms\":%.4f,\"bytes\":%.0f,"
	       "\"gbytes_per_s\":%.0f,\"of_copy\":%.2f,\"million_tokens_per_s\":%.1f}\n",
	       what, format, pages, ms, bytes, bytes / ms / 1e6, bytes / ms / copy_bytes_per_ms,
	       (double)pages * QMK_PAGE_TOKENS / ms / 1e3);
	fflush(stdout);
}

static void measure_copy(void)
{
	double ms;

	copy_bytes = (size_t)1 << 30;
	copy_from = device_bytes(copy_bytes);
	copy_to = device_bytes(copy_bytes);
	must(cudaMemset(copy_from, 0x5a, copy_bytes), "fill");
	ms = time_pages(run_copy);
	copy_bytes_per_ms = 2.0 * (double)copy_bytes / ms;
	report_pages("copy", "-", 0, 2.0 * (double)copy_bytes, ms);
	(void)cudaFree(copy_from);
	(void)cudaFree(copy_to);
}

/* Unit lower triangle with small entries, and weights of one. */
static float *random_feedback(uint32_t n, uint64_t *state)
{
	float *host = calloc((size_t)n * n, sizeof(*host));
	float *device = device_bytes((size_t)n * n * sizeof(*host));

	for (uint32_t i = 0; i < n; i++) {
		host[(size_t)i * n + i] = 1;
		for (uint32_t j = 0; j < i; j++)
			host[(size_t)i * n + j] =
				0.1f * ((float)(next_random(state) % 1000) / 1000.f - 0.5f);
	}
	must(cudaMemcpy(device, host, (size_t)n * n * sizeof(*host), cudaMemcpyHostToDevice),
	     "feedback");
	free(host);
	return device;
}

static void bench_pages(enum qmk_format format, const struct qmk_constants *means)
{
	const char *name = qmk_format_name(format);
	uint64_t state = 3;
	struct qmk_layout layout;
	struct qmk_constants constants = *means;
	uint32_t *slots = random_table(PAGES, &state);
	uint32_t *order = malloc(PAGES * sizeof(*order));
	void *rows = random_queries((size_t)PAGES * 64 * 576, &state);
	struct qmk_pool pool;
	double raw = (double)PAGES * 64 * 576 * 2, packed;

	must_ok(qmk_layout_init(format, 1, 512, 64, &layout), "layout");
	pool.stride = layout.block_bytes;
	pool.base = device_bytes(pool.stride * PAGES);
	packed = (double)PAGES * layout.page_bytes;
	for (uint32_t i = 0; i < PAGES; i++) /* a permutation: odd times modulo a power of two */
		order[i] = i * 2654435761u % PAGES;
	must(cudaMemcpy(slots, order, PAGES * sizeof(*order), cudaMemcpyHostToDevice), "slots");
	free(order);
	page_call.pack = (struct qmk_pack_args){.layout = &layout,
						.constants = &constants,
						.pool = pool,
						.pages = PAGES,
						.slots = slots,
						.content = rows,
						.rope = (uint16_t *)rows + (size_t)PAGES * 64 * 512,
						.content_stride = 512,
						.rope_stride = 64,
						.dtype = QMK_BF16};
	report_pages("pack_plain", name, PAGES, raw + packed, time_pages(run_pack));
	if (format != QMK_FORMAT_PAPER_C4R4) {
		constants.content_feedback = random_feedback(512, &state);
		constants.rope_feedback = random_feedback(64, &state);
		report_pages("pack_feedback", name, PAGES, raw + packed, time_pages(run_pack));
		(void)cudaFree((void *)constants.content_feedback);
		(void)cudaFree((void *)constants.rope_feedback);
	}
	page_call.unpack =
		(struct qmk_unpack_args){.layout = &layout,
					 .constants = means,
					 .pool = pool,
					 .pages = PAGES,
					 .slots = slots,
					 .content = rows,
					 .rope = (uint16_t *)rows + (size_t)PAGES * 64 * 512,
					 .content_stride = 512,
					 .rope_stride = 64,
					 .dtype = QMK_BF16};
	report_pages("unpack", name, PAGES, raw + packed, time_pages(run_unpack));
	page_call.checksum =
		(struct qmk_checksum_args){.layout = &layout,
					   .pool = pool,
					   .blocks = PAGES,
					   .slots = slots,
					   .checksums = device_bytes(PAGES * sizeof(uint64_t))};
	report_pages("checksum", name, PAGES, packed, time_pages(run_checksum));
	(void)cudaFree(page_call.checksum.checksums);
	(void)cudaFree(pool.base);
	(void)cudaFree(rows);
	(void)cudaFree(slots);
}

int main(int argc, char **argv)
{
	static const enum qmk_format formats[] = {QMK_FORMAT_C4R4, QMK_FORMAT_C2R4};
	float frequency[32], mean[512] = {0};
	struct qmk_rope rope = {.pairing = QMK_INTERLEAVED, .amplitude = 1};
	struct qmk_constants constants = {0};
	const char *only = argc > 1 ? argv[1] : NULL;

	if (!qmk_cuda_ops()) {
		puts("skipped: no CUDA device");
		return 77;
	}
	for (int j = 0; j < 32; j++) {
		frequency[j] = 1;
		for (int k = 0; k < j; k++)
			frequency[j] *= 0.74989421f; /* 10000^(-1/32) */
	}
	rope.inv_freq = device_bytes(sizeof(frequency));
	must(cudaMemcpy((void *)rope.inv_freq, frequency, sizeof(frequency),
			cudaMemcpyHostToDevice),
	     "rope");
	constants.content_mean = device_bytes(sizeof(mean));
	must(cudaMemcpy((void *)constants.content_mean, mean, sizeof(mean), cudaMemcpyHostToDevice),
	     "mean");
	constants.rope_mean = constants.content_mean;
	measure_copy();
	if (!only) {
		bench_pages(QMK_FORMAT_C4R4, &constants);
		bench_pages(QMK_FORMAT_C2R4, &constants);
		bench_pages(QMK_FORMAT_PAPER_C4R4, &constants);
	}
	for (size_t f = 0; f < 2; f++) {
		struct qmk_layout layout;
		struct qmk_pool pool;

		must_ok(qmk_layout_init(formats[f], 1, 512, 64, &layout), "layout");
		pool.stride = layout.block_bytes;
		pool.base = device_bytes(pool.stride * POOL_PAGES);
		fill_pool(&layout, &pool);
		for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
			if (cases[i].format == formats[f] &&
			    (!only || (uint32_t)atoi(only) == cases[i].heads))
				run_case(&cases[i], &layout, &pool, &rope, &constants);
		(void)cudaFree(pool.base);
	}
	return 0;
}
