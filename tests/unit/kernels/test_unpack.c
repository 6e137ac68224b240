/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "reference.h"

struct shape {
	enum qmk_format format;
	uint32_t content, rope;
	bool means;
	enum qmk_dtype dtype;
};

static double read_back(const void *array, enum qmk_dtype dtype, size_t at)
{
	return dtype == QMK_F32 ? (double)((const float *)array)[at]
				: ref_bfloat(((const uint16_t *)array)[at]);
}

/* One float rounding for the mean's addition, and one more for BF16. */
static void assert_near(double found, double stored, double mean, enum qmk_dtype dtype)
{
	double wanted = stored + mean;
	double limit = fabs(wanted) * (dtype == QMK_F32 ? 0x1p-23 : 0x1p-8) + 0x1p-23 * fabs(mean);

	assert_true(fabs(found - wanted) <= limit);
}

static void check_shape(const struct shape *shape, uint64_t seed)
{
	enum { PAGES = 3, EXTRA = 5 };
	struct ref_random random = {seed};
	struct qmk_layout layout;
	struct qmk_constants constants = {0};
	uint32_t slots[PAGES] = {2, 0, 3};
	size_t width = shape->dtype == QMK_F32 ? 4 : 2;
	uint64_t content_stride = shape->content + EXTRA, rope_stride = shape->rope + EXTRA;
	bool means = shape->means && shape->format != QMK_FORMAT_PAPER_C4R4;
	float content_mean[QMK_MAX_CONTENT_DIM], rope_mean[QMK_MAX_ROPE_DIM];
	double content[QMK_MAX_CONTENT_DIM], rope[QMK_MAX_ROPE_DIM];
	struct qmk_unpack_args args;
	uint8_t *pool;

	assert_int_equal(qmk_layout_init(shape->format, 2, shape->content, shape->rope, &layout),
			 QMLA_OK);
	pool = ref_alloc(4 * layout.block_bytes, 0xff);
	for (uint32_t k = 0; k < shape->content; k++)
		content_mean[k] = (float)ref_random_normal(&random);
	for (uint32_t k = 0; k < shape->rope; k++)
		rope_mean[k] = (float)ref_random_normal(&random);
	for (unsigned n = 0; n < PAGES; n++)
		ref_page_random(&layout, &random,
				pool + slots[n] * layout.block_bytes +
					qmk_layout_page_offset(&layout, 1));
	/* The paper's record knows no constants, even when some are given. */
	if (shape->means)
		constants = (struct qmk_constants){.content_mean = content_mean,
						   .rope_mean = rope_mean};
	args = (struct qmk_unpack_args){
		.layout = &layout,
		.constants = &constants,
		.pool = {pool, layout.block_bytes},
		.layer = 1,
		.pages = PAGES,
		.slots = slots,
		.content = ref_alloc(PAGES * 64 * content_stride * width, 0xab),
		.rope = ref_alloc(PAGES * 64 * rope_stride * width, 0xab),
		.content_stride = content_stride,
		.rope_stride = rope_stride,
		.dtype = shape->dtype,
	};
	assert_int_equal(ref_ops->unpack(&args), QMLA_OK);
	for (uint32_t row = 0; row < PAGES * 64; row++) {
		ref_page_token(&layout,
			       pool + slots[row / 64] * layout.block_bytes +
				       qmk_layout_page_offset(&layout, 1),
			       row % 64, content, rope);
		for (uint32_t k = 0; k < shape->content; k++)
			assert_near(read_back(args.content, shape->dtype, row * content_stride + k),
				    content[k], means ? (double)content_mean[k] : 0, shape->dtype);
		for (uint32_t k = 0; k < shape->rope; k++)
			assert_near(read_back(args.rope, shape->dtype, row * rope_stride + k),
				    rope[k], means ? (double)rope_mean[k] : 0, shape->dtype);
		/* Between the rows nothing is written. */
		for (size_t i = 0; i < EXTRA * width; i++) {
			assert_int_equal(
				((uint8_t *)args
					 .content)[(row * content_stride + shape->content) * width +
						   i],
				0xab);
			assert_int_equal(
				((uint8_t *)
					 args.rope)[(row * rope_stride + shape->rope) * width + i],
				0xab);
		}
	}
	ref_free(pool);
	ref_free(args.content);
	ref_free(args.rope);
}

static void test_matches_float64(void **state)
{
	static const uint32_t contents[] = {64, 128, 192, 512, 1024}, ropes[] = {32, 64, 128};
	struct ref_random random = {11};

	(void)state;
	for (unsigned n = 0; n < 36; n++) {
		struct shape shape = {
			.format = (enum qmk_format)(1 + n % 3),
			.content = contents[ref_random_below(&random, 5)],
			.rope = ropes[n / 3 % 3],
			.means = n % 4 < 2,
			.dtype = (enum qmk_dtype)(n % 2),
		};

		check_shape(&shape, n);
	}
}

static void test_refusals(void **state)
{
	struct qmk_layout layout;
	uint32_t slot = 0;
	float content[64 * 64], rope[64 * 32];
	struct qmk_unpack_args good, args;
	uint8_t *pool;

	(void)state;
	assert_int_equal(qmk_layout_init(QMK_FORMAT_C4R4, 1, 64, 32, &layout), QMLA_OK);
	pool = ref_alloc(layout.block_bytes, 0);
	good = (struct qmk_unpack_args){.layout = &layout,
					.pool = {pool, layout.block_bytes},
					.pages = 1,
					.slots = &slot,
					.content = content,
					.rope = rope,
					.content_stride = 64,
					.rope_stride = 32};
	assert_int_equal(ref_ops->unpack(&good), QMLA_OK);
#define REFUSED(change)                                                                            \
	do {                                                                                       \
		args = good;                                                                       \
		change;                                                                            \
		assert_int_equal(ref_ops->unpack(&args), QMLA_ERR_INVALID_ARGUMENT);               \
	} while (0)
	REFUSED(args.layout = NULL);
	REFUSED(args.slots = NULL);
	REFUSED(args.content = NULL);
	REFUSED(args.rope = NULL);
	REFUSED(args.layer = 1);
	REFUSED(args.dtype = (enum qmk_dtype) - 1);
	REFUSED(args.content_stride = 63);
	REFUSED(args.rope_stride = 0);
	REFUSED(args.pool.base = NULL);
	REFUSED(args.pool.stride = 128);
#undef REFUSED
	assert_int_equal(ref_ops->unpack(NULL), QMLA_ERR_INVALID_ARGUMENT);
	ref_free(pool);
}

static int run_all(const char *variant)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_matches_float64),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests_name(variant, tests, NULL, NULL);
}

int main(void)
{
	return ref_run_variants(run_all);
}
