/* SPDX-License-Identifier: Apache-2.0 */
/* Times the CUDA kernels that write, read and check pages, beside a plain copy. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/bench.h"

#define PAGES 8192u /* 524,288 tokens of one layer */

static void run_pack(void *user, uint32_t k)
{
	(void)k;
	qmk_gpu_must_ok(qmk_cuda_ops()->pack(user), "pack");
}

static void run_unpack(void *user, uint32_t k)
{
	(void)k;
	qmk_gpu_must_ok(qmk_cuda_ops()->unpack(user), "unpack");
}

static void run_checksum(void *user, uint32_t k)
{
	(void)k;
	qmk_gpu_must_ok(qmk_cuda_ops()->checksum(user), "checksum");
}

static void report_pages(const char *what, const char *format, uint32_t pages, double bytes,
			 double ms)
{
	printf("{\"bench\":\"%s\",\"format\":\"%s\",\"pages\":%u,\"ms\":%.4f,\"bytes\":%.0f,"
	       "\"gbytes_per_s\":%.0f,\"of_copy\":%.2f,\"million_tokens_per_s\":%.1f}\n",
	       what, format, pages, ms, bytes, bytes / ms / 1e6, bytes / ms / qmk_gpu_copy_rate(),
	       (double)pages * QMK_PAGE_TOKENS / ms / 1e3);
	fflush(stdout);
}

/* Unit lower triangle with small entries, and weights of one. */
static float *random_feedback(uint32_t n, uint64_t *state)
{
	float *host = calloc((size_t)n * n, sizeof(*host));
	float *device;

	qmk_gpu_must_ok(host ? QMLA_OK : QMLA_ERR_NO_MEMORY, "host memory");
	for (uint32_t i = 0; i < n; i++) {
		host[(size_t)i * n + i] = 1;
		for (uint32_t j = 0; j < i; j++)
			host[(size_t)i * n + j] =
				0.1f * ((float)(qmk_gpu_random(state) % 1000) / 1000.f - 0.5f);
	}
	device = qmk_gpu_copy(host, (size_t)n * n * sizeof(*host));
	free(host);
	return device;
}

/* A permutation of the pages: odd times modulo a power of two. */
static uint32_t *shuffled_slots(void)
{
	uint32_t *order = malloc(PAGES * sizeof(*order)), *slots;

	qmk_gpu_must_ok(order ? QMLA_OK : QMLA_ERR_NO_MEMORY, "host memory");
	for (uint32_t i = 0; i < PAGES; i++)
		order[i] = i * 2654435761u % PAGES;
	slots = qmk_gpu_copy(order, PAGES * sizeof(*order));
	free(order);
	return slots;
}

static void bench_format(enum qmk_format format, const struct qmk_constants *means)
{
	const char *name = qmk_format_name(format);
	uint64_t state = 3;
	struct qmk_layout layout;
	struct qmk_constants constants = *means;
	uint32_t *slots = shuffled_slots();
	uint16_t *rows = qmk_gpu_random_bf16((size_t)PAGES * 64 * 576, &state);
	uint16_t *keys = rows + (size_t)PAGES * 64 * 512;
	struct qmk_pool pool;
	double raw = (double)PAGES * 64 * 576 * 2, packed;

	qmk_gpu_must_ok(qmk_layout_init(format, 1, 512, 64, &layout), "layout");
	pool.stride = layout.block_bytes;
	pool.base = qmk_gpu_bytes(pool.stride * PAGES);
	packed = (double)PAGES * layout.page_bytes;

	struct qmk_pack_args pack = {.layout = &layout,
				     .constants = &constants,
				     .pool = pool,
				     .pages = PAGES,
				     .slots = slots,
				     .content = rows,
				     .rope = keys,
				     .content_stride = 512,
				     .rope_stride = 64,
				     .dtype = QMK_BF16};
	struct qmk_unpack_args unpack = {.layout = &layout,
					 .constants = means,
					 .pool = pool,
					 .pages = PAGES,
					 .slots = slots,
					 .content = rows,
					 .rope = keys,
					 .content_stride = 512,
					 .rope_stride = 64,
					 .dtype = QMK_BF16};
	struct qmk_checksum_args checksum = {.layout = &layout,
					     .pool = pool,
					     .blocks = PAGES,
					     .slots = slots,
					     .checksums = qmk_gpu_bytes(PAGES * sizeof(uint64_t))};

	report_pages("pack_plain", name, PAGES, raw + packed, qmk_gpu_time(run_pack, &pack, 1));
	if (format != QMK_FORMAT_PAPER_C4R4) {
		constants.content_feedback = random_feedback(512, &state);
		constants.rope_feedback = random_feedback(64, &state);
		report_pages("pack_feedback", name, PAGES, raw + packed,
			     qmk_gpu_time(run_pack, &pack, 1));
		/* Of the shape alone: any [512][64] costs the same. */
		constants.cross_feedback = constants.content_feedback;
		report_pages("pack_cross_feedback", name, PAGES, raw + packed,
			     qmk_gpu_time(run_pack, &pack, 1));
		constants.cross_feedback = NULL;
		qmk_gpu_free((void *)constants.content_feedback);
		qmk_gpu_free((void *)constants.rope_feedback);
	}
	report_pages("unpack", name, PAGES, raw + packed, qmk_gpu_time(run_unpack, &unpack, 1));
	report_pages("checksum", name, PAGES, packed, qmk_gpu_time(run_checksum, &checksum, 1));
	qmk_gpu_free(checksum.checksums);
	qmk_gpu_free(pool.base);
	qmk_gpu_free(rows);
	qmk_gpu_free(slots);
}

