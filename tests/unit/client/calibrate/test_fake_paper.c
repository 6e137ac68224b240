/* SPDX-License-Identifier: Apache-2.0 */
/* The paper's quantiser to learn through: values, the product's codes, the gradient. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/calibrate/fake_paper.h"
#include "client/calibrate/random.h"
#include "kernels/ops.h"
#include "tests/unit/client/calibrate/near.h"
#include "tests/unit/client/calibrate/surrogate.h"

#define GROUP 8u

static void fill(struct qmw_random *random, float *values, size_t count, float shift)
{
	for (size_t i = 0; i < count; i++)
		values[i] = shift + 3 * (float)qmw_random_real(random);
}

/* Worked out on paper: 2 bits, low -1, high 2, s = 1, z = 1. */
static void test_by_hand(void **state)
{
	const struct qmw_fake_paper quantiser = {.bits = 2, .group = 4, .bf16_scale = false};
	/* -0.5 / 1 + 1 = .5 rounds to 0 (even), 0.5 + 1 = 1.5 to 2. */
	const float x[4] = {-1, -0.5f, 0.5f, 2}, expected[4] = {-1, -1, 1, 2};
	/* All above zero: z = 0, the smallest value is not reached better than s. */
	const float high[4] = {4, 5, 6, 7}, clipped[4] = {3, 3, 3, 3};
	const float flat[4] = {2, 2, 2, 2};
	float y[4];

	(void)state;
	qmw_fake_paper_apply(&quantiser, 1, 4, x, y);
	for (int i = 0; i < 4; i++)
		assert_near(y[i], expected[i], 1e-6);
	qmw_fake_paper_apply(&quantiser, 1, 4, high, y);
	for (int i = 0; i < 4; i++)
		assert_near(y[i], clipped[i], 1e-6);
	/* A range of zero: the scale's bound of 1e-8 leaves next to nothing. */
	qmw_fake_paper_apply(&quantiser, 1, 4, flat, y);
	for (int i = 0; i < 4; i++)
		assert_near(y[i], 1e-8, 1e-9);
}

/* The same values as the product's paper-c4r4 pages give back. */
static void test_equals_pages(void **state)
{
	const struct qmw_fake_paper content = {.bits = 4, .group = 64, .bf16_scale = true};
	const struct qmw_fake_paper rope = {.bits = 4, .group = 64, .bf16_scale = false};
	float *c = malloc(64 * 512 * sizeof(float)), *k = malloc(64 * 64 * sizeof(float));
	float *fake_c = malloc(64 * 512 * sizeof(float)), *fake_k = malloc(64 * 64 * sizeof(float));
	struct qmk_layout layout;
	struct qmk_pack_args pack = {.layout = &layout, .pages = 1, .dtype = QMK_F32};
	struct qmk_unpack_args unpack = {.layout = &layout, .pages = 1, .dtype = QMK_F32};
	const uint32_t slot = 0;
	struct qmw_random random;

	(void)state;
	qmw_random_init(&random, 1, QMW_PURPOSE_TEST, 0);
	fill(&random, c, 64 * 512, 0.5f);
	fill(&random, k, 64 * 64, -1);
	assert_int_equal(qmk_layout_init(QMK_FORMAT_PAPER_C4R4, 1, 512, 64, &layout), QMLA_OK);
	pack.content = c;
	pack.rope = k;
	pack.slots = unpack.slots = &slot;
	pack.content_stride = unpack.content_stride = 512;
	pack.rope_stride = unpack.rope_stride = 64;
	pack.pool.base = aligned_alloc(128, layout.block_bytes);
	pack.pool.stride = layout.block_bytes;
	pack.workspace = malloc(qmk_cpu_ops.pack_workspace(&pack));
	assert_int_equal(qmk_cpu_ops.pack(&pack), QMLA_OK);
	qmw_fake_paper_apply(&content, 64, 512, c, fake_c);
	qmw_fake_paper_apply(&rope, 64, 64, k, fake_k);
	unpack.pool = pack.pool;
	unpack.content = c;
	unpack.rope = k;
	assert_int_equal(qmk_cpu_ops.unpack(&unpack), QMLA_OK);
	for (int i = 0; i < 64 * 512; i++)
		assert_near(fake_c[i], c[i], 0);
	for (int i = 0; i < 64 * 64; i++)
		assert_near(fake_k[i], k[i], 0);
	free(pack.workspace);
	free(pack.pool.base);
	free(fake_k);
	free(fake_c);
	free(k);
	free(c);
}

/* <weight, quantised(x)> of the frozen quantiser. */
static double weighed(const struct surrogate *frozen, const double *x, const double *weight)
{
	double y[GROUP], sum = 0;

	surrogate_apply(frozen, x, y);
	for (uint32_t i = 0; i < GROUP; i++)
		sum += weight[i] * y[i];
	return sum;
}

static void check_gradient(uint32_t bits, float shift, uint64_t seed)
{
	const struct qmw_fake_paper quantiser = {.bits = bits, .group = GROUP};
	double x[GROUP], weight[GROUP];
	float narrow[GROUP], gradient[GROUP];
	struct surrogate frozen;
	struct qmw_random random;

	qmw_random_init(&random, seed, QMW_PURPOSE_TEST, bits);
	fill(&random, narrow, GROUP, shift);
	for (uint32_t i = 0; i < GROUP; i++) {
		x[i] = narrow[i];
		weight[i] = gradient[i] = (float)qmw_random_real(&random);
	}
	surrogate_freeze(&frozen, bits, GROUP, 1, x);
	qmw_fake_paper_gradient(&quantiser, 1, GROUP, narrow, gradient);
	for (uint32_t i = 0; i < GROUP; i++) {
		const double step = 1e-6;
		double kept = x[i], up, down;

		x[i] = kept + step;
		up = weighed(&frozen, x, weight);
		x[i] = kept - step;
		down = weighed(&frozen, x, weight);
		x[i] = kept;
		assert_near(gradient[i], (up - down) / (2 * step), 2e-4);
	}
	surrogate_free(&frozen);
}

/* Around zero, and all to one side of it, where zero point and codes are clipped. */
static void test_gradient(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 20; seed++) {
		check_gradient(4, 0, seed);
		check_gradient(2, 0, seed);
		check_gradient(2, 1, seed);
		check_gradient(4, 7, seed);
		check_gradient(2, -7, seed);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_by_hand),
		cmocka_unit_test(test_equals_pages),
		cmocka_unit_test(test_gradient),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
