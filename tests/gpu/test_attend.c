/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA attention held to float64 attention on the dequantised cache. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/numeric.h"
#include "tests/gpu/case.h"
#include "tests/gpu/device_memory.h"

#define LAYER     1u
#define MAX_BATCH 8u
#define SCALE     0.0721688f

struct batch {
	struct gpu_case *c;
	uint32_t heads, count, rows, max_total, max_queries;
	struct qmk_sequence sequences[MAX_BATCH];
	uint16_t *bf16; /* [count][bf16_rows][d_c + d_r], the rows of sink and recent */
	uint32_t bf16_rows;
	float *query_content, *query_rope;
	double *keys; /* [pages * 64][d_c + d_r]: means added, not rotated */
};

static uint32_t pick(uint64_t *state, uint32_t below)
{
	return (uint32_t)(below * gpu_uniform(state));
}

static void dequantise(struct batch *b)
{
	struct gpu_case *c = b->c;
	uint32_t dc = c->layout.content_dim, dr = c->layout.rope_dim;
	size_t tokens = (size_t)c->pages * QMK_PAGE_TOKENS;
	float *content = malloc(tokens * dc * sizeof(float));
	float *rope = malloc(tokens * dr * sizeof(float));
	struct qmk_unpack_args args = {.layout = &c->layout,
				       .constants = &c->constants,
				       .pool = c->pool,
				       .layer = LAYER,
				       .pages = c->pages,
				       .slots = c->slots,
				       .content = content,
				       .rope = rope,
				       .content_stride = dc,
				       .rope_stride = dr,
				       .dtype = QMK_F32};

	assert_int_equal(qmk_cpu_ops.unpack(&args), QMLA_OK);
	b->keys = malloc(tokens * (dc + dr) * sizeof(double));
	for (size_t t = 0; t < tokens; t++) {
		for (uint32_t i = 0; i < dc; i++)
			b->keys[t * (dc + dr) + i] = content[t * dc + i];
		for (uint32_t i = 0; i < dr; i++)
			b->keys[t * (dc + dr) + dc + i] = rope[t * dr + i];
	}
	free(content);
	free(rope);
}

/* Lengths of all kinds: empty tails, one token, sinks, windows that begin inside a page. */
static void make_sequences(struct batch *b, uint32_t pages_each, uint32_t queries, uint64_t *state)
{
	uint32_t row = 0;

	for (uint32_t i = 0; i < b->count; i++) {
		struct qmk_sequence *s = &b->sequences[i];
		uint32_t packed = i == 0   ? 0
				  : i == 1 ? pages_each * QMK_PAGE_TOKENS
					   : pick(state, pages_each + 1) * QMK_PAGE_TOKENS;
		uint32_t tail = i == 1 ? 0 : pick(state, QMK_PAGE_TOKENS);

		s->queries = 1 + pick(state, queries);
		if (packed + tail < s->queries)
			tail = s->queries;
		s->packed_end = packed;
		s->total = packed + tail;
		if (i % 3 == 2 && packed > 128) { /* sink and a recent window over packed tokens */
			s->sink = 4;
			s->packed_end = packed - 100;
		}
		s->query_row = row;
		s->table_start = i * pages_each;
		row += s->queries;
		b->max_total = s->total > b->max_total ? s->total : b->max_total;
		b->max_queries = s->queries > b->max_queries ? s->queries : b->max_queries;
	}
	b->rows = row;
}

/* Parts that begin and end inside pages, that miss the tail, that no query sees. */
static void cut_parts(struct batch *b, uint64_t *state)
{
	for (uint32_t i = 0; i < b->count; i++) {
		struct qmk_sequence *s = &b->sequences[i];

		s->key_begin = pick(state, s->total);
		s->key_end = s->key_begin + 1 + pick(state, s->total - s->key_begin);
	}
}

static void make_rows(struct batch *b, uint64_t *state)
{
	size_t width = b->c->layout.content_dim + b->c->layout.rope_dim;
	size_t values;
	uint16_t *device;

	b->bf16_rows = 256;
	values = b->count * b->bf16_rows * width;
	b->bf16 = malloc(values * sizeof(uint16_t));
	for (size_t i = 0; i < values; i++)
		b->bf16[i] = qmk_float_to_bf16(gpu_normal(state));
	device = device_copy(b->bf16, values * sizeof(uint16_t));
	for (uint32_t i = 0; i < b->count; i++) {
		b->sequences[i].sink_rows = device + i * b->bf16_rows * width;
		b->sequences[i].recent_rows = b->sequences[i].sink_rows + 8 * width;
	}
}