static const float *zero_means(void)
{
	const float mean[512] = {0};

	return qmk_gpu_copy(mean, sizeof(mean));
}

void qmk_bench_pages(void)
{
	const struct qmk_constants means = {.content_mean = zero_means(),
					    .rope_mean = zero_means()};

	(void)qmk_gpu_copy_rate();
	bench_format(QMK_FORMAT_C4R4, &means);
	bench_format(QMK_FORMAT_C2R4, &means);
	bench_format(QMK_FORMAT_PAPER_C4R4, &means);
	qmk_gpu_free((void *)means.content_mean);
	qmk_gpu_free((void *)means.rope_mean);
}

#define REQUESTS     128u
#define APPEND_LIMIT 0.005 /* ms a layer */

static void run_append(void *user, uint32_t k)
{
	(void)k;
	qmk_gpu_must_ok(qmk_cuda_ops()->append(user), "append");
}

/* One token each to 128 tails, of which @p filling fill. */
static void bench_append(struct qmk_append_args *args, uint16_t *rows, uint32_t filling,
			 const char *rounding)
{
	struct qmk_tail tails[REQUESTS];
	double ms;

	for (uint32_t r = 0; r < REQUESTS; r++)
		tails[r] = (struct qmk_tail){.rows = rows + (size_t)r * 64 * 576,
					     .filled = r < filling ? 63 : r % 62,
					     .tokens = 1,
					     .row = r,
					     .slot = r};
	args->tails = qmk_gpu_copy(tails, sizeof(tails));
	ms = qmk_gpu_time(run_append, args, 20);
	printf("{\"bench\":\"append\",\"format\":\"%s\",\"rounding\":\"%s\",\"requests\":%u,"
	       "\"filling\":%u,\"ms\":%.4f,\"required\":%.4f}\n",
	       qmk_format_name(args->layout->format), rounding, REQUESTS, filling, ms,
	       APPEND_LIMIT);
	fflush(stdout);
	qmk_gpu_free((void *)args->tails);
}

void qmk_bench_append(void)
{
	static const uint32_t filling[] = {0, 2, REQUESTS};
	uint64_t state = 5;
	struct qmk_constants constants = {.content_mean = zero_means(), .rope_mean = zero_means()};
	uint16_t *rows = qmk_gpu_random_bf16((size_t)REQUESTS * 65 * 576, &state);
	uint16_t *added = rows + (size_t)REQUESTS * 64 * 576;
	struct qmk_layout layout;
	struct qmk_append_args args = {.layout = &layout,
				       .constants = &constants,
				       .requests = REQUESTS,
				       .content = added,
				       .rope = added + (size_t)REQUESTS * 512,
				       .content_stride = 512,
				       .rope_stride = 64,
				       .dtype = QMK_BF16};

	qmk_gpu_must_ok(qmk_layout_init(QMK_FORMAT_C4R4, 1, 512, 64, &layout), "layout");
	args.pool.stride = layout.block_bytes;
	args.pool.base = qmk_gpu_bytes(layout.block_bytes * REQUESTS);
	for (size_t i = 0; i < sizeof(filling) / sizeof(filling[0]); i++)
		bench_append(&args, rows, filling[i], "plain");
	constants.content_feedback = random_feedback(512, &state);
	constants.rope_feedback = random_feedback(64, &state);
	for (size_t i = 0; i < sizeof(filling) / sizeof(filling[0]); i++)
		bench_append(&args, rows, filling[i], "feedback");
	qmk_gpu_free((void *)constants.content_feedback);
	qmk_gpu_free((void *)constants.rope_feedback);
	qmk_gpu_free((void *)constants.content_mean);
	qmk_gpu_free((void *)constants.rope_mean);
	qmk_gpu_free(args.pool.base);
	qmk_gpu_free(rows);
}
