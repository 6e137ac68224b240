/* SPDX-License-Identifier: Apache-2.0 */
/* Casts from double, against the definition: the nearest of all codes, ties to the even one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/calibrate/cast.h"
#include "kernels/numeric.h"

/* Value of a finite E4M3 code, from the format's table: 1 sign, 4 exponent (bias 7), 3 mantissa. */
static double e4m3(uint32_t code)
{
	double mantissa = (code & 7) / 8.0, exponent = (code >> 3 & 15) - 7.0;
	double value = code & 0x78 ? (1 + mantissa) * pow(2, exponent) : mantissa * pow(2, -6);

	return code & 0x80 ? -value : value;
}

static uint8_t nearest(double value)
{
	double best = INFINITY;
	uint32_t found = 0;

	for (uint32_t code = 0; code < 0x7f; code++) {
		double distance = fabs(fabs(value) - e4m3(code));

		if (distance < best || (distance == best && code % 2 == 0)) {
			best = distance;
			found = code;
		}
	}
	return (uint8_t)(found | (signbit(value) ? 0x80u : 0u));
}

static void test_e4m3(void **state)
{
	(void)state;
	for (uint32_t code = 0; code < 256; code++) {
		if ((code & 0x7f) == 0x7f) {
			assert_true(isnan(qmw_cast_from_e4m3((uint8_t)code)));
			continue;
		}
		assert_true(qmw_cast_from_e4m3((uint8_t)code) == e4m3(code));
		assert_int_equal(qmw_cast_e4m3(e4m3(code)), code);
	}
	for (uint32_t code = 0; code < 0x7e; code++) { /* the ties and their neighbours */
		double middle = (e4m3(code) + e4m3(code + 1)) / 2;

		assert_int_equal(qmw_cast_e4m3(middle), nearest(middle));
		assert_int_equal(qmw_cast_e4m3(nextafter(middle, 0)), code);
		assert_int_equal(qmw_cast_e4m3(nextafter(middle, 1000)), code + 1);
		assert_int_equal(qmw_cast_e4m3(-middle), nearest(-middle));
	}
	assert_int_equal(qmw_cast_e4m3(1e30), 0x7e);
	assert_int_equal(qmw_cast_e4m3(-449), 0xfe);
	assert_int_equal(qmw_cast_e4m3(1e-30), 0);
}

/* 1 + 2^-8 lies between two BF16; with 2^-40 more it is nearer to the upper one, which a
 * rounding to float on the way would not see. */
static void test_bf16_rounds_once(void **state)
{
	(void)state;
	assert_int_equal(qmw_cast_bf16(1 + 0x1p-8), 0x3f80);
	assert_int_equal(qmw_cast_bf16(1 + 0x1p-8 + 0x1p-40), 0x3f81);
	assert_int_equal(qmw_cast_bf16(-(1 + 0x1p-8 + 0x1p-40)), 0xbf81);
	assert_int_equal(qmw_cast_bf16(1 + 0x3p-8 - 0x1p-40), 0x3f81);
	assert_int_equal(qmw_cast_bf16(1 + 0x3p-8), 0x3f82);
	assert_int_equal(qmw_cast_bf16(0), 0);
	assert_true(qmw_cast_round(QMW_DTYPE_F16, 1 + 0x1p-11) == 1);
	assert_true(qmw_cast_round(QMW_DTYPE_F16, 1 + 0x1p-11 + 0x1p-40) == 1 + 0x1p-10);
	assert_true(qmw_cast_round(QMW_DTYPE_F32, 1 + 0x1p-24) == 1);
}

static void test_store(void **state)
{
	const double values[3] = {1.5, -0.25, 3}, large = 1e30, none = NAN;
	uint16_t half[3];
	float single[3];

	(void)state;
	assert_int_equal(qmw_cast_store(QMW_DTYPE_BF16, values, 3, half), QMLA_OK);
	for (int i = 0; i < 3; i++)
		assert_true((double)qmk_bf16_to_float(half[i]) == values[i]);
	assert_int_equal(qmw_cast_store(QMW_DTYPE_F16, values, 3, half), QMLA_OK);
	for (int i = 0; i < 3; i++)
		assert_true((double)qmk_fp16_to_float(half[i]) == values[i]);
	assert_int_equal(qmw_cast_store(QMW_DTYPE_F32, values, 3, single), QMLA_OK);
	assert_true((double)single[1] == values[1]);
	assert_int_equal(qmw_cast_store(QMW_DTYPE_F16, &large, 1, half), QMLA_ERR_CORRUPT);
	assert_int_equal(qmw_cast_store(QMW_DTYPE_BF16, &none, 1, half), QMLA_ERR_CORRUPT);
	assert_int_equal(qmw_cast_store(QMW_DTYPE_I64, values, 1, half), QMLA_ERR_UNSUPPORTED);
}

#define ROWS    200u
#define COLUMNS 150u

static double random_value(uint64_t *seed)
{
	*seed = *seed * UINT64_C(6364136223846793005) + 1;
	return (double)(int32_t)(*seed >> 32) / 0x1p31;
}

/* Squares with other values get new codes and scales, exact to half a step; the rest keep theirs.
 */
static void check_fp8(bool powers)
{
	static uint8_t codes[ROWS * COLUMNS], old_codes[ROWS * COLUMNS];
	static float before[ROWS * COLUMNS];
	static double values[ROWS * COLUMNS];
	float scales[4], old_scales[4];
	struct qmw_fp8 fp8 = {ROWS, COLUMNS, codes, scales};
	uint64_t seed = 3;

	for (int i = 0; i < 4; i++)
		old_scales[i] = scales[i] = powers ? 0.125f : 0.1f + 0.01f * (float)i;
	for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
		uint32_t square = i / COLUMNS / 128 * 2 + i % COLUMNS / 128;

		old_codes[i] = codes[i] = qmw_cast_e4m3(300 * random_value(&seed));
		before[i] = (float)(qmw_cast_from_e4m3(codes[i]) * (double)scales[square]);
		values[i] = (double)before[i];
	}
	for (uint32_t j = 128; j < COLUMNS; j++) /* only the square to the right, above */
		values[5 * COLUMNS + j] = 1000 * random_value(&seed);
	qmw_fp8_replace(&fp8, before, values);
	for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
		uint32_t square = i / COLUMNS / 128 * 2 + i % COLUMNS / 128;
		double read = qmw_cast_from_e4m3(codes[i]) * (double)scales[square];
		double step = fmax(fabs(values[i]) / 16, 0x1p-10 * (double)scales[square]);

		if (square == 1)
			assert_true(fabs(read - values[i]) <= step * (1 + 1e-6));
		else
			assert_int_equal(codes[i], old_codes[i]);
	}
	assert_memory_equal(&scales[0], &old_scales[0], sizeof(float));
	assert_memory_equal(&scales[2], &old_scales[2], 2 * sizeof(float));
	assert_true(scales[1] > 1 && scales[1] < 1000 / 448.0f * 2);
	if (powers)
		assert_true(log2f(scales[1]) == rintf(log2f(scales[1])));
}

static void test_fp8_squares(void **state)
{
	(void)state;
	check_fp8(false);
	check_fp8(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_e4m3),
		cmocka_unit_test(test_bf16_rounds_once),
		cmocka_unit_test(test_store),
		cmocka_unit_test(test_fp8_squares),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
