/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "reference.h"

#define MAX_PAGES 4u

/* Pages of random rows, and room for their packed form. */
struct bench {
	struct qmk_layout layout;
	struct qmk_constants constants;
	struct qmk_pack_args args;
	uint32_t slots[MAX_PAGES];
	float *content, *rope;
	uint8_t *pool;
	float *content_mean, *rope_mean, *content_feedback, *content_weight, *rope_feedback,
		*rope_weight, *cross_feedback;
};

static float *random_floats(struct ref_random *random, size_t count, double size)
{
	float *values = ref_alloc(count * sizeof(float), 0);

	for (size_t i = 0; i < count; i++)
		values[i] = (float)(size * ref_random_normal(random));
	return values;
}

static void bench_init(struct bench *bench, enum qmk_format format, uint32_t content, uint32_t rope,
		       uint32_t pages, uint64_t seed)
{
	struct ref_random random = {seed};

	memset(bench, 0, sizeof(*bench));
	assert_int_equal(qmk_layout_init(format, 3, content, rope, &bench->layout), QMLA_OK);
	bench->content = random_floats(&random, (size_t)pages * 64 * content, 1);
	bench->rope = random_floats(&random, (size_t)pages * 64 * rope, 3);
	bench->pool = ref_alloc((pages + 1) * bench->layout.block_bytes, 0x5a);
	for (uint32_t i = 0; i < pages; i++)
		bench->slots[i] = pages - i;
	bench->args = (struct qmk_pack_args){
		.layout = &bench->layout,
		.constants = &bench->constants,
		.pool = {bench->pool, bench->layout.block_bytes},
		.layer = 1,
		.pages = pages,
		.slots = bench->slots,
		.content = bench->content,
		.rope = bench->rope,
		.content_stride = content,
		.rope_stride = rope,
		.dtype = QMK_F32,
	};
	bench->args.workspace = ref_alloc(ref_ops->pack_workspace(&bench->args), 0xff);
}

static void bench_fini(struct bench *bench)
{
	ref_free(bench->content);
	ref_free(bench->rope);
	ref_free(bench->pool);
	ref_free(bench->args.workspace);
	ref_free(bench->content_mean);
	ref_free(bench->rope_mean);
	ref_free(bench->content_feedback);
	ref_free(bench->content_weight);
	ref_free(bench->rope_feedback);
	ref_free(bench->rope_weight);
	ref_free(bench->cross_feedback);
}

static uint8_t *page_of(const struct bench *bench, uint32_t n)
{
	return bench->pool + bench->slots[n] * bench->layout.block_bytes +
	       qmk_layout_page_offset(&bench->layout, bench->args.layer);
}

/* A unit lower triangular matrix with entries of about @p size, and weights of 1/4 … 4. */
static void random_sensitivity(struct ref_random *random, uint32_t dim, double size,
			       float **feedback, float **weight)
{
	float *a = random_floats(random, (size_t)dim * dim, size);
	float *d = ref_alloc(dim * sizeof(float), 0);

	for (uint32_t i = 0; i < dim; i++) {
		a[(size_t)i * dim + i] = 1;
		for (uint32_t j = i + 1; j < dim; j++)
			a[(size_t)i * dim + j] = 0;
		d[i] = (float)exp2(ref_random_normal(random));
	}
	*feedback = a;
	*weight = d;
}

static void add_constants(struct bench *bench, bool means, bool feedback)
{
	struct ref_random random = {99};
	uint32_t content = bench->layout.content_dim, rope = bench->layout.rope_dim;

	if (means) {
		bench->content_mean = random_floats(&random, content, 0.5);
		bench->rope_mean = random_floats(&random, rope, 4);
	}
	if (feedback) {
		random_sensitivity(&random, content, 0.06, &bench->content_feedback,
				   &bench->content_weight);
		random_sensitivity(&random, rope, 0.1, &bench->rope_feedback, &bench->rope_weight);
	}
	bench->constants = (struct qmk_constants){
		.content_mean = bench->content_mean,
		.rope_mean = bench->rope_mean,
		.content_feedback = bench->content_feedback,
		.content_weight = bench->content_weight,
		.rope_feedback = bench->rope_feedback,
		.rope_weight = bench->rope_weight,
	};
}

