/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times the CUDA attention, whole call (queries staged, packed tiles, BF16 rows,
 * combine; the plan is made once a decode step and timed by itself). One JSON line a case:
 * median of 30 samples; block tables rotate so that the L2 does not help.
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
};

static const struct attention_case cases[] = {
	{QMK_FORMAT_C4R4, 16, 1, 128, 8192, 0, 0.289, 3.3},
	{QMK_FORMAT_C4R4, 16, 1, 128, 8192, 8, 0.289, 3.3},
	{QMK_FORMAT_C4R4, 32, 1, 128, 8192, 0, 0.289, 2.7},
	{QMK_FORMAT_C4R4, 32, 1, 128, 8192, 8, 0.289, 2.7},
	{QMK_FORMAT_C4R4, 64, 1, 128, 8192, 0, 0.291, 1.6},
	{QMK_FORMAT_C4R4, 64, 1, 128, 8192, 8, 0.291, 1.6},
	{QMK_FORMAT_C4R4, 128, 1, 128, 8192, 0, 0.460, 1.25},
	{QMK_FORMAT_C4R4, 128, 1, 128, 8192, 8, 0.460, 1.25},
	{QMK_FORMAT_C4R4, 16, 1, 8, 131072, 0, 0.294, 3.3},
	{QMK_FORMAT_C4R4, 16, 1, 8, 131072, 8, 0.294, 3.3},
	{QMK_FORMAT_C4R4, 16, 1, 1, 131072, 0, 0.084, 3.3},
	{QMK_FORMAT_C4R4, 16, 1, 1, 131072, 8, 0.084, 3.3},
	{QMK_FORMAT_C4R4, 128, 1, 8, 131072, 8, 0.440, 1.25},
	{QMK_FORMAT_C4R4, 128, 1, 1, 131072, 8, 0.100, 1.25},
	{QMK_FORMAT_C2R4, 16, 1, 128, 8192, 0, 0.289, 4.0},
	{QMK_FORMAT_C2R4, 16, 1, 128, 8192, 8, 0.289, 4.0},
	{QMK_FORMAT_C4R4, 16, 2, 128, 8192, 0, 0.289, 2.7},
	{QMK_FORMAT_C4R4, 16, 2, 128, 8192, 8, 0.289, 2.7},
};

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
	double flops = tokens * c->heads * c->queries * 2 * (512 + 64 + 512);

	printf("{\"bench\":\"attention\",\"format\":\"%s\",\"heads\":%u,\"queries\":%u,\"batch\":%"
	       "u,"
	       "\"tokens\":%u,\"query_bits\":%u,\"ms\":%.4f,\"plan_ms\":%.4f,\"gbytes_per_s\":%.0f,"
	       "\"tflops\":%.0f,\"ps_per_token\":%.1f,\"flashmla_ms\":%.3f,\"ratio\":%.2f,"
	       "\"required\":%.2f}\n",
	       qmk_format_name(c->format), c->heads, c->queries, c->batch, c->tokens, c->query_bits,
	       ms, plan_ms, bytes / ms / 1e6, flops / ms / 1e9, ms * 1e9 / tokens, c->flashmla_ms,
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
		.max_total = c->tokens,
		.query_dtype = QMK_BF16,
		.query_bits = c->query_bits,
		.scale = SCALE,
		.output_dtype = QMK_BF16,
	};
	double ms, plan_ms;

	for (uint32_t b = 0; b < c->batch; b++)
		sequences[b] = (struct qmk_sequence){.total = c->tokens,
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
	free(sequences);
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
