/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "reference.h"

#define MAX_BATCH 6u

/* One random problem: everything that attend reads, in guarded memory. */
struct problem {
	struct qmk_layout layout;
	struct qmk_constants constants;
	struct qmk_rope rope;
	struct qmk_sequence sequences[MAX_BATCH];
	struct qmk_attend_args args;
	uint32_t slots;
	uint32_t *table;
	float *content_mean, *rope_mean, *inv_freq, *lse;
};

struct shape {
	enum qmk_format format;
	uint32_t layers, content_dim, rope_dim, heads, batch, longest, queries;
	bool sink, recent, constants;
	enum qmk_pairing pairing;
	enum qmk_dtype dtype;
};

static float *random_floats(struct ref_random *random, size_t count, double size)
{
	float *values = ref_alloc(count * sizeof(float), 0);

	for (size_t i = 0; i < count; i++)
		values[i] = (float)(size * ref_random_normal(random));
	return values;
}

/* Rows for @p count tokens, and behind them NaNs that nobody may read. */
static uint16_t *random_rows(struct ref_random *random, uint32_t count, uint32_t width)
{
	size_t used = (size_t)count * width;
	uint16_t *rows = ref_alloc((used + width) * sizeof(uint16_t), 0xff);

	for (size_t i = 0; i < used; i++)
		rows[i] = ref_to_bfloat(0.7 * ref_random_normal(random));
	return rows;
}

static void *random_queries(struct ref_random *random, size_t count, enum qmk_dtype dtype)
{
	float *values = random_floats(random, count, 1);
	uint16_t *narrow;

	if (dtype == QMK_F32)
		return values;
	narrow = ref_alloc(count * sizeof(uint16_t), 0);
	for (size_t i = 0; i < count; i++)
		narrow[i] = ref_to_bfloat((double)values[i]);
	ref_free(values);
	return narrow;
}

static void make_sequence(struct problem *problem, const struct shape *shape,
			  struct ref_random *random, struct qmk_sequence *sequence)
{
	uint32_t width = shape->content_dim + shape->rope_dim;
	uint32_t total = 1 + ref_random_below(random, shape->longest);
	uint32_t queries = 1 + ref_random_below(random, shape->queries);
	uint32_t packed = total / 64 * 64;

	if (shape->recent)
		packed -= ref_random_below(random, packed < 100 ? packed + 1 : 100);
	sequence->total = total;
	sequence->queries = queries < total ? queries : total;
	sequence->packed_end = packed;
	if (shape->sink)
		sequence->sink = ref_random_below(random, packed < 70 ? packed + 1 : 70);
	sequence->sink_rows = random_rows(random, sequence->sink, width);
	sequence->recent_rows = random_rows(random, total - packed, width);
	sequence->query_row = problem->args.rows;
	problem->args.rows += sequence->queries;
}

/* Pages in any order: a shuffled list of slots, dealt out to the sequences. */
static void make_pool(struct problem *problem, const struct shape *shape, struct ref_random *random)
{
	uint32_t used = 0;
	uint8_t *pool;

	for (uint32_t b = 0; b < shape->batch; b++) {
		problem->sequences[b].table_start = used;
		used += (problem->sequences[b].packed_end + 63) / 64;
	}
	problem->slots = used + 2;
	problem->table = ref_alloc((used + 1) * sizeof(uint32_t), 0xff);
	problem->args.pool.stride = problem->layout.block_bytes + 128 * ref_random_below(random, 3);
	/* 0xff everywhere: NaN scales in every byte that no sequence owns. */
	pool = ref_alloc(problem->slots * problem->args.pool.stride, 0xff);
	problem->args.pool.base = pool;
	for (uint32_t i = 0; i < used; i++)
		problem->table[i] = i + 1;
	for (uint32_t i = used; i > 1; i--) {
		uint32_t j = ref_random_below(random, i), swap = problem->table[i - 1];

		problem->table[i - 1] = problem->table[j];
		problem->table[j] = swap;
	}
	for (uint32_t i = 0; i < used; i++)
		ref_page_random(
			&problem->layout, random,
			pool + problem->table[i] * problem->args.pool.stride +
				qmk_layout_page_offset(&problem->layout, problem->args.layer));
}

