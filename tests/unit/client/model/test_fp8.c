/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 weights: every code, blocks of 128 x 128 with a rest, scales that are missing or misshapen.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/model/checkpoint.h"
#include "tests/unit/client/model/fixture.h"

/* "w" of one dtype byte for byte, and its scales. */
static struct qmw_checkpoint *write_open(const char *directory, uint32_t rows, uint32_t columns,
					 const uint8_t *codes, const char *scale_name,
					 uint32_t scale_rows, uint32_t scale_columns,
					 const float *scales)
{
	size_t code_bytes = (size_t)rows * columns;
	size_t scale_bytes = 4 * (size_t)scale_rows * scale_columns;
	char *file = calloc(1, 1024 + code_bytes + scale_bytes);
	struct qmw_checkpoint *checkpoint;
	uint64_t header;

	header = (uint64_t)snprintf(
		file + 8, 1000,
		"{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[%u,%u],\"data_offsets\":[0,%zu]},"
		"\"%s\":{\"dtype\":\"F32\",\"shape\":[%u,%u],\"data_offsets\":[%zu,%zu]}}",
		rows, columns, code_bytes, scale_name, scale_rows, scale_columns, code_bytes,
		code_bytes + scale_bytes);
	memcpy(file, &header, 8);
	memcpy(file + 8 + header, codes, code_bytes);
	memcpy(file + 8 + header + code_bytes, scales, scale_bytes);
	fixture_write(directory, "model.safetensors", file, 8 + header + code_bytes + scale_bytes);
	free(file);
	assert_int_equal(qmw_checkpoint_open(directory, &checkpoint), QMLA_OK);
	return checkpoint;
}

/* From its bits: sign, 4 of exponent with bias 7, 3 of mantissa. */
static double decode(uint32_t code)
{
	double sign = code & 128 ? -1 : 1, exponent = code >> 3 & 15, mantissa = code & 7;

	return sign * (exponent > 0 ? pow(2, exponent - 7) * (1 + mantissa / 8)
				    : pow(2, -6) * mantissa / 8);
}

static void test_codes(void **state)
{
	const float scale = 2;
	struct qmw_checkpoint *checkpoint;
	char directory[256];
	uint8_t codes[256];
	float *values;

	(void)state;
	fixture_make(directory);
	for (uint32_t i = 0; i < 256; i++)
		codes[i] = (uint8_t)i;
	codes[0x7f] = codes[0xff] = 0;
	checkpoint = write_open(directory, 16, 16, codes, "w_scale_inv", 1, 1, &scale);
	assert_int_equal(qmw_checkpoint_read(checkpoint, "w", 16, 16, &values), QMLA_OK);
	for (uint32_t i = 0; i < 256; i++)
		assert_true(values[i] == (float)(2 * decode(codes[i])));
	assert_true(values[0x38] == 2.0f && values[0x7e] == 896.0f && values[1] == 0x1p-8f);
	free(values);
	qmw_checkpoint_close(checkpoint);
	for (uint32_t nan = 0x7f; nan <= 0xff; nan += 0x80) {
		codes[3] = (uint8_t)nan;
		checkpoint = write_open(directory, 16, 16, codes, "w_scale_inv", 1, 1, &scale);
		assert_int_equal(qmw_checkpoint_read(checkpoint, "w", 16, 16, &values),
				 QMLA_ERR_CORRUPT);
		qmw_checkpoint_close(checkpoint);
	}
	fixture_remove(directory);
}

static void test_blocks(void **state)
{
	static const float scales[6] = {1, 2, 3, 4, 5, 6};
	const uint32_t rows = 130, columns = 300;
	uint8_t *codes = malloc((size_t)rows * columns);
	float *values, part[2 * 300];
	struct qmw_checkpoint *checkpoint;
	char directory[256];

	(void)state;
	fixture_make(directory);
	memset(codes, 0x38, (size_t)rows * columns); /* 1 */
	checkpoint = write_open(directory, rows, columns, codes, "w_scale_inv", 2, 3, scales);
	assert_int_equal(qmw_checkpoint_check(checkpoint, "w", rows, columns), QMLA_OK);
	assert_int_equal(qmw_checkpoint_read(checkpoint, "w", rows, columns, &values), QMLA_OK);
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t k = 0; k < columns; k++)
			assert_true(values[r * columns + k] == scales[r / 128 * 3 + k / 128]);
	free(values);
	assert_int_equal(qmw_checkpoint_read_rows(checkpoint, "w", rows, columns, 127, 2, part),
			 QMLA_OK);
	assert_true(part[0] == 1 && part[299] == 3 && part[300] == 4 && part[599] == 6);
	qmw_checkpoint_close(checkpoint);
	free(codes);
	fixture_remove(directory);
}

static void test_bad_scales(void **state)
{
	static const float scales[4] = {1, 1, 1, NAN};
	uint8_t codes[256] = {0};
	struct qmw_checkpoint *checkpoint;
	char directory[256];
	float *values;

	(void)state;
	fixture_make(directory);
	checkpoint = write_open(directory, 16, 16, codes, "other", 1, 1, scales);
	assert_int_equal(qmw_checkpoint_check(checkpoint, "w", 16, 16), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qmw_checkpoint_read(checkpoint, "w", 16, 16, &values), QMLA_ERR_NOT_FOUND);
	qmw_checkpoint_close(checkpoint);
	checkpoint = write_open(directory, 16, 16, codes, "w_scale_inv", 2, 1, scales);
	assert_int_equal(qmw_checkpoint_check(checkpoint, "w", 16, 16), QMLA_ERR_FORMAT);
	assert_int_equal(qmw_checkpoint_read(checkpoint, "w", 16, 16, &values), QMLA_ERR_FORMAT);
	qmw_checkpoint_close(checkpoint);
	checkpoint = write_open(directory, 16, 16, codes, "w_scale_inv", 1, 1, scales + 3);
	assert_int_equal(qmw_checkpoint_read(checkpoint, "w", 16, 16, &values), QMLA_ERR_CORRUPT);
	qmw_checkpoint_close(checkpoint);
	fixture_remove(directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_codes),
		cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_bad_scales),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
