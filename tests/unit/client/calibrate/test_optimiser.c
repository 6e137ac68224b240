/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW by hand, the schedule, and the generator that everything random comes from. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/calibrate/largest.h"
#include "client/calibrate/learn.h"
#include "client/calibrate/optimiser.h"
#include "client/calibrate/random.h"
#include "tests/unit/client/calibrate/near.h"

static void test_schedule(void **state)
{
	struct qmw_optimiser_options o = qmw_optimiser_defaults(300);

	(void)state;
	assert_near(qmw_optimiser_schedule(&o, 0), 1.0 / 30, 1e-12);
	assert_near(qmw_optimiser_schedule(&o, 29), 1, 1e-12);
	/* Half of the cosine is behind at 30 + 135 steps. */
	assert_near(qmw_optimiser_schedule(&o, 164), 0.5, 1e-12);
	assert_near(qmw_optimiser_schedule(&o, 299), 0, 1e-12);
	for (uint32_t i = 30; i < 300; i++)
		assert_true(qmw_optimiser_schedule(&o, i) <= qmw_optimiser_schedule(&o, i - 1));
}

/* Two steps of two parameters, as Loshchilov and Hutter's algorithm 2 has them. */
static void test_steps_by_hand(void **state)
{
	struct qmw_optimiser_options o = qmw_optimiser_defaults(10);
	double rates[2] = {0.1, 0.2}, p[2] = {1, -2}, g[2];
	double m[2] = {0}, v[2] = {0}, expected[2] = {1, -2};
	struct qmw_optimiser *optimiser;

	(void)state;
	o.decay = 0.01;
	assert_int_equal(qmw_optimiser_create(&o, 2, rates, &optimiser), QMLA_OK);
	for (int t = 1; t <= 2; t++) {
		double gradient[2] = {3.0 * t, 4.0 * t}, norm = 5.0 * t;

		memcpy(g, gradient, sizeof(g));
		assert_near(qmw_optimiser_step(optimiser, g, p), norm, 1e-12);
		for (int i = 0; i < 2; i++) {
			double clipped = gradient[i] / norm;
			double rate = rates[i] * qmw_optimiser_schedule(&o, (uint32_t)t - 1);

			assert_near(g[i], clipped, 1e-12);
			m[i] = 0.9 * m[i] + 0.1 * clipped;
			v[i] = 0.999 * v[i] + 0.001 * clipped * clipped;
			expected[i] *= 1 - rate * 0.01;
			expected[i] -= rate * (m[i] / (1 - pow(0.9, t))) /
				       (sqrt(v[i] / (1 - pow(0.999, t))) + 1e-8);
			assert_near(p[i], expected[i], 1e-12);
		}
	}
	qmw_optimiser_destroy(optimiser);
	o.steps = 0;
	assert_int_equal(qmw_optimiser_create(&o, 2, rates, &optimiser), QMLA_ERR_INVALID_ARGUMENT);
}

/* An ill-conditioned bowl is found to the bottom. */
static void test_descends(void **state)
{
	struct qmw_optimiser_options o = qmw_optimiser_defaults(500);
	double rates[2] = {0.05, 0.05}, p[2] = {1, -1}, g[2];
	struct qmw_optimiser *optimiser;

	(void)state;
	assert_int_equal(qmw_optimiser_create(&o, 2, rates, &optimiser), QMLA_OK);
	for (int i = 0; i < 500; i++) {
		g[0] = 2 * p[0];
		g[1] = 200 * p[1];
		qmw_optimiser_step(optimiser, g, p);
	}
	assert_true(fabs(p[0]) < 1e-3 && fabs(p[1]) < 1e-3);
	qmw_optimiser_destroy(optimiser);
}

/* splitmix64 of state 0 begins with these (Vigna's reference program). */
static void test_random(void **state)
{
	struct qmw_random a = {0}, b;
	float signs[1000];
	uint32_t order[50], seen[7] = {0};
	double sum = 0;

	(void)state;
	assert_true(qmw_random_next(&a) == UINT64_C(0xe220a8397b1dcdaf));
	assert_true(qmw_random_next(&a) == UINT64_C(0x6e789e6aa1b965f4));
	qmw_random_init(&a, 1, QMW_PURPOSE_PROBE, 5);
	qmw_random_init(&b, 1, QMW_PURPOSE_PROBE, 6);
	assert_true(qmw_random_next(&a) != qmw_random_next(&b));
	qmw_random_signs(&a, signs, 1000);
	for (int i = 0; i < 1000; i++) {
		assert_true(signs[i] == 1.0f || signs[i] == -1.0f);
		sum += signs[i];
	}
	assert_true(fabs(sum) < 120);
	for (int i = 0; i < 7000; i++)
		seen[qmw_random_below(&a, 7)]++;
	for (int i = 0; i < 7; i++)
		assert_in_range(seen[i], 850, 1150);
	for (uint32_t i = 0; i < 50; i++)
		order[i] = i;
	qmw_random_shuffle(&a, order, 50);
	sum = 0;
	for (uint32_t i = 0; i < 50; i++)
		sum += order[i] == i;
	assert_true(sum < 10);
	for (uint32_t want = 0; want < 50; want++) {
		uint32_t found = 0;

		for (uint32_t i = 0; i < 50; i++)
			found += order[i] == want;
		assert_int_equal(found, 1);
	}
}

static int compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* Against sorting everything, with NumPy's rule for what lies between two values. */
static void test_percentile(void **state)
{
	enum { SAMPLES = 5237 };
	static float values[SAMPLES];
	struct qmw_largest *largest;
	struct qmw_random random;
	double rank = 0.999 * (SAMPLES - 1), fraction = rank - floor(rank);
	size_t below = (size_t)rank;

	(void)state;
	qmw_random_init(&random, 6, QMW_PURPOSE_TEST, 0);
	assert_int_equal(qmw_largest_create(2, SAMPLES, &largest), QMLA_OK);
	for (int i = 0; i < SAMPLES; i++) {
		double x = qmw_random_real(&random);

		values[i] = (float)(x * x * x * 100);
		qmw_largest_add(largest, 1, values[i]);
		values[i] = fabsf(values[i]);
	}
	qsort(values, SAMPLES, sizeof(values[0]), compare);
	assert_near(qmw_largest_percentile(largest, 1),
		    values[below] + fraction * (values[below + 1] - values[below]), 1e-4);
	assert_near(qmw_largest_percentile(largest, 0), 0, 0);
	qmw_largest_destroy(largest);
}

/* log s = clip(alpha (mean log a - log a), -2, 2). */
static void test_initial_scales(void **state)
{
	const double amplitude[4] = {1, exp(1.0), exp(2.0), exp(9.0)};
	double log_scale[4];

	(void)state;
	qmw_learn_initial_scales(amplitude, 4, 0.5, log_scale);
	assert_near(log_scale[0], 1.5, 1e-12);
	assert_near(log_scale[1], 1.0, 1e-12);
	assert_near(log_scale[2], 0.5, 1e-12);
	assert_near(log_scale[3], -2.0, 1e-12);
	qmw_learn_initial_scales(amplitude, 4, 0, log_scale);
	for (int i = 0; i < 4; i++)
		assert_near(log_scale[i], 0, 1e-12);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_schedule),   cmocka_unit_test(test_steps_by_hand),
		cmocka_unit_test(test_descends),   cmocka_unit_test(test_random),
		cmocka_unit_test(test_percentile), cmocka_unit_test(test_initial_scales),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