/* One vector and what the page says of it; aim is z, or with what another path left. */
struct vector {
	uint32_t dim, bits;
	double z[QMK_MAX_CONTENT_DIM], aim[QMK_MAX_CONTENT_DIM], value[QMK_MAX_CONTENT_DIM], scale;
	unsigned code[QMK_MAX_CONTENT_DIM];
};

static void read_vector(const struct bench *bench, uint32_t n, uint32_t t, bool rope,
			struct vector *vector)
{
	const struct qmk_layout *layout = &bench->layout;
	const uint8_t *page = page_of(bench, n);
	const uint8_t *plane = page + (rope ? layout->rope_codes_offset : 0);
	const uint8_t *scale =
		page + 2 * t + (rope ? layout->rope_scales_offset : layout->content_scales_offset);
	const float *mean = rope ? bench->rope_mean : bench->content_mean;

	vector->dim = rope ? layout->rope_dim : layout->content_dim;
	vector->bits = rope ? 4 : layout->content_bits;
	vector->scale = ref_half((uint16_t)(scale[0] | scale[1] << 8));
	for (uint32_t k = 0; k < vector->dim; k++) {
		size_t at = ((size_t)n * 64 + t) * vector->dim + k;

		vector->z[k] = (double)(rope ? bench->rope : bench->content)[at];
		if (mean)
			vector->z[k] = (double)(float)(vector->z[k] - (double)mean[k]);
		vector->aim[k] = vector->z[k];
		vector->code[k] = ref_code(plane, vector->dim, vector->bits, t, k);
		vector->value[k] = vector->scale *
				   (vector->code[k] + 0.5 - (double)(1u << (vector->bits - 1)));
	}
}

/* sum D_i (target_i - value_i)^2 = e^T A^T D A e. */
static double weighted_error(const struct vector *vector, const float *feedback,
			     const float *weight)
{
	double sum = 0;

	for (uint32_t i = 0; i < vector->dim; i++) {
		double miss = vector->aim[i] - vector->value[i];

		for (uint32_t j = 0; feedback && j < i; j++)
			miss += (double)feedback[(size_t)i * vector->dim + j] *
				(vector->z[j] - vector->value[j]);
		sum += (weight ? (double)weight[i] : 1) * miss * miss;
	}
	return sum;
}

/* Each code is the nearest level to its target, targets taken from the codes before it. */
static void assert_codes_follow(const struct vector *vector, const float *feedback)
{
	double half = (double)(1u << (vector->bits - 1));

	for (uint32_t i = 0; i < vector->dim; i++) {
		double target = vector->aim[i], place, nearest;

		for (uint32_t j = 0; feedback && j < i; j++)
			target += (double)feedback[(size_t)i * vector->dim + j] *
				  (vector->z[j] - vector->value[j]);
		place = target / vector->scale + half;
		nearest = fmin(fmax(floor(place), 0), 2 * half - 1);
		/* On a boundary either neighbour is as near. */
		if (vector->code[i] != (unsigned)nearest)
			assert_true(fabs(place - round(place)) < 1e-3 &&
				    fabs((double)vector->code[i] + 0.5 - place) < 0.502);
	}
}

static double plain_error_at(const struct vector *vector, double scale, const float *weight)
{
	struct vector trial = *vector;
	double half = (double)(1u << (vector->bits - 1));

	for (uint32_t i = 0; i < trial.dim; i++)
		trial.value[i] =
			scale * (fmin(fmax(floor(trial.z[i] / scale), -half), half - 1) + 0.5);
	return weighted_error(&trial, NULL, weight);
}

/* No scale of the recipe's grid of eleven is better than the one that was chosen. */
static void assert_scale_searched(const struct vector *vector, const float *weight)
{
	double largest = 0, squares = 0, base, first = vector->bits == 4 ? 0.6 : 0.5;
	double found = weighted_error(vector, NULL, weight);

	for (uint32_t i = 0; i < vector->dim; i++) {
		largest = fmax(largest, fabs(vector->z[i]));
		squares += vector->z[i] * vector->z[i];
	}
	base = vector->bits == 4 ? largest / 7.5 : sqrt(squares / vector->dim);
	for (unsigned n = 0; n < 11; n++) {
		double scale = ref_half(ref_to_half(base * (first + (2 - first) / 10 * n)));

		assert_true(found <= plain_error_at(vector, scale, weight) * (1 + 1e-3));
	}
}

