/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/model/softmax.h"
#include "common/splitmix.h"

#define LONGEST 300u

/* Against double, for every remainder of the vector's width and rows that end early. An
 * argument of up to 24 is rounded three times, by 24 * 2^-25 each and 1.4 times that. */
static void test_equals_double(void **state)
{
	uint64_t seed = 7;

	(void)state;
	for (uint32_t count = 1; count <= LONGEST; count++) {
		const float scale = 0.3f;
		float x[LONGEST + 5];
		double want[LONGEST], largest = -INFINITY, sum = 0;

		for (uint32_t t = 0; t < count + 5; t++)
			x[t] = (float)((double)(qmc_splitmix_next(&seed) >> 11) * 0x1p-53 * 80 -
				       40);
		for (uint32_t t = 0; t < count; t++)
			largest = fmax(largest, (double)x[t]);
		for (uint32_t t = 0; t < count; t++) {
			want[t] = exp((double)scale * ((double)x[t] - largest));
			sum += want[t];
		}
		qmw_softmax(x, count, count + 5, scale);
		for (uint32_t t = 0; t < count; t++)
			assert_true(fabs((double)x[t] - want[t] / sum) <= 4e-6 * want[t] / sum);
		for (uint32_t t = count; t < count + 5; t++)
			assert_true(x[t] == 0);
	}
}

/* Scores far below the largest vanish, whatever their size; equal ones share. */
static void test_extremes(void **state)
{
	float far[3] = {-3e38f, 0, -1000}, equal[64];

	(void)state;
	qmw_softmax(far, 3, 3, 1);
	assert_true(far[1] == 1);
	assert_true(far[0] >= 0 && far[0] < 1e-37f && far[2] >= 0 && far[2] < 1e-37f);
	for (uint32_t t = 0; t < 64; t++)
		equal[t] = 1e30f;
	qmw_softmax(equal, 64, 64, 1);
	for (uint32_t t = 0; t < 64; t++)
		assert_true(equal[t] == 1.0f / 64);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_equals_double),
		cmocka_unit_test(test_extremes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
