/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA writer, reader and checksum held to the CPU reference. */
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

#ifndef QMLA_TEST_PAGES
#define QMLA_TEST_PAGES 37
#endif

#define LAYER 1u
/* Of the weighted error, over the CPU's. */
#define FEEDBACK_EXCESS 1.15

/* Which constants of rounding with feedback a layer has. */
#define KEYS    1u
#define CONTENT 2u
#define CROSS   4u
#define BOTH    (KEYS | CONTENT)

static const struct {
	enum qmk_format format;
	uint32_t content_dim, rope_dim;
	unsigned feedback;
	enum qmk_dtype dtype;
} variants[] = {
	{QMK_FORMAT_C4R4, 512, 64, BOTH, QMK_F32},
	{QMK_FORMAT_C4R4, 512, 64, 0, QMK_BF16},
	{QMK_FORMAT_C4R4, 512, 64, BOTH, QMK_BF16},
	{QMK_FORMAT_C2R4, 512, 64, BOTH, QMK_F32},
	{QMK_FORMAT_C2R4, 512, 64, 0, QMK_F32},
	{QMK_FORMAT_PAPER_C4R4, 512, 64, 0, QMK_F32},
	{QMK_FORMAT_PAPER_C4R4, 512, 64, 0, QMK_BF16},
	{QMK_FORMAT_C4R4, 256, 32, BOTH, QMK_F32},
	{QMK_FORMAT_C2R4, 128, 128, BOTH, QMK_BF16},
	{QMK_FORMAT_PAPER_C4R4, 256, 32, 0, QMK_F32},
	{QMK_FORMAT_C4R4, 512, 64, BOTH | CROSS, QMK_BF16},
	{QMK_FORMAT_C2R4, 512, 64, BOTH | CROSS, QMK_F32},
	{QMK_FORMAT_C4R4, 128, 128, BOTH | CROSS, QMK_F32},
	{QMK_FORMAT_C2R4, 256, 32, BOTH | CROSS, QMK_BF16},
	{QMK_FORMAT_C4R4, 192, 64, KEYS, QMK_F32},
	{QMK_FORMAT_C2R4, 192, 64, CONTENT, QMK_F32},
	{QMK_FORMAT_C4R4, 128, 64, CONTENT | CROSS, QMK_F32},
	{QMK_FORMAT_C2R4, 128, 32, CROSS, QMK_F32},
};

/* A variant's case; what it does not have is taken out and comes back before the end. */
static struct gpu_case *case_create(size_t variant, uint32_t pages, uint64_t seed,
				    struct qmk_constants *kept)
{
	const unsigned feedback = variants[variant].feedback;
	struct gpu_case *c = gpu_case_create(
		variants[variant].format, variants[variant].content_dim, variants[variant].rope_dim,
		pages, feedback != 0, QMK_INTERLEAVED, seed + variant);

	if (feedback & CROSS)
		gpu_case_add_cross(c, seed + 100 + variant);
	*kept = c->constants;
	if (!(feedback & KEYS))
		c->constants.rope_feedback = c->device_constants.rope_feedback = NULL;
	if (!(feedback & CONTENT))
		c->constants.content_feedback = c->device_constants.content_feedback = NULL;
	return c;
}

static void case_destroy(struct gpu_case *c, const struct qmk_constants *kept)
{
	c->constants = *kept;
	gpu_case_destroy(c);
}

static void *to_bf16(const float *values, size_t count)
{
	uint16_t *out = malloc(count * sizeof(*out));

	assert_non_null(out);
	for (size_t i = 0; i < count; i++)
		out[i] = qmk_float_to_bf16(values[i]);
	return out;
}

