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
	args->workspace_bytes = qmk_cpu_ops.attend_workspace(args);
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
	assert_int_equal(qmk_cpu_ops.attend(&problem.args), QMLA_OK);
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
	for (unsigned n = 0; n < 60; n++) {
		struct shape shape = {
			.format = (enum qmk_format)(1 + n % 3),
			.layers = 1 + ref_random_below(&random, 3),
			.content_dim = contents[ref_random_below(&random, 4)],
			.rope_dim = ropes[ref_random_below(&random, 3)],
			.heads = heads[ref_random_below(&random, 6)],
			.batch = 1 + ref_random_below(&random, 3),
			.longest = n % 4 == 0 ? 3 : 400,
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_matches_float64),
	};

	return cmocka_run_group_tests_name("kernels/attend", tests, NULL, NULL);
}
