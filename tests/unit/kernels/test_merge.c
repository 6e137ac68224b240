/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "reference.h"

enum { PARTS = 3, ROWS = 4, DIM = 32 };

static float outputs[PARTS][ROWS][DIM], lses[PARTS][ROWS], output[ROWS][DIM], output_lse[ROWS];

static struct qmk_merge_args merge_args(void)
{
	return (struct qmk_merge_args){.parts = PARTS,
				       .rows = ROWS,
				       .content_dim = DIM,
				       .outputs = &outputs[0][0][0],
				       .lse = &lses[0][0],
				       .output = &output[0][0],
				       .output_lse = output_lse};
}

static int fill(void **state)
{
	struct ref_random random = {1};

	(void)state;
	for (unsigned p = 0; p < PARTS; p++) {
		for (unsigned r = 0; r < ROWS; r++) {
			lses[p][r] = (float)(20 * ref_random_normal(&random));
			for (unsigned k = 0; k < DIM; k++)
				outputs[p][r][k] = (float)ref_random_normal(&random);
		}
	}
	memset(output, 0xff, sizeof(output));
	memset(output_lse, 0xff, sizeof(output_lse));
	return 0;
}

static void check_row(unsigned r)
{
	double weight[PARTS], sum = 0;

	for (unsigned p = 0; p < PARTS; p++) {
		weight[p] = exp2((double)lses[p][r]);
		sum += weight[p];
	}
	for (unsigned k = 0; k < DIM; k++) {
		double wanted = 0;

		for (unsigned p = 0; p < PARTS; p++)
			if (weight[p] > 0)
				wanted += weight[p] / sum * (double)outputs[p][r][k];
		assert_true(fabs((double)output[r][k] - wanted) < 1e-6);
	}
	assert_true(fabs((double)output_lse[r] - log2(sum)) < 1e-5);
}

static void test_weights_by_lse(void **state)
{
	struct qmk_merge_args args = merge_args();

	(void)state;
	assert_int_equal(ref_ops->merge(&args), QMLA_OK);
	for (unsigned r = 0; r < ROWS; r++)
		check_row(r);
}

/* Outputs of a part that attended nothing may hold anything. */
static void test_empty_parts_are_left_out(void **state)
{
	struct qmk_merge_args args = merge_args();

	(void)state;
	lses[0][1] = lses[2][2] = -INFINITY;
	for (unsigned k = 0; k < DIM; k++)
		outputs[0][1][k] = outputs[2][2][k] = NAN;
	for (unsigned p = 0; p < PARTS; p++)
		lses[p][3] = -INFINITY;
	outputs[1][3][0] = NAN;
	assert_int_equal(ref_ops->merge(&args), QMLA_OK);
	for (unsigned r = 0; r < 3; r++)
		check_row(r);
	assert_true(output_lse[3] == -INFINITY);
	for (unsigned k = 0; k < DIM; k++)
		assert_true(output[3][k] == 0);
}

/* Log-sum-exps far outside what 2^x holds in float. */
static void test_huge_lse(void **state)
{
	struct qmk_merge_args args = merge_args();

	(void)state;
	lses[0][0] = 5000;
	lses[1][0] = 5001;
	lses[2][0] = -5000;
	assert_int_equal(ref_ops->merge(&args), QMLA_OK);
	for (unsigned k = 0; k < DIM; k++)
		assert_true(fabs((double)output[0][k] - ((double)outputs[0][0][k] / 3 +
							 (double)outputs[1][0][k] * 2 / 3)) < 1e-6);
	assert_true(fabs((double)output_lse[0] - (5000 + log2(3))) < 1e-3);
}

static void test_single_part_is_itself(void **state)
{
	struct qmk_merge_args args = merge_args();

	(void)state;
	args.parts = 1;
	args.output_lse = NULL;
	assert_int_equal(ref_ops->merge(&args), QMLA_OK);
	assert_memory_equal(output, outputs[0], sizeof(output));
	assert_true(isnan(output_lse[0]));
}

static void test_refusals(void **state)
{
	struct qmk_merge_args args = merge_args();

	(void)state;
	args.outputs = NULL;
	assert_int_equal(ref_ops->merge(&args), QMLA_ERR_INVALID_ARGUMENT);
	args = merge_args();
	args.lse = NULL;
	assert_int_equal(ref_ops->merge(&args), QMLA_ERR_INVALID_ARGUMENT);
	args = merge_args();
	args.output = NULL;
	assert_int_equal(ref_ops->merge(&args), QMLA_ERR_INVALID_ARGUMENT);
	args = merge_args();
	args.content_dim = 0;
	assert_int_equal(ref_ops->merge(&args), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(ref_ops->merge(NULL), QMLA_ERR_INVALID_ARGUMENT);
	args = (struct qmk_merge_args){.rows = 0};
	assert_int_equal(ref_ops->merge(&args), QMLA_OK);
}

static int run_all(const char *variant)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_weights_by_lse, fill),
		cmocka_unit_test_setup(test_empty_parts_are_left_out, fill),
		cmocka_unit_test_setup(test_huge_lse, fill),
		cmocka_unit_test_setup(test_single_part_is_itself, fill),
		cmocka_unit_test_setup(test_refusals, fill),
	};

	return cmocka_run_group_tests_name(variant, tests, NULL, NULL);
}

int main(void)
{
	return ref_run_variants(run_all);
}