static void make_queries(struct batch *b, uint64_t *state)
{
	size_t rows = (size_t)b->rows * b->heads;

	b->query_content = malloc(rows * b->c->layout.content_dim * sizeof(float));
	b->query_rope = malloc(rows * b->c->layout.rope_dim * sizeof(float));
	/* Rounded to BF16 so that every kernel starts from the same numbers. */
	for (size_t i = 0; i < rows * b->c->layout.content_dim; i++)
		b->query_content[i] = qmk_bf16_to_float(qmk_float_to_bf16(gpu_normal(state)));
	for (size_t i = 0; i < rows * b->c->layout.rope_dim; i++)
		b->query_rope[i] = qmk_bf16_to_float(qmk_float_to_bf16(gpu_normal(state)));
}

/* Row of token @p t of sequence @p i: content and rotated key, in double. */
static void key_of(const struct batch *b, uint32_t i, uint32_t t, double *out)
{
	const struct gpu_case *c = b->c;
	const struct qmk_sequence *s = &b->sequences[i];
	const uint32_t dc = c->layout.content_dim, dr = c->layout.rope_dim;
	const uint32_t width = dc + dr;

	if (t >= s->sink && t < s->packed_end) {
		memcpy(out, b->keys + (size_t)(s->table_start * QMK_PAGE_TOKENS + t) * width,
		       width * sizeof(double));
	} else {
		const uint16_t *rows = b->bf16 + (size_t)i * b->bf16_rows * width;

		rows += (size_t)(t < s->sink ? t : 8 + t - s->packed_end) * width;
		for (uint32_t k = 0; k < width; k++) {
			bool paper = c->layout.rope_rotated;
			double mean = paper    ? 0
				      : k < dc ? c->constants.content_mean[k]
					       : c->constants.rope_mean[k - dc];

			out[k] = qmk_bf16_to_float(rows[k]) + mean;
		}
	}
	if (c->layout.rope_rotated)
		return;
	for (uint32_t j = 0; j < dr / 2; j++) {
		bool half = c->rope.pairing == QMK_HALF_SPLIT;
		double *x = out + dc + (half ? j : 2 * j), *y = half ? x + dr / 2 : x + 1;
		double angle = (double)t * c->rope.inv_freq[j];
		double a = *x, d = *y;

		*x = a * cos(angle) - d * sin(angle);
		*y = a * sin(angle) + d * cos(angle);
	}
}

/* Attention of one query row in double. Returns the base-2 log-sum-exp. */
static double reference(const struct batch *b, uint32_t i, uint32_t query, uint32_t head,
			double *out)
{
	const struct qmk_sequence *s = &b->sequences[i];
	const uint32_t dc = b->c->layout.content_dim, dr = b->c->layout.rope_dim;
	const uint32_t visible = s->total - s->queries + query + 1;
	size_t row = (size_t)(s->query_row + query) * b->heads + head;
	double *key = malloc((dc + dr) * sizeof(double));
	double peak = -INFINITY, sum = 0;

	memset(out, 0, dc * sizeof(double));
	for (uint32_t t = 0; t < visible; t++) {
		double score = 0, grown, p;

		if (s->key_end && (t < s->key_begin || t >= s->key_end))
			continue;
		key_of(b, i, t, key);
		for (uint32_t k = 0; k < dc; k++)
			score += b->query_content[row * dc + k] * key[k];
		for (uint32_t k = 0; k < dr; k++)
			score += b->query_rope[row * dr + k] * key[dc + k];
		score *= SCALE;
		grown = score > peak ? exp(peak - score) : 1;
		peak = score > peak ? score : peak;
		p = exp(score - peak);
		sum = sum * grown + p;
		for (uint32_t k = 0; k < dc; k++)
			out[k] = out[k] * grown + p * key[k];
	}
	for (uint32_t k = 0; k < dc && sum > 0; k++)
		out[k] /= sum;
	free(key);
	return (peak + log(sum)) / log(2);
}

