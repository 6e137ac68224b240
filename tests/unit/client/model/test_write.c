/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors files that are written, read back, and removed when they do not become complete. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/model/safetensors_write.h"
#include "tests/unit/client/model/fixture.h"

static char directory[256], path[300];

static const struct qmw_tensor_spec specs[2] = {
	{"b", QMW_DTYPE_F32, 2, {2, 3}},
	{"a", QMW_DTYPE_BF16, 1, {4}},
};
static const float matrix[6] = {1, 2, 3, -4, 5, 6};
static const uint16_t vector[4] = {0x3f80, 0x4000, 0xbf80, 0};

static int setup(void **state)
{
	(void)state;
	fixture_make(directory);
	snprintf(path, sizeof(path), "%s/x.safetensors", directory);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fixture_remove(directory);
	return 0;
}

static struct qmw_safetensors_writer *begin(void)
{
	struct qmw_safetensors_writer *writer = NULL;

	assert_int_equal(qmw_safetensors_write(path, specs, 2, &writer), QMLA_OK);
	return writer;
}

static void test_round_trip(void **state)
{
	struct qmw_safetensors_writer *writer = begin();
	uint8_t written[32], read[32];
	struct qmw_safetensors *file;
	const struct qmw_tensor *tensor;
	float values[6];

	(void)state;
	assert_int_equal(qmw_safetensors_append(writer, matrix, 5), QMLA_OK); /* in any pieces */
	assert_int_equal(qmw_safetensors_append(writer, (const char *)matrix + 5, 19), QMLA_OK);
	assert_int_equal(qmw_safetensors_append(writer, vector, sizeof(vector)), QMLA_OK);
	assert_int_equal(qmw_safetensors_finish(writer, written), QMLA_OK);
	qmw_safetensors_writer_destroy(writer);
	assert_int_equal(qmw_safetensors_open(path, &file), QMLA_OK);
	assert_int_equal(qmw_safetensors_digest(file, read), QMLA_OK);
	assert_memory_equal(read, written, 32);
	tensor = qmw_safetensors_find(file, "b");
	assert_int_equal(tensor->rank, 2);
	assert_true(tensor->shape[0] == 2 && tensor->shape[1] == 3);
	assert_true(tensor->offset % 8 == 0); /* readers map it and cast */
	assert_int_equal(qmw_tensor_to_float(tensor, path, values), QMLA_OK);
	assert_memory_equal(values, matrix, sizeof(matrix));
	assert_int_equal(qmw_tensor_to_float(qmw_safetensors_find(file, "a"), path, values),
			 QMLA_OK);
	assert_true(values[0] == 1 && values[1] == 2 && values[2] == -1 && values[3] == 0);
	qmw_safetensors_close(file);
}

static void test_incomplete_is_removed(void **state)
{
	struct qmw_safetensors_writer *writer = begin(), *second = NULL;

	(void)state;
	assert_int_equal(qmw_safetensors_write(path, specs, 2, &second), QMLA_ERR_ALREADY_EXISTS);
	assert_null(second);
	assert_int_equal(access(path, F_OK), 0); /* the other writer's file is not touched */
	assert_int_equal(qmw_safetensors_append(writer, matrix, sizeof(matrix)), QMLA_OK);
	assert_int_equal(qmw_safetensors_finish(writer, NULL), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_safetensors_append(writer, matrix, 9), QMLA_ERR_INVALID_ARGUMENT);
	qmw_safetensors_writer_destroy(writer);
	assert_int_not_equal(access(path, F_OK), 0);
	qmw_safetensors_writer_destroy(NULL);
}

static void test_refusals(void **state)
{
	const struct qmw_tensor_spec twice[2] = {specs[0], specs[0]};
	const struct qmw_tensor_spec other = {"c", QMW_DTYPE_OTHER, 1, {1}};
	const struct qmw_tensor_spec large = {
		"c", QMW_DTYPE_F32, 2, {UINT64_C(1) << 40, UINT64_C(1) << 40}};
	struct qmw_safetensors_writer *writer = NULL;

	(void)state;
	assert_int_equal(qmw_safetensors_write(path, twice, 2, &writer), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_safetensors_write(path, &other, 1, &writer),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_safetensors_write(path, &large, 1, &writer),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_safetensors_write("/nonexistent/x", specs, 2, &writer),
			 QMLA_ERR_NOT_FOUND);
	assert_int_not_equal(access(path, F_OK), 0);
	assert_null(writer);
}

/* Files that may not grow are what a full disk is to a writer. */
static void test_no_space(void **state)
{
	const struct qmw_tensor_spec spec = {"c", QMW_DTYPE_F32, 1, {4096}};
	struct qmw_safetensors_writer *writer = NULL;
	static const float zeros[4096];
	struct rlimit before, low;
	qmla_status_t status;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	low = (struct rlimit){1024, before.rlim_max};
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
	assert_int_equal(qmw_safetensors_write(path, &spec, 1, &writer), QMLA_OK);
	status = qmw_safetensors_append(writer, zeros, sizeof(zeros));
	qmw_safetensors_writer_destroy(writer);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_true(status == QMLA_ERR_NO_SPACE || status == QMLA_ERR_TOO_LARGE);
	assert_int_not_equal(access(path, F_OK), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
		cmocka_unit_test_setup_teardown(test_incomplete_is_removed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_space, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