static const struct {
	enum qmk_format format;
	uint32_t content, rope;
} shapes[] = {
	{QMK_FORMAT_C4R4, 512, 64},  {QMK_FORMAT_C2R4, 512, 64},   {QMK_FORMAT_C4R4, 64, 32},
	{QMK_FORMAT_C2R4, 192, 128}, {QMK_FORMAT_C4R4, 1024, 128}, {QMK_FORMAT_C2R4, 64, 32},
};

#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void test_plain_rounding(void **state)
{
	struct vector *vector = malloc(sizeof(*vector));

	(void)state;
	assert_non_null(vector);
	for (unsigned s = 0; s < SHAPES; s++) {
		struct bench bench;

		bench_init(&bench, shapes[s].format, shapes[s].content, shapes[s].rope, 2, s);
		add_constants(&bench, s % 2, false);
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		for (uint32_t t = 0; t < 128; t += 7) {
			for (unsigned rope = 0; rope < 2; rope++) {
				read_vector(&bench, t / 64, t % 64, rope, vector);
				assert_codes_follow(vector, NULL);
				assert_scale_searched(vector, NULL);
			}
		}
		bench_fini(&bench);
	}
	free(vector);
}

static void test_feedback_rounding(void **state)
{
	struct vector *vector = malloc(sizeof(*vector));

	(void)state;
	assert_non_null(vector);
	for (unsigned s = 0; s < SHAPES; s++) {
		double with[2] = {0}, without[2] = {0};
		struct bench bench;

		bench_init(&bench, shapes[s].format, shapes[s].content, shapes[s].rope, 1, 50 + s);
		add_constants(&bench, true, true);
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		for (uint32_t t = 0; t < 64; t += 5) {
			read_vector(&bench, 0, t, false, vector);
			assert_codes_follow(vector, bench.content_feedback);
			with[0] += weighted_error(vector, bench.content_feedback,
						  bench.content_weight);
			read_vector(&bench, 0, t, true, vector);
			assert_codes_follow(vector, bench.rope_feedback);
			with[1] += weighted_error(vector, bench.rope_feedback, bench.rope_weight);
		}
		bench.constants.content_feedback = bench.constants.rope_feedback = NULL;
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		for (uint32_t t = 0; t < 64; t += 5) {
			for (unsigned rope = 0; rope < 2; rope++) {
				read_vector(&bench, 0, t, rope, vector);
				without[rope] += weighted_error(
					vector, rope ? bench.rope_feedback : bench.content_feedback,
					rope ? bench.rope_weight : bench.content_weight);
			}
		}
		/* By the measure that the matrices stand for. */
		assert_true(with[0] < 0.95 * without[0]);
		assert_true(with[1] < 0.95 * without[1]);
		bench_fini(&bench);
	}
	free(vector);
}

/* The feedback search against trying every scale of the grid with feedback, by the definition. */
static double best_of_grid(const struct vector *vector, const float *feedback, const float *weight)
{
	double largest = 0, squares = 0, base, first = vector->bits == 4 ? 0.6 : 0.5;
	double half = (double)(1u << (vector->bits - 1)), best = INFINITY;
	struct vector trial = *vector;

	for (uint32_t i = 0; i < vector->dim; i++) {
		largest = fmax(largest, fabs(vector->z[i]));
		squares += vector->z[i] * vector->z[i];
	}
	base = vector->bits == 4 ? largest / 7.5 : sqrt(squares / vector->dim);
	for (unsigned n = 0; n < 11; n++) {
		double scale = ref_half(ref_to_half(base * (first + (2 - first) / 10 * n)));

		for (uint32_t i = 0; i < trial.dim; i++) {
			double target = trial.z[i];

			for (uint32_t j = 0; j < i; j++)
				target += (double)feedback[(size_t)i * trial.dim + j] *
					  (trial.z[j] - trial.value[j]);
			trial.value[i] =
				scale * (fmin(fmax(floor(target / scale), -half), half - 1) + 0.5);
		}
		best = fmin(best, weighted_error(&trial, feedback, weight));
	}
	return best;
}

/*
 * A sensitivity as models have: a quarter of the directions carry nearly all of it.
 * H = B B^T + small I is factored as A^T D A from the last coordinate down.
 */