/* Packs with both tables from the same values; leaves the device's pool in @p copy. */
static void pack_both(struct gpu_case *c, enum qmk_dtype dtype, uint8_t *copy)
{
	const struct qmk_ops *cuda = qmk_cuda_ops();
	size_t tokens = (size_t)c->pages * QMK_PAGE_TOKENS;
	size_t width = dtype == QMK_BF16 ? 2 : 4;
	void *content = dtype == QMK_BF16 ? to_bf16(c->content, tokens * c->layout.content_dim)
					  : (void *)c->content;
	void *keys =
		dtype == QMK_BF16 ? to_bf16(c->keys, tokens * c->layout.rope_dim) : (void *)c->keys;
	struct qmk_pack_args args = {.layout = &c->layout,
				     .constants = &c->constants,
				     .pool = c->pool,
				     .layer = LAYER,
				     .pages = c->pages,
				     .slots = c->slots,
				     .content = content,
				     .rope = keys,
				     .content_stride = c->layout.content_dim,
				     .rope_stride = c->layout.rope_dim,
				     .dtype = dtype};

	args.workspace = malloc(qmk_cpu_ops.pack_workspace(&args) + 1);
	assert_int_equal(qmk_cpu_ops.pack(&args), QMLA_OK);
	free(args.workspace);
	args.workspace = NULL;
	args.constants = &c->device_constants;
	args.pool = c->device_pool;
	args.slots = c->device_slots;
	args.content = device_copy(content, tokens * c->layout.content_dim * width);
	args.rope = device_copy(keys, tokens * c->layout.rope_dim * width);
	assert_int_equal(cuda->pack(&args), QMLA_OK);
	device_finish();
	device_read(copy, c->device_pool.base, c->pool.stride * c->pool_slots);
	if (dtype == QMK_BF16) {
		free(content);
		free(keys);
	}
}

/* Values less what the pages give back, [tokens][n]. */
static double *missing(const float *values, const float *restored, size_t count, bool rounded)
{
	double *miss = malloc(count * sizeof(double));

	assert_non_null(miss);
	for (size_t i = 0; i < count; i++) {
		float z = values[i];

		z = rounded ? qmk_bf16_to_float(qmk_float_to_bf16(z)) : z;
		miss[i] = (double)z - (double)restored[i];
	}
	return miss;
}

/* Row i of a matrix, or of the identity, times a token's miss. */
static double carried(const float *a, uint32_t i, uint32_t n, const double *miss)
{
	double sum = 0;

	if (!a)
		return miss[i];
	for (uint32_t j = 0; j < n; j++)
		sum += (double)a[(size_t)i * n + j] * miss[j];
	return sum;
}

/* What feedback rounding minimises: |D^(1/2) A k|^2 of the keys, |D^(1/2) (A z + X k)|^2. */
static void feedback_error(const struct gpu_case *c, const double *content, const double *keys,
			   double error[2])
{
	const uint32_t dc = c->layout.content_dim, dr = c->layout.rope_dim;
	const struct qmk_constants *k = &c->constants;

	error[0] = error[1] = 0;
	for (size_t t = 0; t < (size_t)c->pages * QMK_PAGE_TOKENS; t++) {
		for (uint32_t i = 0; i < dc; i++) {
			double miss = carried(k->content_feedback, i, dc, content + t * dc);

			if (k->cross_feedback)
				miss += carried(k->cross_feedback, i, dr, keys + t * dr);
			error[0] += (double)k->content_weight[i] * miss * miss;
		}
		for (uint32_t i = 0; i < dr; i++) {
			double miss = carried(k->rope_feedback, i, dr, keys + t * dr);

			error[1] += (double)k->rope_weight[i] * miss * miss;
		}
	}
}

/* The same from the bytes of a pool; [0] content, [1] RoPE keys. */
static void pool_error(const struct gpu_case *c, uint8_t *base, bool rounded, double error[2])
{
	const uint32_t dc = c->layout.content_dim, dr = c->layout.rope_dim;
	const size_t tokens = (size_t)c->pages * QMK_PAGE_TOKENS;
	float *restored = malloc(tokens * (dc + dr) * sizeof(float));
	struct qmk_unpack_args args = {.layout = &c->layout,
				       .constants = &c->constants,
				       .pool = {base, c->pool.stride},
				       .layer = LAYER,
				       .pages = c->pages,
				       .slots = c->slots,
				       .content = restored,
				       .rope = restored + tokens * dc,
				       .content_stride = dc,
				       .rope_stride = dr,
				       .dtype = QMK_F32};
	double *content, *keys;

	assert_non_null(restored);
	assert_int_equal(qmk_cpu_ops.unpack(&args), QMLA_OK);
	content = missing(c->content, restored, tokens * dc, rounded);
	keys = missing(c->keys, restored + tokens * dc, tokens * dr, rounded);
	feedback_error(c, content, keys, error);
	free(keys);
	free(content);
	free(restored);
}