/*
 * Softmax does not see the mean that all contents share, and the kernels leave it out
 * of their scores: their log-sum-exp is lower by the query's product with it.
 */
static double mean_score(const struct batch *b, size_t row)
{
	const uint32_t dc = b->c->layout.content_dim;
	double score = 0;

	if (b->c->layout.rope_rotated)
		return 0;
	for (uint32_t k = 0; k < dc; k++)
		score += b->query_content[row * dc + k] * b->c->constants.content_mean[k];
	return score * SCALE / log(2);
}

static void compare(const struct batch *b, const float *output, const float *lse, double limit)
{
	const uint32_t dc = b->c->layout.content_dim;
	double *want = malloc(dc * sizeof(double));
	double error = 0, norm = 0, worst_lse = 0;

	for (uint32_t i = 0; i < b->count; i++) {
		const struct qmk_sequence *s = &b->sequences[i];

		for (uint32_t q = 0; q < s->queries; q++) {
			for (uint32_t h = 0; h<b->heads; h += b->heads> 8 ? 7u : 1u) {
				size_t row = (size_t)(s->query_row + q) * b->heads + h;
				double base = reference(b, i, q, h, want);
				bool none = isinf(base); /* no key of the part is visible */
				double off = none ? !(isinf(lse[row]) && lse[row] < 0)
						  : fabs(base - mean_score(b, row) - lse[row]);

				worst_lse = off > worst_lse ? off : worst_lse;
				for (uint32_t k = 0; k < dc; k++) {
					double d = output[row * dc + k] - want[k];

					if (isnan(output[row * dc + k]))
						fail_msg("row %zu column %u is NaN", row, k);
					error += d * d;
					norm += want[k] * want[k];
				}
			}
		}
	}
	printf("  heads %u, rows %u, longest %u: relative error %.2e, log-sum-exp off by %.2e\n",
	       b->heads, b->rows, b->max_total, sqrt(error / norm), worst_lse);
	assert_true(sqrt(error / norm) <= limit);
	assert_true(worst_lse <= 4 * limit);
	free(want);
}

/* Scales that are no number and other codes for the tokens of pages that do not count. */
static void poison(struct batch *b)
{
	struct gpu_case *c = b->c;

	if (c->layout.rope_rotated)
		return;
	for (uint32_t i = 0; i < b->count; i++) {
		const struct qmk_sequence *s = &b->sequences[i];
		const uint32_t end = (s->packed_end + 63) / 64 * 64;

		for (uint32_t t = 0; t < end; t++) {
			uint8_t *page = (uint8_t *)c->pool.base +
					c->slots[s->table_start + t / 64] * c->pool.stride +
					qmk_layout_page_offset(&c->layout, LAYER);
			const uint16_t nan = 0x7e00;

			if (t >= s->sink && t < s->packed_end)
				continue;
			memcpy(page + c->layout.content_scales_offset + 2 * (t % 64), &nan, 2);
			memcpy(page + c->layout.rope_scales_offset + 2 * (t % 64), &nan, 2);
			memset(page + t % 64 * c->layout.content_row_bytes, 0xff,
			       c->layout.content_row_bytes);
		}
	}
	device_write(c->device_pool.base, c->pool.base, c->pool.stride * c->pool_slots);
}