/* Garbage in the page bytes of tokens past a sequence's packed end. */
static void poison_tails(struct problem *problem)
{
	const struct qmk_layout *layout = &problem->layout;

	for (uint32_t b = 0; b < problem->args.batch; b++) {
		const struct qmk_sequence *sequence = &problem->sequences[b];
		uint32_t block = sequence->packed_end / 64;
		uint8_t *page;

		if (sequence->packed_end % 64 == 0)
			continue;
		page = (uint8_t *)problem->args.pool.base +
		       problem->table[sequence->table_start + block] * problem->args.pool.stride +
		       qmk_layout_page_offset(layout, problem->args.layer);
		for (uint32_t t = sequence->packed_end % 64; t < 64; t++) {
			memset(page + t * layout->content_row_bytes, 0xff,
			       layout->content_row_bytes);
			memset(page + layout->rope_codes_offset + t * layout->rope_row_bytes, 0xff,
			       layout->rope_row_bytes);
			if (layout->record_bytes) {
				memset(page + layout->content_scales_offset +
					       t * layout->record_bytes,
				       0xff, layout->record_bytes);
			} else {
				memset(page + layout->content_scales_offset + 2 * t, 0xff, 2);
				memset(page + layout->rope_scales_offset + 2 * t, 0xff, 2);
			}
		}
	}
}

static void problem_init(struct problem *problem, const struct shape *shape, uint64_t seed)
{
	struct ref_random random = {seed};
	struct qmk_attend_args *args = &problem->args;
	size_t rows;

	memset(problem, 0, sizeof(*problem));
	assert_int_equal(qmk_layout_init(shape->format, shape->layers, shape->content_dim,
					 shape->rope_dim, &problem->layout),
			 QMLA_OK);
	args->layout = &problem->layout;
	args->layer = ref_random_below(&random, shape->layers);
	args->batch = shape->batch;
	args->heads = shape->heads;
	args->sequences = problem->sequences;
	for (uint32_t b = 0; b < shape->batch; b++)
		make_sequence(problem, shape, &random, &problem->sequences[b]);
	make_pool(problem, shape, &random);
	poison_tails(problem);
	problem->content_mean = random_floats(&random, shape->content_dim, 0.5);
	problem->rope_mean = random_floats(&random, shape->rope_dim, 1);
	problem->inv_freq = ref_alloc(shape->rope_dim / 2 * sizeof(float), 0);
	for (uint32_t j = 0; j < shape->rope_dim / 2; j++)
		problem->inv_freq[j] = powf(10000.0f, -(float)j / (float)(shape->rope_dim / 2));
	problem->constants = (struct qmk_constants){.content_mean = problem->content_mean,
						    .rope_mean = problem->rope_mean};
	problem->rope = (struct qmk_rope){shape->pairing, problem->inv_freq, 1.1f};
	args->constants = shape->constants ? &problem->constants : NULL;
	args->rope = &problem->rope;
	args->block_table = problem->table;
	args->query_dtype = shape->dtype;
	args->output_dtype = QMK_F32;
	args->scale = 0.11f;
	rows = (size_t)args->rows * shape->heads;
	args->query_content = random_queries(&random, rows * shape->content_dim, shape->dtype);
	args->query_rope = random_queries(&random, rows * shape->rope_dim, shape->dtype);
	args->output = ref_alloc(rows * shape->content_dim * sizeof(float), 0xff);
	problem->lse = ref_alloc(rows * sizeof(float), 0xff);
	args->lse = problem->lse;
	args->workspace_bytes = ref_ops->attend_workspace(args);
	args->workspace = ref_alloc(args->workspace_bytes, 0xff);
}

