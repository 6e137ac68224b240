/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "client/model/sample.h"

/* exp of these is 1 : 2 : 3 : 4 over 10. */
static const float logits4[4] = {0, 0.69314718f, 1.09861229f, 1.38629436f};

static uint32_t draw(struct qmw_sampler *sampler, const float *logits, uint32_t vocab)
{
	float copy[16];
	uint32_t scratch[16];

	memcpy(copy, logits, vocab * sizeof(*logits));
	return qmw_sample(sampler, copy, scratch, vocab);
}

static void test_greedy(void **state)
{
	struct qmw_sampler sampler = {.state = 5};
	const float ties[6] = {-1, 3, 2, 3, 3, 0}, nan[4] = {NAN, 1, NAN, 2};

	(void)state;
	assert_int_equal(draw(&sampler, logits4, 4), 3);
	assert_int_equal(draw(&sampler, ties, 6), 1);
	assert_int_equal(draw(&sampler, nan, 4), 3);
	assert_true(sampler.state == 5); /* no draw */
	sampler.temperature = -1;
	assert_int_equal(draw(&sampler, logits4, 4), 3);
}

/*
 * Uniforms of splitmix64 from 42, by an independent implementation: .7416 .1599
 * .2786 .3442 .0380 .8682 .2184 .8006. Cumulative shares: .1 .3 .6 1.
 */
static void test_seeded_draws(void **state)
{
	static const uint32_t expected[8] = {3, 1, 1, 2, 0, 3, 1, 3};
	struct qmw_sampler sampler = {.temperature = 1, .state = 42};

	(void)state;
	for (int i = 0; i < 8; i++)
		assert_int_equal(draw(&sampler, logits4, 4), expected[i]);
}

/*
 * top_p .6: tokens 3 (.4) and 2 (.3) reach it; mass .7, most probable first, so
 * u < 4/7 gives 3.
 */
static void test_nucleus(void **state)
{
	static const uint32_t expected[8] = {2, 3, 3, 3, 3, 2, 3, 2};
	struct qmw_sampler sampler = {.temperature = 1, .top_p = 0.6f, .state = 42};

	(void)state;
	for (int i = 0; i < 8; i++)
		assert_int_equal(draw(&sampler, logits4, 4), expected[i]);
	sampler.top_p = 1e-9f; /* always at least one */
	for (int i = 0; i < 8; i++)
		assert_int_equal(draw(&sampler, logits4, 4), 3);
	sampler.top_p = 1; /* off */
	sampler.state = 42;
	assert_int_equal(draw(&sampler, logits4, 4), 3);
	assert_int_equal(draw(&sampler, logits4, 4), 1);
}

/* Shares over many draws; a lower temperature sharpens: squares of the shares at 1/2. */
static void check_shares(float temperature, float top_p, const double shares[4])
{
	struct qmw_sampler sampler = {.temperature = temperature, .top_p = top_p, .state = 9};
	uint32_t counts[4] = {0};

	for (int i = 0; i < 40000; i++)
		counts[draw(&sampler, logits4, 4)]++;
	for (int i = 0; i < 4; i++)
		assert_true(fabs(counts[i] / 40000.0 - shares[i]) < 0.01);
}

static void test_shares(void **state)
{
	(void)state;
	check_shares(1, 0, (double[]){.1, .2, .3, .4});
	check_shares(.5f, 0, (double[]){1 / 30., 4 / 30., 9 / 30., 16 / 30.});
	check_shares(1, .6f, (double[]){0, 0, 3 / 7., 4 / 7.});
	check_shares(1, .85f, (double[]){0, 2 / 9., 3 / 9., 4 / 9.});
}

/* Logits that no softmax likes: huge, infinite, NaN. */
static void test_hostile_logits(void **state)
{
	const float huge[4] = {-3e38f, 3e38f, 0, -INFINITY}, nan[4] = {NAN, 1, NAN, 1};
	const float none[3] = {NAN, NAN, NAN};

	(void)state;
	for (int p = 0; p < 2; p++) {
		struct qmw_sampler sampler = {.temperature = 1, .top_p = p ? .9f : 0, .state = 3};

		for (int i = 0; i < 50; i++) {
			uint32_t token = draw(&sampler, nan, 4);

			assert_int_equal(draw(&sampler, huge, 4), 1);
			assert_true(token == 1 || token == 3);
			assert_in_range(draw(&sampler, none, 3), 0, 2);
		}
	}
}

static void test_one_token(void **state)
{
	struct qmw_sampler sampler = {.temperature = 1, .top_p = .5f, .state = 3};

	(void)state;
	assert_int_equal(draw(&sampler, logits4, 1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_greedy),         cmocka_unit_test(test_seeded_draws),
		cmocka_unit_test(test_nucleus),        cmocka_unit_test(test_shares),
		cmocka_unit_test(test_hostile_logits), cmocka_unit_test(test_one_token),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