/*
 * With feedback the CPU rounds content with more scales a token than the device does, and both
 * sum their errors in another order. Codes then differ, so what is held is the error that
 * both minimise. Keys are rounded with the same scales.
 */
static void feedback_error_is_near_the_reference_s(const struct gpu_case *c, uint8_t *copy,
						   bool rounded)
{
	double want[2], got[2];

	pool_error(c, c->pool.base, rounded, want);
	pool_error(c, copy, rounded, got);
	printf("  weighted error against the CPU's: content %.4f, keys %.4f\n", got[0] / want[0],
	       got[1] / want[1]);
	assert_true(got[0] <= FEEDBACK_EXCESS * want[0]);
	assert_true(fabs(got[1] - want[1]) <= 1e-3 * want[1]);
}

/* One plane of one token as the pages hold it. */
struct token {
	uint32_t dim, bits;
	float scale;
	const float *mean, *restored, *values;
	bool rounded; /* the writer saw the values as BF16 */
};

static float value_of(const struct token *t, uint32_t i)
{
	const float value =
		t->rounded ? qmk_bf16_to_float(qmk_float_to_bf16(t->values[i])) : t->values[i];

	return t->mean ? value - t->mean[i] : value;
}

static float code_of(const struct token *t, uint32_t i)
{
	const float half = (float)(1u << (t->bits - 1));

	return t->scale > 0 ? roundf(t->restored[i] / t->scale + half - 0.5f) : half;
}

/* What a plane's codes were rounded with; NULL for what there is not. */
struct rounding {
	const float *feedback; /* [dim][dim] */
	const float *cross;    /* [dim][keys] */
	uint32_t keys;
	const float *keys_left; /* what the keys' codes left */
};

/*
 * With the scale that stands in the page every code must be the one that feedback rounding
 * gives, sums ascending with fused multiply-adds. @p left [dim] takes what the codes leave.
 */
static void codes_follow_from_the_scale(const struct token *t, const struct rounding *r,
					float *left)
{
	const float half = (float)(1u << (t->bits - 1));
	const float inverse = t->scale > 0 ? 1 / t->scale : 0;

	for (uint32_t i = 0; i < t->dim; i++) {
		float target = value_of(t, i), code;

		for (uint32_t j = 0; r->cross && j < r->keys; j++)
			target = fmaf(r->cross[(size_t)i * r->keys + j], r->keys_left[j], target);
		for (uint32_t j = 0; r->feedback && j < i; j++)
			target = fmaf(r->feedback[(size_t)i * t->dim + j], left[j], target);
		code = fminf(fmaxf(fmaf(target, inverse, half), 0), 2 * half - 1);
		code = (float)(int)code;
		assert_true(code == code_of(t, i));
		left[i] = value_of(t, i) - (code + (0.5f - half)) * t->scale;
	}
}

static float scale_at(const uint8_t *scales, size_t token)
{
	uint16_t bits;

	memcpy(&bits, scales + 2 * token, sizeof(bits));
	return qmk_fp16_to_float(bits);
}