static void problem_fini(struct problem *problem)
{
	for (uint32_t b = 0; b < problem->args.batch; b++) {
		ref_free((void *)(uintptr_t)problem->sequences[b].sink_rows);
		ref_free((void *)(uintptr_t)problem->sequences[b].recent_rows);
	}
	ref_free(problem->args.pool.base);
	ref_free(problem->table);
	ref_free(problem->content_mean);
	ref_free(problem->rope_mean);
	ref_free(problem->inv_freq);
	ref_free((void *)(uintptr_t)problem->args.query_content);
	ref_free((void *)(uintptr_t)problem->args.query_rope);
	ref_free(problem->args.output);
	ref_free(problem->lse);
	ref_free(problem->args.workspace);
}

/* Largest error of a row over the row's root mean square. */
static void assert_close(const float *found, const double *wanted, size_t rows, uint32_t dim,
			 double limit)
{
	for (size_t r = 0; r < rows; r++) {
		double square = 0, worst = 0;

		for (uint32_t k = 0; k < dim; k++) {
			double error = fabs((double)found[r * dim + k] - wanted[r * dim + k]);

			square += wanted[r * dim + k] * wanted[r * dim + k];
			worst = error > worst || isnan(error) ? error : worst;
		}
		if (!(worst <= limit * (sqrt(square / dim) + 1e-6)))
			fail_msg("row %zu: error %g, root mean square %g", r, worst,
				 sqrt(square / dim));
	}
}

static void assert_lse(const float *found, const double *wanted, size_t rows)
{
	for (size_t r = 0; r < rows; r++) {
		if (isinf(wanted[r]))
			assert_true(found[r] == -INFINITY);
		else if (!(fabs((double)found[r] - wanted[r]) <= 2e-5 * (1 + fabs(wanted[r]))))
			fail_msg("row %zu: lse %g, not %g", r, (double)found[r], wanted[r]);
	}
}

static void check_shape(const struct shape *shape, uint64_t seed)
{
	struct problem problem;
	double *output, *lse;
	size_t rows;

	problem_init(&problem, shape, seed);
	rows = (size_t)problem.args.rows * shape->heads;
	output = ref_alloc(rows * shape->content_dim * sizeof(double), 0);
	lse = ref_alloc(rows * sizeof(double), 0);
	ref_attend(&problem.args, output, lse);
	assert_int_equal(ref_ops->attend(&problem.args), QMLA_OK);
	assert_close(problem.args.output, output, rows, shape->content_dim, 2e-5);
	assert_lse(problem.lse, lse, rows);
	ref_free(output);
	ref_free(lse);
	problem_fini(&problem);
}

static void test_matches_float64(void **state)
{
	static const uint32_t contents[] = {64, 128, 192, 512}, ropes[] = {32, 64, 128};
	static const uint32_t heads[] = {1, 2, 3, 5, 8, 16};
	struct ref_random random = {2026};

	(void)state;
	for (unsigned n = 0; n < 48; n++) {
		struct shape shape = {
			.format = (enum qmk_format)(1 + n % 3),
			.layers = 1 + ref_random_below(&random, 3),
			.content_dim = contents[ref_random_below(&random, 4)],
			.rope_dim = ropes[ref_random_below(&random, 3)],
			.heads = heads[ref_random_below(&random, 6)],
			.batch = 1 + ref_random_below(&random, 3),
			.longest = n % 4 == 0 ? 3 : 300,
			.queries = n % 2 ? 1 : 9,
			.sink = n % 5 < 2,
			.recent = n % 3 != 1,
			.constants = n % 4 != 3,
			.pairing = (enum qmk_pairing)(n / 3 % 2),
			.dtype = (enum qmk_dtype)(n / 2 % 2),
		};

		check_shape(&shape, 1000 + n);
	}
}