static void low_rank_sensitivity(struct ref_random *random, uint32_t dim, float **feedback,
				 float **weight)
{
	uint32_t rank = dim / 4;
	double *h = ref_alloc((size_t)dim * dim * sizeof(double), 0);
	double *b = ref_alloc((size_t)dim * rank * sizeof(double), 0);
	float *a = ref_alloc((size_t)dim * dim * sizeof(float), 0);
	float *d = ref_alloc(dim * sizeof(float), 0);

	for (size_t i = 0; i < (size_t)dim * rank; i++)
		b[i] = ref_random_normal(random);
	for (uint32_t i = 0; i < dim; i++)
		for (uint32_t j = 0; j < dim; j++) {
			for (uint32_t k = 0; k < rank; k++)
				h[i * dim + j] += b[i * rank + k] * b[j * rank + k];
			h[i * dim + j] += i == j ? 1e-3 * rank : 0;
		}
	for (uint32_t i = dim; i-- > 0;) {
		d[i] = (float)h[i * dim + i];
		for (uint32_t j = 0; j <= i; j++)
			a[i * dim + j] = (float)(h[i * dim + j] / h[i * dim + i]);
		for (uint32_t j = 0; j < i; j++)
			for (uint32_t k = 0; k < i; k++)
				h[j * dim + k] -= h[i * dim + j] * h[i * dim + k] / h[i * dim + i];
	}
	ref_free(h);
	ref_free(b);
	*feedback = a;
	*weight = d;
}

static void set_low_rank(struct bench *bench)
{
	struct ref_random random = {123};

	low_rank_sensitivity(&random, bench->layout.content_dim, &bench->content_feedback,
			     &bench->content_weight);
	low_rank_sensitivity(&random, bench->layout.rope_dim, &bench->rope_feedback,
			     &bench->rope_weight);
	bench->constants.content_feedback = bench->content_feedback;
	bench->constants.content_weight = bench->content_weight;
	bench->constants.rope_feedback = bench->rope_feedback;
	bench->constants.rope_weight = bench->rope_weight;
}

static void compare_with_grid(enum qmk_format format, bool low_rank, double limit,
			      double rope_limit)
{
	struct vector *vector = malloc(sizeof(*vector));
	double found[2] = {0}, grid[2] = {0};
	struct bench bench;

	assert_non_null(vector);
	bench_init(&bench, format, 128, 64, 1, 70);
	add_constants(&bench, false, !low_rank);
	if (low_rank)
		set_low_rank(&bench);
	assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
	for (uint32_t t = 0; t < 64; t++)
		for (unsigned rope = 0; rope < 2; rope++) {
			const float *a = rope ? bench.rope_feedback : bench.content_feedback;
			const float *d = rope ? bench.rope_weight : bench.content_weight;

			read_vector(&bench, 0, t, rope, vector);
			found[rope] += weighted_error(vector, a, d);
			grid[rope] += best_of_grid(vector, a, d);
		}
	if (!(found[0] < limit * grid[0]) || !(found[1] < rope_limit * grid[1]))
		fail_msg("%s: %g of the grid's error, RoPE %g", qmk_format_name(format),
			 found[0] / grid[0], found[1] / grid[1]);
	bench_fini(&bench);
	free(vector);
}

/* RoPE keys get more scales than the grid, and end clearly below it. */
static void test_search_is_as_good_as_the_whole_grid(void **state)
{
	(void)state;
	compare_with_grid(QMK_FORMAT_C4R4, false, 1, 0.97);
	compare_with_grid(QMK_FORMAT_C2R4, false, 1, 0.97);
	compare_with_grid(QMK_FORMAT_C4R4, true, 1, 0.97);
	compare_with_grid(QMK_FORMAT_C2R4, true, 1, 0.97);
}

