/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/numeric.h"
#include "reference.h"

static void assert_same(double found, double wanted)
{
	if (isnan(wanted)) {
		assert_true(isnan(found));
		return;
	}
	assert_true(found == wanted && signbit(found) == signbit(wanted));
}

static void test_every_pattern_to_float(void **state)
{
	(void)state;
	for (uint32_t bits = 0; bits < 0x10000; bits++) {
		assert_same((double)qmk_fp16_to_float((uint16_t)bits), ref_half((uint16_t)bits));
		assert_same((double)qmk_bf16_to_float((uint16_t)bits), ref_bfloat((uint16_t)bits));
	}
}

static void check_rounding(float value)
{
	uint16_t half = qmk_float_to_fp16(value), brain = qmk_float_to_bf16(value);

	if (isnan(value)) {
		assert_true(isnan(ref_half(half)));
		assert_true(isnan(ref_bfloat(brain)));
		return;
	}
	assert_int_equal(half, ref_to_half((double)value));
	assert_int_equal(brain, ref_to_bfloat((double)value));
}

/* Every value of either format, the midpoints between neighbours, and floats just beside both. */
static void test_rounding_at_every_boundary(void **state)
{
	(void)state;
	for (uint32_t bits = 0; bits < 0x10000; bits++) {
		float values[] = {qmk_fp16_to_float((uint16_t)bits),
				  qmk_bf16_to_float((uint16_t)bits)};
		double next[] = {ref_half((uint16_t)(bits + 1)), ref_bfloat((uint16_t)(bits + 1))};

		for (unsigned i = 0; i < 2; i++) {
			float middle = (float)(((double)values[i] + next[i]) / 2);

			check_rounding(values[i]);
			check_rounding(middle);
			check_rounding(nextafterf(middle, INFINITY));
			check_rounding(nextafterf(middle, -INFINITY));
		}
	}
}

static void test_rounding_of_random_floats(void **state)
{
	struct ref_random random = {7};

	(void)state;
	for (unsigned n = 0; n < 200000; n++)
		check_rounding(qmk_bits_float((uint32_t)ref_random_next(&random)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_pattern_to_float),
		cmocka_unit_test(test_rounding_at_every_boundary),
		cmocka_unit_test(test_rounding_of_random_floats),
	};

	return cmocka_run_group_tests_name("kernels/numeric", tests, NULL, NULL);
}