/* More heads than a group of query rows holds, and several groups of queries. */
static void test_many_rows(void **state)
{
	struct shape wide = {.format = QMK_FORMAT_C4R4,
			     .layers = 1,
			     .content_dim = 64,
			     .rope_dim = 32,
			     .heads = 130,
			     .batch = 2,
			     .longest = 150,
			     .queries = 3,
			     .constants = true};
	struct shape deep = {.format = QMK_FORMAT_C2R4,
			     .layers = 1,
			     .content_dim = 128,
			     .rope_dim = 64,
			     .heads = 3,
			     .batch = 2,
			     .longest = 300,
			     .queries = 200,
			     .recent = true};

	(void)state;
	for (uint64_t seed = 0; seed < 3; seed++) {
		check_shape(&wide, seed);
		check_shape(&deep, seed);
	}
}

static const struct shape mixed = {.format = QMK_FORMAT_C4R4,
				   .layers = 2,
				   .content_dim = 128,
				   .rope_dim = 64,
				   .heads = 5,
				   .batch = 4,
				   .longest = 500,
				   .queries = 40,
				   .sink = true,
				   .recent = true,
				   .constants = true};

/* Shortens a sequence to its first @p total tokens: what the model saw back then. */
static void truncate_sequence(struct qmk_sequence *sequence, uint32_t total, uint32_t queries)
{
	sequence->total = total;
	sequence->queries = queries;
	if (sequence->packed_end > total)
		sequence->packed_end = total;
	if (sequence->sink > sequence->packed_end)
		sequence->sink = sequence->packed_end;
}

/*
 * A token's output is the same to the last bit whether its query comes alone, in a
 * chunk, or in a batch with others: what makes a cached and a computed prefix agree.
 */
static void test_result_does_not_depend_on_batch_or_chunk(void **state)
{
	struct problem problem;
	float *whole, *lse;
	size_t bytes;

	(void)state;
	problem_init(&problem, &mixed, 77);
	bytes = (size_t)problem.args.rows * mixed.heads * mixed.content_dim * sizeof(float);
	assert_int_equal(ref_ops->attend(&problem.args), QMLA_OK);
	whole = ref_alloc(bytes, 0);
	lse = ref_alloc((size_t)problem.args.rows * mixed.heads * sizeof(float), 0);
	memcpy(whole, problem.args.output, bytes);
	memcpy(lse, problem.lse, (size_t)problem.args.rows * mixed.heads * sizeof(float));
	memset(problem.args.output, 0xff, bytes);
	for (uint32_t b = 0; b < mixed.batch; b++) {
		struct qmk_sequence sequence = problem.sequences[b];

		for (uint32_t i = 0; i < sequence.queries; i++) {
			struct qmk_sequence one = sequence;
			struct qmk_attend_args args = problem.args;

			truncate_sequence(&one, sequence.total - sequence.queries + i + 1, 1);
			one.query_row = sequence.query_row + i;
			args.batch = 1;
			args.sequences = &one;
			assert_int_equal(ref_ops->attend(&args), QMLA_OK);
		}
	}
	assert_memory_equal(whole, problem.args.output, bytes);
	assert_memory_equal(lse, problem.lse,
			    (size_t)problem.args.rows * mixed.heads * sizeof(float));
	ref_free(whole);
	ref_free(lse);
	problem_fini(&problem);
}

