/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/model/matrix.h"
#include "kernels/numeric.h"
#include "tests/unit/client/model/fixture.h"

#define ROWS 101u

static const uint32_t shapes[][2] = {{1, 1},   {16, 64},  {15, 33},   {17, 128},
				     {48, 40}, {256, 64}, {576, 256}, {100, 1}};

struct sample {
	uint32_t outputs, inputs;
	float *weights, *bias, *x;
	struct qmw_matrix matrix;
};

static float *random_floats(size_t count, uint64_t seed)
{
	float *values = malloc(count * sizeof(*values));

	for (size_t i = 0; i < count; i++)
		values[i] = fixture_random(&seed);
	return values;
}

static float to_bf16(float value)
{
	return qmk_bf16_to_float(qmk_float_to_bf16(value));
}

/* Weights with a stride larger than their rows; bfloat16 values are stored otherwise. */
static struct sample make(uint32_t outputs, uint32_t inputs, bool biased, bool bf16)
{
	struct sample s = {.outputs = outputs, .inputs = inputs};

	s.weights = random_floats((size_t)outputs * (inputs + 3), 1);
	for (size_t i = 0; bf16 && i < (size_t)outputs * (inputs + 3); i++)
		s.weights[i] = to_bf16(s.weights[i]);
	s.bias = biased ? random_floats(outputs, 2) : NULL;
	s.x = random_floats((size_t)ROWS * (inputs + 5), 3);
	assert_int_equal(qmw_matrix_init(&s.matrix, outputs, inputs, s.weights, inputs + 3, s.bias),
			 QMLA_OK);
	return s;
}

static void drop(struct sample *s)
{
	qmw_matrix_fini(&s->matrix);
	free(s->weights);
	free(s->bias);
	free(s->x);
}

static double exact(const struct sample *s, uint32_t row, uint32_t n)
{
	double sum = s->bias ? s->bias[n] : 0;

	for (uint32_t k = 0; k < s->inputs; k++)
		sum += (double)s->x[row * (s->inputs + 5) + k] *
		       s->weights[n * (s->inputs + 3) + k];
	return sum;
}

/* Against double, and nothing written beside the rows. */
static void test_products(void **state)
{
	(void)state;
	for (size_t i = 0; i < 4 * sizeof(shapes) / sizeof(shapes[0]); i++) {
		struct sample s = make(shapes[i / 4][0], shapes[i / 4][1], i % 2, i / 2 % 2);
		size_t stride = s.outputs + 7;
		float *y = malloc(ROWS * stride * sizeof(*y));

		for (size_t k = 0; k < ROWS * stride; k++)
			y[k] = -77;
		qmw_matrix_apply(&s.matrix, 0, s.matrix.panels, s.x, s.inputs + 5, ROWS, y, stride);
		for (uint32_t r = 0; r < ROWS; r++) {
			for (uint32_t n = 0; n < s.outputs; n++)
				assert_true(fabs((double)y[r * stride + n] - exact(&s, r, n)) <
					    1e-6 * s.inputs + 1e-6);
			for (size_t n = s.outputs; n < stride; n++)
				assert_true(y[r * stride + n] == -77);
		}
		assert_true((s.matrix.halves != NULL) == (i / 2 % 2));
		free(y);
		drop(&s);
	}
}

/* A row's bits do not depend on how many rows, or which panels, are in the call. */
static void test_rows_are_independent(void **state)
{
	(void)state;
	for (size_t i = 0; i < 2 * sizeof(shapes) / sizeof(shapes[0]); i++) {
		struct sample s = make(shapes[i / 2][0], shapes[i / 2][1], true, i % 2);
		float *whole = calloc((size_t)ROWS * s.outputs, sizeof(*whole));
		float *part = calloc((size_t)ROWS * s.outputs, sizeof(*part));

		qmw_matrix_apply(&s.matrix, 0, s.matrix.panels, s.x, s.inputs + 5, ROWS, whole,
				 s.outputs);
		for (uint32_t rows = 1; rows < 20; rows++) {
			uint32_t first = rows * 3;

			qmw_matrix_apply(&s.matrix, 0, s.matrix.panels,
					 s.x + (size_t)first * (s.inputs + 5), s.inputs + 5, rows,
					 part, s.outputs);
			assert_memory_equal(part, whole + (size_t)first * s.outputs,
					    (size_t)rows * s.outputs * sizeof(*part));
		}
		for (uint32_t panel = 0; panel < s.matrix.panels; panel++)
			qmw_matrix_apply(&s.matrix, panel, panel + 1, s.x, s.inputs + 5, ROWS, part,
					 s.outputs);
		assert_memory_equal(part, whole, (size_t)ROWS * s.outputs * sizeof(*part));
		free(whole);
		free(part);
		drop(&s);
	}
}

