/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times the CUDA attention, whole call (queries staged, packed tiles, BF16 rows,
 * combine; the plan is made once a decode step and timed by itself).
 *
 * `of_byte_floor` is the time that the packed bytes take at the copy's rate, over the
 * time taken; `of_mma_floor` the same for the products at an H200's dense rates, scores
 * as 8-bit integers, the rest as fp16.
 *
 * `flashmla_ms` are figures of FlashMLA's BF16 dense decode on an H200 (b = 128,
 * L = 8,192 and b = 8 and 1, L = 131,072), measured apart from this program.
 */
#include "kernels/cuda/bench.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "kernels/cuda/baseline.h"

#define POOL_PAGES     98304u
#define SCALE          0.0721688f
#define BASELINE_PAGES 49152u /* of the BF16 cache */

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

/* Random codes, scales of a realistic spread; a few hundred pages repeated over the pool. */
static void fill_pool(const struct qmk_layout *layout, const struct qmk_pool *pool)
{
	const uint32_t distinct = 512;
	uint8_t *host = malloc((size_t)distinct * pool->stride);
	uint64_t state = 1;

	qmk_gpu_must_ok(host ? QMLA_OK : QMLA_ERR_NO_MEMORY, "host memory");
	for (size_t i = 0; i < (size_t)distinct * pool->stride; i++)
		host[i] = (uint8_t)qmk_gpu_random(&state);
	for (uint32_t p = 0; p < distinct; p++) {
		uint8_t *page = host + p * pool->stride + layout->header_bytes;

		for (uint32_t t = 0; t < 128; t++) {
			/* 0x2c00 is 1/16, 0x3000 is 1/8: scales between them. */
			uint16_t scale = (uint16_t)(0x2c00 + qmk_gpu_random(&state) % 0x400);

			memcpy(page + layout->content_scales_offset + 2 * t, &scale, 2);
		}
	}
	for (uint32_t first = 0; first < POOL_PAGES; first += distinct)
		qmk_gpu_must(cudaMemcpy((uint8_t *)pool->base + (size_t)first * pool->stride, host,
					(size_t)distinct * pool->stride, cudaMemcpyHostToDevice),
			     "filling the pool");
	free(host);
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
	       ms * 1e9 / tokens, bytes / qmk_gpu_copy_rate() / ms, mma_ms / ms, c->flashmla_ms,
	       c->flashmla_ms / ms, c->wanted);
	fflush(stdout);
}

/* One case's call, over rotating block tables. */
struct call {
	struct qmk_attend_args args;
	uint32_t *tables[12];
	qmla_status_t (*run)(const struct qmk_attend_args *);
};

static void run_call(void *user, uint32_t k)
{
	struct call *call = user;

	call->args.block_table = call->tables[k];
	qmk_gpu_must_ok(call->run(&call->args), "launch");
}

/* The batch's sequences on the device, each with its own rows of the tail. */
static struct qmk_sequence *make_sequences(const struct attention_case *c, const uint16_t *tails)
{
	const uint32_t pages = c->tokens / QMK_PAGE_TOKENS;
	struct qmk_sequence *host = calloc(c->batch, sizeof(*host)), *device;

	qmk_gpu_must_ok(host ? QMLA_OK : QMLA_ERR_NO_MEMORY, "host memory");
	for (uint32_t b = 0; b < c->batch; b++)
		host[b] = (struct qmk_sequence){.total = c->tokens + c->tail,
						.recent_rows = tails + (size_t)b * c->tail * 576,
						.queries = c->queries,
						.query_row = b * c->queries,
						.packed_end = c->tokens,
						.table_start = b * pages};
	device = qmk_gpu_copy(host, c->batch * sizeof(*host));
	free(host);
	return device;
}

static void report_baseline(const struct attention_case *c, double ms)
{
	const double bytes = (double)c->batch * c->tokens * 576 * 2;

	printf("{\"bench\":\"attention_bf16\",\"heads\":%u,\"batch\":%u,\"tokens\":%u,"
	       "\"ms\":%.4f,\"bytes\":%.0f,\"gbytes_per_s\":%.0f,\"of_byte_floor\":%.2f,"
	       "\"flashmla_ms\":%.3f,\"ratio\":%.2f}\n",
	       c->heads, c->batch, c->tokens, ms, bytes, bytes / ms / 1e6,
	       bytes / qmk_gpu_copy_rate() / ms, c->flashmla_ms, c->flashmla_ms / ms);
	fflush(stdout);
}