/* Random cuts of the keys, each part by itself, joined by merge: the whole again. */
static void test_parts_merge_to_the_whole(void **state)
{
	enum { PARTS = 4 };
	struct ref_random random = {5};

	(void)state;
	for (unsigned n = 0; n < 4; n++) {
		struct problem problem;
		double *output, *lse;
		float *outputs, *partial;
		size_t rows;
		struct qmk_merge_args merge;

		problem_init(&problem, &mixed, 200 + n);
		rows = (size_t)problem.args.rows * mixed.heads;
		output = ref_alloc(rows * mixed.content_dim * sizeof(double), 0);
		lse = ref_alloc(rows * sizeof(double), 0);
		ref_attend(&problem.args, output, lse);
		outputs = ref_alloc(PARTS * rows * mixed.content_dim * sizeof(float), 0xff);
		partial = ref_alloc(PARTS * rows * sizeof(float), 0xff);
		for (unsigned part = 0; part < PARTS; part++) {
			struct qmk_attend_args args = problem.args;
			struct qmk_sequence view[MAX_BATCH];
			struct ref_random cuts = {random.state};

			for (uint32_t b = 0; b < mixed.batch; b++) {
				uint32_t cut[PARTS + 1] = {0};
				uint32_t total = problem.sequences[b].total;

				/* Aligned or not; equal cuts make empty parts. */
				for (unsigned c = 1; c < PARTS; c++) {
					uint32_t at = ref_random_below(&cuts, total + 1);

					at = n % 2 ? at / 64 * 64 : at;
					cut[c] = at > cut[c - 1] ? at : cut[c - 1];
				}
				cut[PARTS] = total;
				view[b] = problem.sequences[b];
				view[b].key_begin = cut[part];
				view[b].key_end = cut[part + 1];
				if (view[b].key_end ==
				    0) /* 0 would mean all: say nothing instead */
					view[b].key_begin = view[b].key_end = total;
			}
			args.sequences = view;
			args.output = outputs + part * rows * mixed.content_dim;
			args.lse = partial + part * rows;
			assert_int_equal(ref_ops->attend(&args), QMLA_OK);
		}
		(void)ref_random_next(&random);
		merge = (struct qmk_merge_args){.parts = PARTS,
						.rows = (uint32_t)rows,
						.content_dim = mixed.content_dim,
						.outputs = outputs,
						.lse = partial,
						.output = problem.args.output,
						.output_lse = problem.lse};
		assert_int_equal(ref_ops->merge(&merge), QMLA_OK);
		assert_close(problem.args.output, output, rows, mixed.content_dim, 3e-5);
		assert_lse(problem.lse, lse, rows);
		ref_free(output);
		ref_free(lse);
		ref_free(outputs);
		ref_free(partial);
		problem_fini(&problem);
	}
}

static void test_part_without_keys(void **state)
{
	struct shape shape = mixed;
	struct problem problem;

	(void)state;
	shape.batch = 1;
	problem_init(&problem, &shape, 3);
	problem.sequences[0].key_begin = problem.sequences[0].key_end = problem.sequences[0].total;
	assert_int_equal(ref_ops->attend(&problem.args), QMLA_OK);
	for (size_t r = 0; r < (size_t)problem.args.rows * shape.heads; r++) {
		assert_true(problem.lse[r] == -INFINITY);
		for (uint32_t k = 0; k < shape.content_dim; k++)
			assert_true(((float *)problem.args.output)[r * shape.content_dim + k] == 0);
	}
	problem_fini(&problem);
}

/* Scores of thousands: the softmax is one key, and nothing overflows. */
static void test_extreme_scores(void **state)
{
	struct shape shape = mixed;
	struct problem problem;
	double *output, *lse;
	size_t rows;

	(void)state;
	problem_init(&problem, &shape, 8);
	problem.args.scale = 40;
	rows = (size_t)problem.args.rows * shape.heads;
	output = ref_alloc(rows * shape.content_dim * sizeof(double), 0);
	lse = ref_alloc(rows * sizeof(double), 0);
	ref_attend(&problem.args, output, lse);
	assert_int_equal(ref_ops->attend(&problem.args), QMLA_OK);
	/* Scores of 1e4 carry float errors of 1e-3, which the weights see. */
	assert_close(problem.args.output, output, rows, shape.content_dim, 2e-2);
	assert_lse(problem.lse, lse, rows);
	ref_free(output);
	ref_free(lse);
	problem_fini(&problem);
}