/* All tokens of the pages in a pool. */
static void codes_are_those_of_their_scales(const struct gpu_case *c, uint8_t *base, bool rounded)
{
	const struct qmk_layout *l = &c->layout;
	const struct qmk_constants *k = &c->constants;
	const uint32_t dc = l->content_dim, dr = l->rope_dim;
	const size_t tokens = (size_t)c->pages * QMK_PAGE_TOKENS;
	float *restored = malloc(tokens * (dc + dr) * sizeof(float));
	struct qmk_unpack_args args = {.layout = l,
				       .pool = {base, c->pool.stride},
				       .layer = LAYER,
				       .pages = c->pages,
				       .slots = c->slots,
				       .content = restored,
				       .rope = restored + tokens * dc,
				       .content_stride = dc,
				       .rope_stride = dr,
				       .dtype = QMK_F32};

	assert_non_null(restored);
	assert_int_equal(qmk_cpu_ops.unpack(&args), QMLA_OK);
	for (size_t n = 0; n < tokens; n++) {
		const size_t at = n % QMK_PAGE_TOKENS;
		const uint8_t *page = base + c->slots[n / QMK_PAGE_TOKENS] * c->pool.stride +
				      qmk_layout_page_offset(l, LAYER);
		float keys_left[QMK_MAX_ROPE_DIM], left[QMK_MAX_CONTENT_DIM];
		const struct token keys = {dr,
					   4,
					   scale_at(page + l->rope_scales_offset, at),
					   k->rope_mean,
					   restored + tokens * dc + n * dr,
					   c->keys + n * dr,
					   rounded};
		const struct token content = {dc,
					      l->content_bits,
					      scale_at(page + l->content_scales_offset, at),
					      k->content_mean,
					      restored + n * dc,
					      c->content + n * dc,
					      rounded};

		codes_follow_from_the_scale(&keys, &(struct rounding){.feedback = k->rope_feedback},
					    keys_left);
		codes_follow_from_the_scale(
			&content,
			&(struct rounding){k->content_feedback, k->cross_feedback, dr, keys_left},
			left);
	}
	free(restored);
}

/*
 * Scales are chosen among near-equal errors that the two tables sum in another order,
 * so a rare token may differ as a whole; all others must be the same to the bit, and
 * nothing outside the pages may change.
 */
static void packed_bytes_are_the_reference_s(void **state)
{
	(void)state;
	for (size_t v = 0; v < sizeof(variants) / sizeof(variants[0]); v++) {
		struct qmk_constants kept;
		struct gpu_case *c = case_create(v, QMLA_TEST_PAGES, 100, &kept);
		size_t bytes = c->pool.stride * c->pool_slots;
		uint8_t *copy = malloc(bytes);
		const uint8_t *host = c->pool.base;
		size_t differing = 0;

		assert_non_null(copy);
		pack_both(c, variants[v].dtype, copy);
		for (size_t i = 0; i < bytes; i++)
			differing += copy[i] != host[i];
		printf("  variant %zu: %zu of %zu page bytes differ\n", v, differing,
		       (size_t)c->pages * c->layout.page_bytes);
		if (variants[v].feedback) {
			bool rounded = variants[v].dtype == QMK_BF16;

			feedback_error_is_near_the_reference_s(c, copy, rounded);
			codes_are_those_of_their_scales(c, copy, rounded);
		} else
			assert_true((double)differing < 2e-3 * c->pages * c->layout.page_bytes);
		for (uint32_t s = 0; s < c->pool_slots; s++) {
			size_t page =
				s * c->pool.stride + qmk_layout_page_offset(&c->layout, LAYER);

			assert_memory_equal(copy + s * c->pool.stride, host + s * c->pool.stride,
					    page - s * c->pool.stride);
			page += c->layout.page_bytes;
			assert_memory_equal(copy + page, host + page,
					    (s + 1) * c->pool.stride - page);
		}
		free(copy);
		case_destroy(c, &kept);
	}
}

