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

#define LAYER 1u

static const struct {
	enum qmk_format format;
	uint32_t content_dim, rope_dim;
	bool feedback;
	enum qmk_dtype dtype;
} variants[] = {
	{QMK_FORMAT_C4R4, 512, 64, true, QMK_F32},
	{QMK_FORMAT_C4R4, 512, 64, false, QMK_BF16},
	{QMK_FORMAT_C4R4, 512, 64, true, QMK_BF16},
	{QMK_FORMAT_C2R4, 512, 64, true, QMK_F32},
	{QMK_FORMAT_C2R4, 512, 64, false, QMK_F32},
	{QMK_FORMAT_PAPER_C4R4, 512, 64, false, QMK_F32},
	{QMK_FORMAT_PAPER_C4R4, 512, 64, false, QMK_BF16},
	{QMK_FORMAT_C4R4, 256, 32, true, QMK_F32},
	{QMK_FORMAT_C2R4, 128, 128, true, QMK_BF16},
	{QMK_FORMAT_PAPER_C4R4, 256, 32, false, QMK_F32},
};

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

/*
 * Scales are chosen among near-equal errors that the two tables sum in another order,
 * so a rare token may differ as a whole; all others must be the same to the bit, and
 * nothing outside the pages may change.
 */
static void packed_bytes_are_the_reference_s(void **state)
{
	(void)state;
	for (size_t v = 0; v < sizeof(variants) / sizeof(variants[0]); v++) {
		struct gpu_case *c = gpu_case_create(variants[v].format, variants[v].content_dim,
						     variants[v].rope_dim, 37, variants[v].feedback,
						     QMK_INTERLEAVED, 100 + v);
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
		gpu_case_destroy(c);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(packed_bytes_are_the_reference_s),
		cmocka_unit_test(unpacked_values_are_the_reference_s),
		cmocka_unit_test(checksums_are_the_reference_s),
	};

	if (!qmk_cuda_ops()) {
		puts("skipped: no CUDA device");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