/* A sensitivity of both paths at once, the RoPE key's coordinates first, cut into its blocks. */
static void set_joint_sensitivity(struct bench *bench)
{
	uint32_t c = bench->layout.content_dim, r = bench->layout.rope_dim, n = c + r;
	struct ref_random random = {321};
	float *a, *d;

	low_rank_sensitivity(&random, n, &a, &d);
	bench->rope_feedback = ref_alloc((size_t)r * r * sizeof(float), 0);
	bench->cross_feedback = ref_alloc((size_t)c * r * sizeof(float), 0);
	bench->content_feedback = ref_alloc((size_t)c * c * sizeof(float), 0);
	bench->rope_weight = ref_alloc(r * sizeof(float), 0);
	bench->content_weight = ref_alloc(c * sizeof(float), 0);
	for (uint32_t i = 0; i < r; i++)
		memcpy(bench->rope_feedback + (size_t)i * r, a + (size_t)i * n, r * sizeof(float));
	for (uint32_t i = 0; i < c; i++) {
		const float *row = a + (size_t)(r + i) * n;

		memcpy(bench->cross_feedback + (size_t)i * r, row, r * sizeof(float));
		memcpy(bench->content_feedback + (size_t)i * c, row + r, c * sizeof(float));
	}
	memcpy(bench->rope_weight, d, r * sizeof(float));
	memcpy(bench->content_weight, d + r, c * sizeof(float));
	bench->constants = (struct qmk_constants){
		.content_feedback = bench->content_feedback,
		.content_weight = bench->content_weight,
		.rope_feedback = bench->rope_feedback,
		.rope_weight = bench->rope_weight,
		.cross_feedback = bench->cross_feedback,
	};
	ref_free(a);
	ref_free(d);
}

/* e^T H e of the joint sensitivity, over the page; checks that content codes follow their aim. */
static double joint_error(const struct bench *bench, bool follows)
{
	struct vector *keys = malloc(sizeof(*keys)), *content = malloc(sizeof(*content));
	double sum = 0;

	assert_true(keys && content);
	for (uint32_t t = 0; t < 64; t++) {
		read_vector(bench, 0, t, true, keys);
		read_vector(bench, 0, t, false, content);
		for (uint32_t i = 0; i < content->dim; i++)
			for (uint32_t j = 0; j < keys->dim; j++)
				content->aim[i] +=
					(double)bench->cross_feedback[(size_t)i * keys->dim + j] *
					(keys->z[j] - keys->value[j]);
		assert_codes_follow(keys, bench->rope_feedback);
		if (follows)
			assert_codes_follow(content, bench->content_feedback);
		sum += weighted_error(keys, bench->rope_feedback, bench->rope_weight) +
		       weighted_error(content, bench->content_feedback, bench->content_weight);
	}
	free(keys);
	free(content);
	return sum;
}

/* Content takes back what the RoPE codes did: by the joint measure far less error is left. */
static void test_cross_feedback(void **state)
{
	static const uint32_t ropes[] = {64, 32, 128};
	static const double limits[] = {0.7, 0.85, 0.7}; /* two bits have less room */

	(void)state;
	for (unsigned s = 0; s < 3; s++) {
		struct bench bench;
		double with, without;

		bench_init(&bench, s == 1 ? QMK_FORMAT_C2R4 : QMK_FORMAT_C4R4, 192, ropes[s], 1,
			   60 + s);
		set_joint_sensitivity(&bench);
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		with = joint_error(&bench, true);
		bench.constants.cross_feedback = NULL;
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		without = joint_error(&bench, false);
		if (!(with < limits[s] * without))
			fail_msg("%u: %g of the error without", s, with / without);
		bench_fini(&bench);
	}
}

/* A page's bytes do not depend on what is packed in the same call, nor on the call before. */
static void test_bytes_do_not_depend_on_the_batch(void **state)
{
	(void)state;
	for (int format = QMK_FORMAT_C4R4; format <= QMK_FORMAT_PAPER_C4R4; format++) {
		struct bench bench;
		uint32_t page_bytes;
		uint8_t *kept;

		bench_init(&bench, (enum qmk_format)format, 128, 64, MAX_PAGES, 31);
		add_constants(&bench, true, true);
		page_bytes = bench.layout.page_bytes;
		kept = ref_alloc((size_t)MAX_PAGES * page_bytes, 0);
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		for (uint32_t n = 0; n < MAX_PAGES; n++)
			memcpy(kept + (size_t)n * page_bytes, page_of(&bench, n), page_bytes);
		for (uint32_t n = MAX_PAGES; n-- > 0;) {
			memset(page_of(&bench, n), 0, page_bytes);
			bench.args.pages = 1;
			bench.args.slots = &bench.slots[n];
			bench.args.content = bench.content + (size_t)n * 64 * 128;
			bench.args.rope = bench.rope + (size_t)n * 64 * 64;
			assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
			assert_memory_equal(kept + (size_t)n * page_bytes, page_of(&bench, n),
					    page_bytes);
		}
		ref_free(kept);
		bench_fini(&bench);
	}
}