static void unpacked_values_are_the_reference_s(void **state)
{
	const struct qmk_ops *cuda = qmk_cuda_ops();

	(void)state;
	for (size_t v = 0; v < sizeof(variants) / sizeof(variants[0]); v++) {
		struct gpu_case *c =
			gpu_case_create(variants[v].format, variants[v].content_dim,
					variants[v].rope_dim, 9, false, QMK_INTERLEAVED, 200 + v);
		size_t tokens = (size_t)c->pages * QMK_PAGE_TOKENS;
		size_t contents = tokens * c->layout.content_dim,
		       keys = tokens * c->layout.rope_dim;
		float *want = malloc((contents + keys) * sizeof(float));
		float *got = malloc((contents + keys) * sizeof(float));
		struct qmk_unpack_args args = {.layout = &c->layout,
					       .constants = &c->constants,
					       .pool = c->pool,
					       .layer = LAYER,
					       .pages = c->pages,
					       .slots = c->slots,
					       .content = want,
					       .rope = want + contents,
					       .content_stride = c->layout.content_dim,
					       .rope_stride = c->layout.rope_dim,
					       .dtype = QMK_F32};

		gpu_case_pack_on_cpu(c);
		assert_int_equal(qmk_cpu_ops.unpack(&args), QMLA_OK);
		args.constants = &c->device_constants;
		args.pool = c->device_pool;
		args.slots = c->device_slots;
		args.content = device_alloc(contents * sizeof(float));
		args.rope = device_alloc(keys * sizeof(float));
		assert_int_equal(cuda->unpack(&args), QMLA_OK);
		device_finish();
		device_read(got, args.content, contents * sizeof(float));
		device_read(got + contents, args.rope, keys * sizeof(float));
		for (size_t i = 0; i < contents + keys; i++)
			assert_true(fabsf(got[i] - want[i]) <= 1e-6f + 1e-6f * fabsf(want[i]));
		free(want);
		free(got);
		gpu_case_destroy(c);
	}
}

static void checksums_are_the_reference_s(void **state)
{
	const struct qmk_ops *cuda = qmk_cuda_ops();
	struct gpu_case *c =
		gpu_case_create(QMK_FORMAT_C4R4, 512, 64, 11, false, QMK_INTERLEAVED, 7);
	size_t count = (size_t)c->pages * c->layout.layers;
	uint64_t want[64], got[64];
	struct qmk_checksum_args args = {.layout = &c->layout,
					 .pool = c->pool,
					 .blocks = c->pages,
					 .slots = c->slots,
					 .checksums = want};

	(void)state;
	assert_int_equal(qmk_cpu_ops.checksum(&args), QMLA_OK);
	args.pool = c->device_pool;
	args.slots = c->device_slots;
	args.checksums = device_alloc(count * sizeof(uint64_t));
	assert_int_equal(cuda->checksum(&args), QMLA_OK);
	device_finish();
	device_read(got, args.checksums, count * sizeof(uint64_t));
	assert_memory_equal(got, want, count * sizeof(uint64_t));
	gpu_case_destroy(c);
}

#define TAILS 9u

/* Tails of all kinds: empty, one short of full, filling with tokens left over, idle. */
static void make_tails(const struct gpu_case *c, uint16_t *const *rows, struct qmk_tail *tails)
{
	static const uint32_t filled[TAILS] = {0, 63, 62, 10, 0, 63, 31, 63, 33};
	static const uint32_t tokens[TAILS] = {1, 1, 4, 2, 64, 64, 2, 0, 31};
	uint32_t row = 0;

	for (uint32_t r = 0; r < TAILS; r++) {
		tails[r] = (struct qmk_tail){.rows = rows[r],
					     .filled = filled[r],
					     .tokens = tokens[r],
					     .row = row,
					     .slot = c->slots[r]};
		row += tokens[r];
	}
}