/* A query that is not a number gives an output that is none, and only its own. */
static void test_bad_query_stays_alone(void **state)
{
	struct shape shape = mixed;
	struct problem problem;
	float *query, *output, *before;
	size_t bytes;

	(void)state;
	shape.batch = 2;
	problem_init(&problem, &shape, 9);
	bytes = (size_t)problem.args.rows * shape.heads * shape.content_dim * sizeof(float);
	before = ref_alloc(bytes, 0);
	assert_int_equal(ref_ops->attend(&problem.args), QMLA_OK);
	output = problem.args.output;
	memcpy(before, output, bytes);
	query = (float *)(uintptr_t)problem.args.query_content;
	query[2 * shape.content_dim + 7] = NAN;
	assert_int_equal(ref_ops->attend(&problem.args), QMLA_OK);
	for (size_t i = 0; i < bytes / sizeof(float); i++) {
		if (i / shape.content_dim == 2)
			assert_true(isnan(output[i]));
		else
			assert_true(output[i] == before[i]);
	}
	assert_true(isnan(problem.lse[2]));
	ref_free(before);
	problem_fini(&problem);
}

static void test_bf16_output(void **state)
{
	struct problem problem;
	uint16_t *narrow;
	size_t count;

	(void)state;
	problem_init(&problem, &mixed, 10);
	count = (size_t)problem.args.rows * mixed.heads * mixed.content_dim;
	assert_int_equal(ref_ops->attend(&problem.args), QMLA_OK);
	narrow = ref_alloc(count * sizeof(uint16_t), 0);
	{
		struct qmk_attend_args args = problem.args;

		args.output = narrow;
		args.output_dtype = QMK_BF16;
		args.lse = NULL;
		assert_int_equal(ref_ops->attend(&args), QMLA_OK);
	}
	for (size_t i = 0; i < count; i++)
		assert_int_equal(narrow[i],
				 ref_to_bfloat((double)((float *)problem.args.output)[i]));
	ref_free(narrow);
	problem_fini(&problem);
}

/* Positions around 128K: angles must not lose their digits. */
static void test_far_positions(void **state)
{
	struct shape shape = {.format = QMK_FORMAT_C4R4,
			      .layers = 1,
			      .content_dim = 64,
			      .rope_dim = 64,
			      .heads = 4,
			      .batch = 1,
			      .longest = 1,
			      .queries = 1,
			      .constants = true};
	uint32_t total = 1u << 17, window = 200;
	struct problem problem;
	uint32_t *table;
	double *output, *lse;

	(void)state;
	problem_init(&problem, &shape, 12);
	table = ref_alloc(total / 64 * sizeof(uint32_t), 0);
	{
		struct ref_random random = {4};

		/* Every block is the one page there is. */
		ref_page_random(&problem.layout, &random,
				(uint8_t *)problem.args.pool.base + problem.layout.header_bytes);
		problem.args.block_table = table;
	}
	problem.sequences[0].total = problem.sequences[0].packed_end = total;
	problem.sequences[0].key_begin = total - window;
	problem.sequences[0].key_end = total;
	output = ref_alloc(shape.heads * shape.content_dim * sizeof(double), 0);
	lse = ref_alloc(shape.heads * sizeof(double), 0);
	ref_attend(&problem.args, output, lse);
	assert_int_equal(ref_ops->attend(&problem.args), QMLA_OK);
	assert_close(problem.args.output, output, shape.heads, shape.content_dim, 2e-5);
	/* And the same by going there from the start, block by block. */
	problem.sequences[0].key_begin = problem.sequences[0].key_end = 0;
	assert_int_equal(ref_ops->attend(&problem.args), QMLA_OK);
	ref_attend(&problem.args, output, lse);
	assert_close(problem.args.output, output, shape.heads, shape.content_dim, 1e-4);
	ref_free(table);
	ref_free(output);
	ref_free(lse);
	problem_fini(&problem);
}