/* Strides, BF16 rows, and only the page itself is written. */
static void test_strides_and_types(void **state)
{
	(void)state;
	for (int format = QMK_FORMAT_C4R4; format <= QMK_FORMAT_PAPER_C4R4; format++) {
		uint16_t *joint = ref_alloc(2 * 64 * 200 * sizeof(uint16_t), 0xff);
		struct bench bench;
		uint8_t *first;

		bench_init(&bench, (enum qmk_format)format, 128, 64, 2, 32);
		first = ref_alloc(3 * bench.layout.block_bytes, 0x5a);
		for (size_t i = 0; i < 2 * 64 * 128; i++) {
			joint[i / 128 * 200 + i % 128] = ref_to_bfloat((double)bench.content[i]);
			bench.content[i] = (float)ref_bfloat(joint[i / 128 * 200 + i % 128]);
		}
		for (size_t i = 0; i < 2 * 64 * 64; i++) {
			joint[i / 64 * 200 + 128 + i % 64] = ref_to_bfloat((double)bench.rope[i]);
			bench.rope[i] = (float)ref_bfloat(joint[i / 64 * 200 + 128 + i % 64]);
		}
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		bench.args.dtype = QMK_BF16;
		bench.args.content = joint;
		bench.args.rope = joint + 128;
		bench.args.content_stride = bench.args.rope_stride = 200;
		bench.args.pool.base = first;
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		/* Byte for byte, the untouched 0x5a around the pages included. */
		assert_memory_equal(first, bench.pool, 3 * bench.layout.block_bytes);
		for (uint64_t i = 0; i < bench.layout.block_bytes; i++)
			assert_int_equal(first[i], 0x5a); /* slot 0 is nobody's */
		for (uint64_t i = 0; i < qmk_layout_page_offset(&bench.layout, 1); i++)
			assert_int_equal(first[bench.layout.block_bytes + i], 0x5a);
		for (uint64_t i = qmk_layout_page_offset(&bench.layout, 2);
		     i < bench.layout.block_bytes; i++)
			assert_int_equal(first[bench.layout.block_bytes + i], 0x5a);
		ref_free(joint);
		ref_free(first);
		bench_fini(&bench);
	}
}

static void test_zero_vectors(void **state)
{
	static const enum qmk_format formats[] = {QMK_FORMAT_C4R4, QMK_FORMAT_C2R4,
						  QMK_FORMAT_PAPER_C4R4};
	double content[128], rope[64];

	(void)state;
	for (unsigned f = 0; f < 3; f++) {
		for (unsigned feedback = 0; feedback < 2; feedback++) {
			struct bench bench;

			bench_init(&bench, formats[f], 128, 64, 1, 33);
			add_constants(&bench, false, feedback);
			memset(bench.content + 9 * 128, 0, 128 * sizeof(float));
			memset(bench.rope + 9 * 64, 0, 64 * sizeof(float));
			/* So small that the scale is zero in fp16, too. */
			for (unsigned k = 0; k < 128; k++)
				bench.content[10 * 128 + k] = 1e-12f * (float)k;
			assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
			ref_page_token(&bench.layout, page_of(&bench, 0), 9, content, rope);
			for (unsigned k = 0; k < 128; k++)
				assert_true(content[k] == 0);
			for (unsigned k = 0; k < 64; k++)
				assert_true(rope[k] == 0);
			ref_page_token(&bench.layout, page_of(&bench, 0), 10, content, rope);
			for (unsigned k = 0; k < 128; k++)
				assert_true(fabs(content[k]) < 1e-8);
			bench_fini(&bench);
		}
	}
}