/* The CPU's tails; the pages that fill as the device's own writer makes them of those rows. */
static void appended_bytes_are_the_reference_s(void **state)
{
	const struct qmk_ops *cuda = qmk_cuda_ops();

	(void)state;
	for (size_t v = 0; v < sizeof(variants) / sizeof(variants[0]); v++) {
		struct qmk_constants kept;
		struct gpu_case *c = case_create(v, TAILS, 300, &kept);
		const uint32_t dc = c->layout.content_dim, dr = c->layout.rope_dim;
		const size_t tail_bytes = (size_t)64 * (dc + dr) * sizeof(uint16_t);
		const size_t pool_bytes = c->pool.stride * c->pool_slots;
		const size_t tokens = (size_t)TAILS * 64;
		uint16_t *rows[TAILS], *copies[TAILS], *full[TAILS];
		struct qmk_tail tails[TAILS], on_device[TAILS];
		uint8_t *got = malloc(pool_bytes), *want = malloc(pool_bytes);
		uint16_t *tail = malloc(tail_bytes);
		struct qmk_append_args args = {.layout = &c->layout,
					       .constants = &c->constants,
					       .pool = c->pool,
					       .layer = LAYER,
					       .requests = TAILS,
					       .tails = tails,
					       .content = c->content,
					       .rope = c->keys,
					       .content_stride = dc,
					       .rope_stride = dr,
					       .dtype = QMK_F32};
		struct qmk_constants bare;
		void *second;

		assert_true(got && want && tail);
		bare = c->device_constants;
		for (uint32_t r = 0; r < TAILS; r++) {
			rows[r] = malloc(tail_bytes);
			full[r] = malloc(tail_bytes);
			assert_true(rows[r] && full[r]);
			for (size_t i = 0; i < tail_bytes / 2; i++)
				rows[r][i] = qmk_float_to_bf16(
					c->content[(i + 977 * r) % (tokens * dc)]);
			copies[r] = device_copy(rows[r], tail_bytes);
		}
		make_tails(c, rows, tails);
		/* What fills, before rows left over begin the tail anew: append without them. */
		args.workspace = malloc(qmk_cpu_ops.append_workspace(&args) + 1);
		for (uint32_t r = 0; r < TAILS; r++) {
			struct qmk_tail all = tails[r];
			const uint32_t room = 64 - all.filled;

			memcpy(full[r], rows[r], tail_bytes);
			all.rows = full[r];
			all.tokens = all.tokens < room ? all.tokens : room;
			args.requests = 1;
			args.tails = &all;
			assert_int_equal(qmk_cpu_ops.append(&args), QMLA_OK);
		}
		args.requests = TAILS;
		args.tails = tails;
		assert_int_equal(qmk_cpu_ops.append(&args), QMLA_OK);
		free(args.workspace);

		second = device_copy(c->pool.base, pool_bytes);
		device_read(got, c->device_pool.base, pool_bytes); /* before the call */
		device_write(second, got, pool_bytes);
		memcpy(on_device, tails, sizeof(tails));
		for (uint32_t r = 0; r < TAILS; r++)
			on_device[r].rows = copies[r];
		args.constants = &c->device_constants;
		args.pool = c->device_pool;
		args.tails = device_copy(on_device, sizeof(on_device));
		args.content = device_copy(c->content, tokens * dc * sizeof(float));
		args.rope = device_copy(c->keys, tokens * dr * sizeof(float));
		args.workspace = NULL;
		assert_int_equal(cuda->append_workspace(&args), 0);
		assert_int_equal(cuda->append(&args), QMLA_OK);
		device_finish();

		bare.content_mean = bare.rope_mean = NULL;
		for (uint32_t r = 0; r < TAILS; r++) {
			const uint16_t *packed = device_copy(full[r], tail_bytes);
			struct qmk_pack_args pack = {.layout = &c->layout,
						     .constants = &bare,
						     .pool = {second, c->pool.stride},
						     .layer = LAYER,
						     .pages = 1,
						     .slots = c->device_slots + r,
						     .content = packed,
						     .rope = packed + dc,
						     .content_stride = dc + dr,
						     .rope_stride = dc + dr,
						     .dtype = QMK_BF16};

			if (tails[r].filled + tails[r].tokens >= 64)
				assert_int_equal(cuda->pack(&pack), QMLA_OK);
			device_read(tail, copies[r], tail_bytes);
			assert_memory_equal(tail, rows[r], tail_bytes);
		}
		device_finish();
		device_read(got, c->device_pool.base, pool_bytes);
		device_read(want, second, pool_bytes);
		assert_memory_equal(got, want, pool_bytes);
		for (uint32_t r = 0; r < TAILS; r++) {
			free(rows[r]);
			free(full[r]);
		}
		free(got);
		free(want);
		free(tail);
		case_destroy(c, &kept);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(packed_bytes_are_the_reference_s),
		cmocka_unit_test(unpacked_values_are_the_reference_s),
		cmocka_unit_test(checksums_are_the_reference_s),
		cmocka_unit_test(appended_bytes_are_the_reference_s),
	};

	if (!qmk_cuda_ops()) {
		puts("skipped: no CUDA device");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
