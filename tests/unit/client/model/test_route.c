/* SPDX-License-Identifier: Apache-2.0 */
/* Which experts a row goes to, and with what weights: worked out by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "client/model/moe.h"

#define NEAR 1e-6

struct expected {
	uint32_t expert;
	double weight;
};

static void check(const struct qmw_moe_config *config, const float *correction, const float *logits,
		  const struct expected *expected)
{
	float scores[16], choice[16];
	struct qmw_route routes[8];

	memcpy(scores, logits, (config->experts + config->zero_experts) * sizeof(*scores));
	qmw_moe_route(config, correction, scores, choice, routes);
	for (uint32_t k = 0; k < config->top_k; k++) {
		assert_int_equal(routes[k].expert, expected[k].expert);
		assert_true(fabs((double)routes[k].weight - expected[k].weight) < NEAR);
	}
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

/* Logits are logarithms, so the softmax is what stands in the comment. */
static void test_greedy(void **state)
{
	const struct qmw_moe_config config = {
		.experts = 4, .top_k = 2, .groups = 1, .top_groups = 1, .scale = 16};
	const float logits[] = {logf(1), logf(4), logf(2), logf(3)}; /* .1 .4 .2 .3 */

	(void)state;
	check(&config, NULL, logits, (struct expected[]){{1, 6.4}, {3, 4.8}});
}

/* Groups by their best: the second best expert of all is in a group that loses. */
static void test_group_limited(void **state)
{
	const struct qmw_moe_config config = {.experts = 6,
					      .top_k = 3,
					      .groups = 3,
					      .top_groups = 2,
					      .group_score = QMW_GROUP_MAX,
					      .scale = 1};
	/* sum 20: groups (5, 1), (4, 4.5), (4.9, .6) */
	const float logits[] = {logf(5), logf(1), logf(4), logf(4.5f), logf(4.9f), logf(.6f)};

	(void)state;
	check(&config, NULL, logits, (struct expected[]){{0, .25}, {1, .05}, {4, .245}});
}

/* Groups by the sum of their two best corrected scores; weights without the correction. */
static void test_noaux(void **state)
{
	const struct qmw_moe_config config = {.experts = 6,
					      .top_k = 2,
					      .groups = 2,
					      .top_groups = 1,
					      .gate = QMW_GATE_SIGMOID,
					      .group_score = QMW_GROUP_TOP2,
					      .normalise = true,
					      .scale = 2.5f};
	const float logits[] = {3, 0, -1, 1, 1, 0};
	const float none[6] = {0}, correction[] = {0, 0, 0, 0, -1, .4f};
	double a = sigmoid(1), b = sigmoid(0), c = sigmoid(3);

	(void)state;
	/* .953 + .5 < .731 + .731, so group 1. */
	check(&config, none, logits, (struct expected[]){{3, 1.25}, {4, 1.25}});
	/* Corrected: .731 and .9 win still; expert 4 is out, expert 5 counts .5. */
	check(&config, correction, logits,
	      (struct expected[]){{3, 2.5 * a / (a + b)}, {5, 2.5 * b / (a + b)}});
	check(&config, (const float[]){.1f, 0, 0, -.1f, 0, 0}, logits,
	      (struct expected[]){{0, 2.5 * c / (c + b)}, {1, 2.5 * b / (c + b)}});
}

/* Experts without weights are numbered behind the others; not normalised. */
static void test_zero_experts(void **state)
{
	const struct qmw_moe_config config = {.experts = 2,
					      .zero_experts = 2,
					      .top_k = 3,
					      .groups = 1,
					      .top_groups = 1,
					      .scale = 6};
	const float logits[] = {logf(1), logf(2), logf(3), logf(4)};
	const float correction[] = {1, 0, 0, 0};

	(void)state;
	check(&config, correction, logits, (struct expected[]){{0, .6}, {2, 1.8}, {3, 2.4}});
}

/* Equal scores: the lower number. A row of NaN has experts too, whatever they give. */
static void test_ties(void **state)
{
	const struct qmw_moe_config config = {
		.experts = 4, .top_k = 2, .groups = 2, .top_groups = 1, .scale = 1};
	float scores[4] = {NAN, NAN, NAN, NAN}, choice[4];
	struct qmw_route routes[2];

	(void)state;
	check(&config, NULL, (const float[]){1, 1, 1, 1}, (struct expected[]){{0, .25}, {1, .25}});
	qmw_moe_route(&config, NULL, scores, choice, routes);
	assert_true(routes[0].expert < routes[1].expert && routes[1].expert < 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_greedy), cmocka_unit_test(test_group_limited),
		cmocka_unit_test(test_noaux),  cmocka_unit_test(test_zero_experts),
		cmocka_unit_test(test_ties),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