static void test_refusals(void **state)
{
	struct shape shape = mixed;
	struct problem problem;
	struct qmk_attend_args args;
	struct qmk_sequence sequence;

	(void)state;
	shape.batch = 1;
	problem_init(&problem, &shape, 4);
	assert_true(problem.sequences[0].packed_end > problem.sequences[0].sink);
#define REFUSED(change)                                                                            \
	do {                                                                                       \
		args = problem.args;                                                               \
		sequence = problem.sequences[0];                                                   \
		args.sequences = &sequence;                                                        \
		change;                                                                            \
		assert_int_equal(ref_ops->attend(&args), QMLA_ERR_INVALID_ARGUMENT);               \
	} while (0)
	REFUSED(args.layout = NULL);
	REFUSED(args.sequences = NULL);
	REFUSED(args.query_content = NULL);
	REFUSED(args.query_rope = NULL);
	REFUSED(args.output = NULL);
	REFUSED(args.heads = 0);
	REFUSED(args.rope = NULL);
	REFUSED(args.layer = 2);
	REFUSED(args.query_dtype = (enum qmk_dtype)3);
	REFUSED(args.output_dtype = (enum qmk_dtype)3);
	REFUSED(args.workspace = NULL);
	REFUSED(args.workspace_bytes -= 1);
	REFUSED(args.block_table = NULL);
	REFUSED(args.pool.base = NULL);
	REFUSED(args.pool.stride = problem.layout.block_bytes - 128);
	REFUSED(sequence.queries = 0);
	REFUSED(sequence.queries = sequence.total + 1);
	REFUSED(sequence.query_row = 1);
	REFUSED(sequence.query_row = UINT32_MAX);
	REFUSED(sequence.packed_end = sequence.total + 1);
	REFUSED(sequence.sink = sequence.packed_end + 1);
	REFUSED(sequence.key_end = sequence.total + 1);
	REFUSED((sequence.key_begin = 2, sequence.key_end = 1));
	REFUSED((sequence.sink = 1, sequence.sink_rows = NULL));
	REFUSED((sequence.packed_end = sequence.total - 1, sequence.recent_rows = NULL));
	REFUSED(sequence.total = UINT32_MAX);
#undef REFUSED
	assert_int_equal(ref_ops->attend(NULL), QMLA_ERR_INVALID_ARGUMENT);
	args = problem.args;
	args.batch = 0;
	assert_int_equal(ref_ops->attend(&args), QMLA_OK);
	problem_fini(&problem);
}

/* A caller goes through the table: no slot of it may be empty. */
static void test_every_slot_of_the_table_is_filled(void **state)
{
	const struct qmk_ops *ops = &qmk_cpu_ops;
	struct qmk_attend_args args = {0};

	(void)state;
	assert_string_equal(ops->name, "cpu");
	assert_true(ops->pack_workspace && ops->pack && ops->unpack && ops->attend_workspace &&
		    ops->plan && ops->attend && ops->merge && ops->checksum &&
		    ops->append_workspace && ops->append);
	assert_int_equal(ops->plan(&args), QMLA_OK);
}

static int run_all(const char *variant)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_slot_of_the_table_is_filled),
		cmocka_unit_test(test_matches_float64),
		cmocka_unit_test(test_many_rows),
		cmocka_unit_test(test_result_does_not_depend_on_batch_or_chunk),
		cmocka_unit_test(test_parts_merge_to_the_whole),
		cmocka_unit_test(test_part_without_keys),
		cmocka_unit_test(test_extreme_scores),
		cmocka_unit_test(test_bad_query_stays_alone),
		cmocka_unit_test(test_bf16_output),
		cmocka_unit_test(test_far_positions),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests_name(variant, tests, NULL, NULL);
}

int main(void)
{
	return ref_run_variants(run_all);
}