/* NaN counts as 0, magnitudes end at 65504; the other tokens do not notice. */
static void test_values_that_are_no_numbers(void **state)
{
	static const enum qmk_format formats[] = {QMK_FORMAT_C4R4, QMK_FORMAT_C2R4,
						  QMK_FORMAT_PAPER_C4R4};
	float strange[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 1e30f, 65504, -0.0f};
	float tame[] = {0, 65504, -65504, 65504, -65504, 65504, 65504, 0};

	(void)state;
	for (unsigned f = 0; f < 3; f++) {
		struct bench bench;
		uint8_t *kept;

		bench_init(&bench, formats[f], 64, 64, 1, 34);
		add_constants(&bench, false, f != 1);
		kept = ref_alloc(bench.layout.page_bytes, 0);
		for (unsigned i = 0; i < 8; i++)
			bench.content[20 * 64 + 3 * i] = bench.rope[21 * 64 + 5 * i] = tame[i];
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		memcpy(kept, page_of(&bench, 0), bench.layout.page_bytes);
		for (unsigned i = 0; i < 8; i++)
			bench.content[20 * 64 + 3 * i] = bench.rope[21 * 64 + 5 * i] = strange[i];
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		assert_memory_equal(kept, page_of(&bench, 0), bench.layout.page_bytes);
		for (unsigned k = 0; k < 64; k++)
			bench.content[20 * 64 + k] = bench.rope[21 * 64 + k] = strange[k % 8];
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		for (uint32_t t = 0; t < 64; t++) {
			double content[64], rope[64], before[64], rope_before[64];

			ref_page_token(&bench.layout, page_of(&bench, 0), t, content, rope);
			ref_page_token(&bench.layout, kept, t, before, rope_before);
			for (unsigned k = 0; k < 64; k++) {
				assert_true(isfinite(content[k]) && isfinite(rope[k]));
				if (t != 20)
					assert_true(content[k] == before[k]);
				if (t != 21)
					assert_true(rope[k] == rope_before[k]);
			}
		}
		ref_free(kept);
		bench_fini(&bench);
	}
}

/* Matrices that blow up must not end in undefined behaviour or in scales that are no numbers. */
static void test_absurd_constants(void **state)
{
	static const float values[] = {NAN, INFINITY, 1e38f, -1e38f};

	(void)state;
	for (unsigned v = 0; v < 4; v++) {
		struct ref_random random = {36};
		struct bench bench;

		bench_init(&bench, QMK_FORMAT_C4R4, 64, 32, 1, 35);
		add_constants(&bench, true, true);
		bench.content_feedback[40 * 64 + 3] = values[v];
		bench.rope_weight[5] = values[v];
		bench.rope_mean[1] = values[v];
		bench.cross_feedback = random_floats(&random, 64 * 32, 0.1);
		bench.cross_feedback[70] = values[v];
		bench.constants.cross_feedback = bench.cross_feedback;
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		for (uint32_t t = 0; t < 64; t++) {
			double content[64], rope[32];

			ref_page_token(&bench.layout, page_of(&bench, 0), t, content, rope);
			for (unsigned k = 0; k < 64; k++)
				assert_true(isfinite(content[k]));
			for (unsigned k = 0; k < 32; k++)
				assert_true(isfinite(rope[k]));
		}
		bench_fini(&bench);
	}
}

/* The paper's quantiser, group by group, in the float arithmetic that its formulas stand for. */
static void check_paper_group(const float *values, uint32_t count, const unsigned *codes,
			      float scale, unsigned zero)
{
	float low = values[0], high = values[0], wanted, offset;

	for (uint32_t i = 1; i < count; i++) {
		low = fminf(low, values[i]);
		high = fmaxf(high, values[i]);
	}
	wanted = fmaxf(high - low, 1e-8f) / 15;
	offset = fminf(fmaxf(rintf(-low / wanted), 0), 15);
	assert_true(scale == wanted);
	assert_int_equal(zero, (unsigned)offset);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(codes[i],
				 (unsigned)fminf(fmaxf(rintf(values[i] / wanted + offset), 0), 15));
}