static void run_cuda(struct batch *b, uint32_t query_bits, enum qmk_dtype dtype, float *output,
		     float *lse)
{
	const struct qmk_ops *cuda = qmk_cuda_ops();
	struct gpu_case *c = b->c;
	size_t rows = (size_t)b->rows * b->heads, outputs = rows * c->layout.content_dim;
	struct qmk_attend_args args = {
		.layout = &c->layout,
		.constants = &c->device_constants,
		.rope = &c->device_rope,
		.pool = c->device_pool,
		.layer = LAYER,
		.batch = b->count,
		.heads = b->heads,
		.rows = b->rows,
		.max_queries = b->max_queries,
		.max_total = b->max_total,
		.sequences = device_copy(b->sequences, sizeof(b->sequences)),
		.block_table = c->device_slots,
		.query_content = device_copy(b->query_content, outputs * sizeof(float)),
		.query_rope = device_copy(b->query_rope, rows * c->layout.rope_dim * sizeof(float)),
		.query_dtype = QMK_F32,
		.query_bits = query_bits,
		.scale = SCALE,
		.output = device_alloc(outputs * sizeof(float)),
		.output_dtype = dtype,
		.lse = device_alloc(rows * sizeof(float)),
	};
	uint16_t *rounded = malloc(outputs * sizeof(uint16_t));

	args.workspace_bytes = cuda->attend_workspace(&args);
	assert_true(args.workspace_bytes > 0);
	args.workspace = device_alloc(args.workspace_bytes);
	assert_int_equal(cuda->plan(&args), QMLA_OK);
	/* Again from a captured graph: later runs must not depend on what the first left behind. */
	assert_int_equal(cuda->attend(&args), QMLA_OK);
	args.stream = device_graph_begin();
	assert_int_equal(cuda->attend(&args), QMLA_OK);
	device_graph_replay(args.stream, 2);
	if (dtype == QMK_F32) {
		device_read(output, args.output, outputs * sizeof(float));
	} else {
		device_read(rounded, args.output, outputs * sizeof(uint16_t));
		for (size_t i = 0; i < outputs; i++)
			output[i] = qmk_bf16_to_float(rounded[i]);
	}
	device_read(lse, args.lse, rows * sizeof(float));
	free(rounded);
}

struct shape {
	enum qmk_format format;
	enum qmk_pairing pairing;
	uint32_t content_dim, rope_dim, heads, count, pages_each, queries;
	enum qmk_dtype output;
	bool part; /* attend only some positions, drawn at random */
	uint32_t query_bits;
};

static void check_shape(const struct shape *shape, uint64_t seed)
{
	struct batch b = {.heads = shape->heads, .count = shape->count};
	uint64_t state = seed;
	float *output, *lse;

	b.c = gpu_case_create(shape->format, shape->content_dim, shape->rope_dim,
			      shape->count * shape->pages_each, false, shape->pairing, seed);
	gpu_case_pack_on_cpu(b.c);
	dequantise(&b);
	make_sequences(&b, shape->pages_each, shape->queries, &state);
	if (shape->part)
		cut_parts(&b, &state);
	make_rows(&b, &state);
	make_queries(&b, &state);
	output = malloc((size_t)b.rows * b.heads * shape->content_dim * sizeof(float));
	lse = malloc((size_t)b.rows * b.heads * sizeof(float));
	poison(&b);
	run_cuda(&b, shape->query_bits, shape->output, output, lse);
	/* One plane of 8 bits is rougher, and says so in kernels/ops.h. */
	compare(&b, output, lse, shape->query_bits == 8 ? 2e-2 : 5e-3);
	free(output);
	free(lse);
	free(b.bf16);
	free(b.query_content);
	free(b.query_rope);
	free(b.keys);
	gpu_case_destroy(b.c);
}