/* The two ways of storing bfloat16 weights give the same bits. */
static void test_storage_is_invisible(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		struct sample s = make(shapes[i][0], shapes[i][1], true, true);
		struct sample t = make(shapes[i][0], shapes[i][1], true, true);
		float *y = calloc((size_t)2 * ROWS * s.outputs, sizeof(*y));
		float *z = y + (size_t)ROWS * s.outputs;
		size_t stride = t.inputs + 3;

		/* One weight more in the mantissa, then its product taken off: k last, x zero. */
		qmw_matrix_fini(&t.matrix);
		t.weights[(t.outputs - 1) * stride + t.inputs - 1] += 0x1p-20f;
		for (uint32_t r = 0; r < ROWS; r++)
			s.x[r * (s.inputs + 5) + s.inputs - 1] = 0;
		assert_int_equal(
			qmw_matrix_init(&t.matrix, t.outputs, t.inputs, t.weights, stride, t.bias),
			QMLA_OK);
		assert_true(s.matrix.halves && t.matrix.values);
		qmw_matrix_apply(&s.matrix, 0, s.matrix.panels, s.x, s.inputs + 5, ROWS, y,
				 s.outputs);
		qmw_matrix_apply(&t.matrix, 0, t.matrix.panels, s.x, s.inputs + 5, ROWS, z,
				 s.outputs);
		assert_memory_equal(y, z, (size_t)ROWS * s.outputs * sizeof(*y));
		free(y);
		drop(&s);
		drop(&t);
	}
}

/* The value of an E4M3 code, from its fields. */
static float decode(uint8_t code)
{
	int exponent = code >> 3 & 15, mantissa = code & 7;
	float size = exponent ? ldexpf(1 + (float)mantissa / 8, exponent - 7)
			      : ldexpf((float)mantissa / 8, -6);

	return code & 128 ? -size : size;
}

/* FP8 weights that stay so give the bits of their expanded selves, however many rows. */
static void check_codes(uint32_t outputs, uint32_t inputs)
{
	uint32_t blocks = (inputs + QMW_FP8_BLOCK - 1) / QMW_FP8_BLOCK;
	size_t count = (size_t)outputs * inputs;
	float *scales = random_floats((size_t)outputs * blocks, 3);
	float *x = random_floats((size_t)ROWS * inputs, 4), *wide = malloc(count * sizeof(*wide));
	float *y = calloc((size_t)2 * ROWS * outputs, sizeof(*y)), *z = y + (size_t)ROWS * outputs;
	struct qmw_matrix matrix, expanded;
	uint8_t *bytes = malloc(count);

	for (size_t i = 0; i < count; i++) {
		bytes[i] = (uint8_t)(i * 37 + i / 256);
		bytes[i] = (bytes[i] & 127) == 127 ? 0 : bytes[i];
		wide[i] =
			decode(bytes[i]) * scales[i / inputs * blocks + i % inputs / QMW_FP8_BLOCK];
	}
	assert_int_equal(qmw_matrix_init_codes(&matrix, outputs, inputs, bytes, scales), QMLA_OK);
	assert_int_equal(qmw_matrix_init(&expanded, outputs, inputs, wide, inputs, NULL), QMLA_OK);
	qmw_matrix_apply(&expanded, 0, expanded.panels, x, inputs, ROWS, z, outputs);
	qmw_matrix_apply(&matrix, 0, matrix.panels, x, inputs, ROWS, y, outputs);
	assert_memory_equal(y, z, (size_t)ROWS * outputs * sizeof(*y));
	for (uint32_t rows = 1; rows < 20; rows++) {
		qmw_matrix_apply(&matrix, 0, matrix.panels, x + (size_t)rows * inputs, inputs, rows,
				 y, outputs);
		assert_memory_equal(y, z + (size_t)rows * outputs,
				    (size_t)rows * outputs * sizeof(*y));
	}
	qmw_matrix_fini(&matrix);
	qmw_matrix_fini(&expanded);
	free(bytes);
	free(scales);
	free(wide);
	free(x);
	free(y);
}

static void test_codes(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		check_codes(shapes[i][0], shapes[i][1]);
	check_codes(144, 300);
	check_codes(33, 129);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_rows_are_independent),
		cmocka_unit_test(test_storage_is_invisible),
		cmocka_unit_test(test_codes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