/* Without constants: over BF16 pages. */
static void run_case(const struct attention_case *c, const struct qmk_layout *layout,
		     const struct qmk_pool *pool, const struct qmk_rope *rope,
		     const struct qmk_constants *constants)
{
	const struct qmk_ops *cuda = qmk_cuda_ops();
	const uint32_t pages = c->tokens / QMK_PAGE_TOKENS;
	const uint32_t rows = c->batch * c->queries;
	const uint32_t rotation = c->batch * pages < 4096 ? 12 : 4;
	uint64_t state = 7;
	uint16_t *tails = qmk_gpu_random_bf16((size_t)c->batch * c->tail * 576 + 1, &state);
	void *query_content = qmk_gpu_random_bf16((size_t)rows * c->heads * 512, &state);
	void *query_rope = qmk_gpu_random_bf16((size_t)rows * c->heads * 64, &state);
	struct qmk_sequence *sequences = make_sequences(c, tails);
	struct call call = {.args = {
				    .layout = layout,
				    .constants = constants,
				    .rope = rope,
				    .pool = *pool,
				    .batch = c->batch,
				    .heads = c->heads,
				    .rows = rows,
				    .max_queries = c->queries,
				    .max_total = c->tokens + c->tail,
				    .sequences = sequences,
				    .query_content = query_content,
				    .query_rope = query_rope,
				    .query_dtype = QMK_BF16,
				    .query_bits = c->query_bits,
				    .scale = SCALE,
				    .output_dtype = QMK_BF16,
			    }};
	double plan_ms;

	call.args.output = qmk_gpu_bytes((size_t)rows * c->heads * 512 * 2);
	call.args.workspace_bytes = cuda->attend_workspace(&call.args);
	call.args.workspace = qmk_gpu_bytes(call.args.workspace_bytes);
	for (uint32_t k = 0; k < rotation; k++)
		call.tables[k] = qmk_gpu_random_table(
			c->batch * pages, constants ? POOL_PAGES : BASELINE_PAGES, &state);
	call.run = cuda->plan;
	plan_ms = qmk_gpu_time(run_call, &call, rotation);
	call.run = constants ? cuda->attend : qmk_cuda_attend_baseline;
	if (constants)
		report(c, layout, qmk_gpu_time(run_call, &call, rotation), plan_ms);
	else
		report_baseline(c, qmk_gpu_time(run_call, &call, rotation));
	for (uint32_t k = 0; k < rotation; k++)
		qmk_gpu_free(call.tables[k]);
	qmk_gpu_free(sequences);
	qmk_gpu_free(query_content);
	qmk_gpu_free(query_rope);
	qmk_gpu_free(call.args.output);
	qmk_gpu_free(call.args.workspace);
	qmk_gpu_free(tails);
}

/* The same attention over a plain BF16 cache, kernels/cuda/baseline.h. */
static void bench_baseline(uint32_t heads, const struct qmk_rope *rope)
{
	static const struct attention_case bf16[] = {
		{QMK_FORMAT_C4R4, 16, 1, 128, 8192, 0, 0.289, 0, 0},
		{QMK_FORMAT_C4R4, 32, 1, 128, 8192, 0, 0.289, 0, 0},
		{QMK_FORMAT_C4R4, 16, 1, 8, 131072, 0, 0.294, 0, 0},
		{QMK_FORMAT_C4R4, 16, 1, 1, 131072, 0, 0.084, 0, 0},
	};
	const size_t part = (size_t)QMK_BASELINE_PAGE_BYTES * 512;
	uint64_t state = 11;
	struct qmk_layout layout;
	struct qmk_pool pool = {.stride = QMK_BASELINE_PAGE_BYTES};
	uint16_t *values = qmk_gpu_random_bf16(part / 2, &state);

	qmk_gpu_must_ok(qmk_layout_init(QMK_FORMAT_C4R4, 1, 512, 64, &layout), "layout");
	pool.base = qmk_gpu_bytes(pool.stride * BASELINE_PAGES);
	for (size_t at = 0; at < pool.stride * BASELINE_PAGES; at += part)
		qmk_gpu_must(cudaMemcpy((uint8_t *)pool.base + at, values, part,
					cudaMemcpyDeviceToDevice),
			     "filling the pool");
	for (size_t i = 0; i < sizeof(bf16) / sizeof(bf16[0]); i++)
		if (heads == 0 || heads == bf16[i].heads)
			run_case(&bf16[i], &layout, &pool, rope, NULL);
	qmk_gpu_free(pool.base);
	qmk_gpu_free(values);
}

void qmk_bench_attend(uint32_t heads)
{
	static const enum qmk_format formats[] = {QMK_FORMAT_C4R4, QMK_FORMAT_C2R4};
	const float mean[512] = {0};
	float frequency[32];
	struct qmk_rope rope = {.pairing = QMK_INTERLEAVED, .amplitude = 1};
	struct qmk_constants constants = {0};
	float *means = qmk_gpu_copy(mean, sizeof(mean));

	(void)qmk_gpu_copy_rate();
	for (int j = 0; j < 32; j++) {
		frequency[j] = 1;
		for (int k = 0; k < j; k++)
			frequency[j] *= 0.74989421f; /* 10000^(-1/32) */
	}
	rope.inv_freq = qmk_gpu_copy(frequency, sizeof(frequency));
	constants.content_mean = constants.rope_mean = means;
	for (size_t f = 0; f < 2; f++) {
		struct qmk_layout layout;
		struct qmk_pool pool;

		qmk_gpu_must_ok(qmk_layout_init(formats[f], 1, 512, 64, &layout), "layout");
		pool.stride = layout.block_bytes;
		pool.base = qmk_gpu_bytes(pool.stride * POOL_PAGES);
		fill_pool(&layout, &pool);
		for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
			if (cases[i].format == formats[f] &&
			    (heads == 0 || heads == cases[i].heads))
				run_case(&cases[i], &layout, &pool, &rope, &constants);
		qmk_gpu_free(pool.base);
	}
	bench_baseline(heads, &rope);
	qmk_gpu_free((void *)rope.inv_freq);
	qmk_gpu_free(means);
}