static void attention_agrees_with_float64(void **state)
{
	static const struct shape shapes[] = {
		{QMK_FORMAT_C4R4, QMK_INTERLEAVED, 512, 64, 16, 8, 9, 1, QMK_F32, false, 0},
		{QMK_FORMAT_C4R4, QMK_HALF_SPLIT, 512, 64, 16, 8, 9, 1, QMK_BF16, false, 0},
		{QMK_FORMAT_C4R4, QMK_INTERLEAVED, 512, 64, 1, 4, 30, 1, QMK_F32, false, 0},
		{QMK_FORMAT_C4R4, QMK_INTERLEAVED, 512, 64, 20, 5, 6, 2, QMK_F32, false, 0},
		{QMK_FORMAT_C4R4, QMK_INTERLEAVED, 512, 64, 32, 5, 6, 1, QMK_BF16, false, 0},
		{QMK_FORMAT_C4R4, QMK_INTERLEAVED, 512, 64, 40, 3, 6, 4, QMK_F32, false, 0},
		{QMK_FORMAT_C4R4, QMK_INTERLEAVED, 512, 64, 64, 3, 6, 2, QMK_F32, false, 0},
		{QMK_FORMAT_C4R4, QMK_INTERLEAVED, 512, 64, 128, 3, 6, 1, QMK_BF16, false, 0},
		{QMK_FORMAT_C2R4, QMK_INTERLEAVED, 512, 64, 16, 8, 9, 4, QMK_F32, false, 0},
		{QMK_FORMAT_C2R4, QMK_HALF_SPLIT, 512, 64, 64, 3, 9, 1, QMK_BF16, false, 0},
		{QMK_FORMAT_PAPER_C4R4, QMK_INTERLEAVED, 512, 64, 16, 5, 9, 2, QMK_F32, false, 0},
		{QMK_FORMAT_C4R4, QMK_INTERLEAVED, 256, 32, 40, 5, 9, 2, QMK_F32, false, 0},
		{QMK_FORMAT_C4R4, QMK_INTERLEAVED, 512, 64, 16, 8, 12, 2, QMK_F32, true, 0},
		{QMK_FORMAT_C2R4, QMK_HALF_SPLIT, 512, 64, 40, 8, 12, 3, QMK_F32, true, 0},
		{QMK_FORMAT_PAPER_C4R4, QMK_INTERLEAVED, 512, 64, 16, 8, 12, 2, QMK_F32, true, 0},
		{QMK_FORMAT_C4R4, QMK_INTERLEAVED, 512, 64, 16, 8, 9, 2, QMK_F32, false, 8},
		{QMK_FORMAT_C4R4, QMK_HALF_SPLIT, 512, 64, 40, 5, 9, 1, QMK_F32, false, 8},
		{QMK_FORMAT_C2R4, QMK_INTERLEAVED, 512, 64, 32, 5, 9, 1, QMK_F32, false, 8},
		{QMK_FORMAT_C4R4, QMK_INTERLEAVED, 512, 64, 16, 8, 9, 2, QMK_F32, false, 16},
		{QMK_FORMAT_C2R4, QMK_HALF_SPLIT, 512, 64, 64, 3, 9, 1, QMK_F32, false, 16},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		check_shape(&shapes[i], 1000 + i);
}

static void a_long_sequence_is_split_and_joined(void **state)
{
	static const struct shape shape = {QMK_FORMAT_C4R4, QMK_INTERLEAVED, 512, 64, 2, 2, 500, 1,
					   QMK_F32,         false,           0};

	(void)state;
	check_shape(&shape, 31);
}

/* Up to 200,000 tokens: positions where a float angle has lost its fraction. */
static void positions_stay_exact_to_200000_tokens(void **state)
{
	struct shape shape = {QMK_FORMAT_C4R4, QMK_INTERLEAVED, 512, 64, 1, 2, 3125, 1,
			      QMK_F32,         false,           0};

	(void)state;
	check_shape(&shape, 3);
	shape.pairing = QMK_HALF_SPLIT;
	shape.format = QMK_FORMAT_C2R4;
	check_shape(&shape, 6);
}

static void random_shapes_agree_too(void **state)
{
	static const uint32_t heads[] = {1, 8, 16, 20, 24, 32, 40, 64, 128};
	uint64_t random = 2026;

	(void)state;
	for (uint32_t i = 0; i < 24; i++) {
		const struct shape shape = {
			.format = pick(&random, 2) ? QMK_FORMAT_C2R4 : QMK_FORMAT_C4R4,
			.pairing = pick(&random, 2) ? QMK_HALF_SPLIT : QMK_INTERLEAVED,
			.content_dim = 512,
			.rope_dim = 64,
			.heads = heads[pick(&random, sizeof(heads) / sizeof(heads[0]))],
			.count = 2 + pick(&random, MAX_BATCH - 1),
			.pages_each = 3 + pick(&random, 8),
			.queries = 1 + pick(&random, 4),
			.output = pick(&random, 2) ? QMK_BF16 : QMK_F32,
			.part = pick(&random, 3) == 0,
			.query_bits = 8 * pick(&random, 3),
		};

		check_shape(&shape, 5000 + i);
	}
}

int main(int argc, char **argv)
{
	/* compute-sanitizer slows kernels down a hundredfold: --small is for it. */
	const struct CMUnitTest small[] = {cmocka_unit_test(attention_agrees_with_float64)};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(attention_agrees_with_float64),
		cmocka_unit_test(a_long_sequence_is_split_and_joined),
		cmocka_unit_test(random_shapes_agree_too),
		cmocka_unit_test(positions_stay_exact_to_200000_tokens),
	};

	if (!qmk_cuda_ops()) {
		puts("skipped: no CUDA device");
		return 77;
	}
	if (argc > 1 && strcmp(argv[1], "--small") == 0)
		return cmocka_run_group_tests(small, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