static void check_paper_token(const struct bench *bench, uint32_t t)
{
	const struct qmk_layout *layout = &bench->layout;
	const uint8_t *page = page_of(bench, 0);
	uint32_t groups = layout->content_dim / 64, rope_groups = layout->rope_dim == 128 ? 2 : 1;
	const uint8_t *record =
		page + 64 * (layout->content_dim + layout->rope_dim) / 2 + t * layout->record_bytes;
	const uint8_t *zeros = record + 2 * groups + 4 * rope_groups;
	unsigned codes[64];

	for (uint32_t g = 0; g < groups; g++) {
		const float *values = bench->content + (size_t)t * layout->content_dim + 64 * g;
		float low = INFINITY, high = -INFINITY, scale;
		uint16_t stored = (uint16_t)(record[2 * g] | record[2 * g + 1] << 8);

		for (uint32_t i = 0; i < 64; i++) {
			codes[i] = ref_code(page, layout->content_dim, 4, t, 64 * g + i);
			low = fminf(low, values[i]);
			high = fmaxf(high, values[i]);
		}
		/* Codes come from the exact scale, the page keeps it as BF16. */
		scale = fmaxf(high - low, 1e-8f) / 15;
		assert_int_equal(stored, ref_to_bfloat((double)scale));
		check_paper_group(values, 64, codes, scale, zeros[g]);
	}
	for (uint32_t g = 0; g < rope_groups; g++) {
		uint32_t count = layout->rope_dim / rope_groups;
		float scale;

		memcpy(&scale, record + 2 * groups + 4 * g, 4);
		for (uint32_t i = 0; i < count; i++)
			codes[i] = ref_code(page + 32 * layout->content_dim, layout->rope_dim, 4, t,
					    count * g + i);
		check_paper_group(bench->rope + (size_t)t * layout->rope_dim + count * g, count,
				  codes, scale, zeros[groups + g]);
	}
	for (uint32_t i = 3 * groups + 5 * rope_groups; i < layout->record_bytes; i++)
		assert_int_equal(record[i], 0);
}

static void test_paper_quantiser(void **state)
{
	static const uint32_t contents[] = {512, 64, 192}, ropes[] = {64, 32, 128};

	(void)state;
	for (unsigned s = 0; s < 3; s++) {
		struct bench bench;

		bench_init(&bench, QMK_FORMAT_PAPER_C4R4, contents[s], ropes[s], 1, 40 + s);
		add_constants(&bench, true, true); /* which the paper's record ignores */
		for (uint32_t k = 0; k < contents[s]; k++) {
			bench.content[1 * contents[s] + k] = 5; /* constant */
			bench.content[2 * contents[s] + k] = 3 + 0.01f * (float)(k % 64);
			bench.content[3 * contents[s] + k] = -8 + (float)(k % 16); /* ties */
			bench.content[4 * contents[s] + k] = -100 - (float)k;
		}
		assert_int_equal(ref_ops->pack(&bench.args), QMLA_OK);
		for (uint32_t t = 0; t < 64; t++)
			check_paper_token(&bench, t);
		bench_fini(&bench);
	}
}

static void test_refusals(void **state)
{
	struct bench bench;
	struct qmk_pack_args args;

	(void)state;
	bench_init(&bench, QMK_FORMAT_C4R4, 64, 32, 1, 44);
#define REFUSED(change)                                                                            \
	do {                                                                                       \
		args = bench.args;                                                                 \
		change;                                                                            \
		assert_int_equal(ref_ops->pack(&args), QMLA_ERR_INVALID_ARGUMENT);                 \
	} while (0)
	REFUSED(args.layout = NULL);
	REFUSED(args.slots = NULL);
	REFUSED(args.content = NULL);
	REFUSED(args.rope = NULL);
	REFUSED(args.workspace = NULL);
	REFUSED(args.layer = 3);
	REFUSED(args.dtype = (enum qmk_dtype)7);
	REFUSED(args.content_stride = 63);
	REFUSED(args.rope_stride = 31);
	REFUSED(args.pool.base = NULL);
	REFUSED(args.pool.stride -= 128);
	REFUSED(args.pool.stride += 64);
#undef REFUSED
	assert_int_equal(ref_ops->pack(NULL), QMLA_ERR_INVALID_ARGUMENT);
	args = bench.args;
	args.pages = 0;
	args.slots = NULL;
	assert_int_equal(ref_ops->pack(&args), QMLA_OK);
	for (uint64_t i = 0; i < 2 * bench.layout.block_bytes; i++)
		assert_int_equal(bench.pool[i], 0x5a);
	bench_fini(&bench);
}

static int run_all(const char *variant)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain_rounding),
		cmocka_unit_test(test_feedback_rounding),
		cmocka_unit_test(test_search_is_as_good_as_the_whole_grid),
		cmocka_unit_test(test_cross_feedback),
		cmocka_unit_test(test_bytes_do_not_depend_on_the_batch),
		cmocka_unit_test(test_strides_and_types),
		cmocka_unit_test(test_zero_vectors),
		cmocka_unit_test(test_values_that_are_no_numbers),
		cmocka_unit_test(test_absurd_constants),
		cmocka_unit_test(test_paper_quantiser),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests_name(variant, tests, NULL, NULL);
}

int main(void)
{
	return ref_run_variants(run_all);
}
