/* SPDX-License-Identifier: Apache-2.0 */
/* The default method's rotation and pairs: gradients, orthogonality, and that they descend. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/calibrate/feedback_model.h"
#include "client/calibrate/linear.h"
#include "client/calibrate/pair_flow.h"
#include "client/calibrate/random.h"
#include "client/calibrate/rotation_flow.h"
#include "tests/unit/client/calibrate/near.h"

#define N 16u

/* Positive definite with a spectrum over @decades powers of ten. */
static void spread_positive(struct qmw_random *random, double decades, double *h)
{
	double g[N * N], vectors[N * N], values[N], scaled[N * N];

	for (size_t i = 0; i < N; i++)
		for (size_t j = 0; j < N; j++)
			g[i * N + j] = 0;
	for (size_t i = 0; i < N; i++)
		for (size_t j = 0; j <= i; j++)
			g[i * N + j] = g[j * N + i] = qmw_random_real(random);
	assert_int_equal(qmw_symmetric_eigen(g, N, values, vectors), QMLA_OK);
	for (size_t i = 0; i < N; i++)
		for (size_t j = 0; j < N; j++)
			scaled[i * N + j] = pow(10, -decades * (double)i / N) * vectors[i * N + j];
	qmw_square_product(N, true, vectors, false, scaled, h);
	for (size_t i = 0; i < N; i++)
		for (size_t j = 0; j < i; j++)
			h[i * N + j] = h[j * N + i];
}

static double loss_of(const double *h, const double *sigma, const double *r, double noise)
{
	struct qmw_feedback_model model;
	double work[N * N], turned[N * N], variance[N], tau2[N], loss;

	assert_int_equal(qmw_feedback_model_init(&model, N), QMLA_OK);
	qmw_square_product(N, true, r, false, sigma, work);
	qmw_square_product(N, false, work, false, r, turned);
	for (size_t i = 0; i < N; i++)
		variance[i] = turned[i * N + i];
	qmw_square_product(N, true, r, false, h, work);
	qmw_square_product(N, false, work, false, r, turned);
	assert_int_equal(qmw_feedback_model_set(&model, turned), QMLA_OK);
	loss = qmw_feedback_scaled(&model, noise, variance, tau2);
	qmw_feedback_model_fini(&model);
	return loss;
}

/*
 * Nothing beats n (det H det Sigma)^(1/n) when k is zero: D_i sigma_i^2 have at least the
 * determinants' product (Hadamard's inequality) and arithmetic means are above geometric
 * ones. The flow gets close from a Hadamard start that is far.
 */
static void test_rotation_reaches_bound(void **state)
{
	struct qmw_rotation_flow flow = qmw_rotation_flow_defaults(4);
	double h[N * N], sigma[N * N], r[N * N], before, after, bound = 0, values[N],
								vectors[N * N];
	struct qmw_random random;

	(void)state;
	flow.noise = 0;
	flow.iterations = 400;
	qmw_random_init(&random, 5, QMW_PURPOSE_TEST, 0);
	spread_positive(&random, 3, h);
	spread_positive(&random, 2, sigma);
	assert_int_equal(qmw_symmetric_eigen(h, N, values, vectors), QMLA_OK);
	for (size_t i = 0; i < N; i++)
		bound += log(values[i]) / N;
	assert_int_equal(qmw_symmetric_eigen(sigma, N, values, vectors), QMLA_OK);
	for (size_t i = 0; i < N; i++)
		bound += log(values[i]) / N;
	bound = N * exp(bound);
	qmw_spreading_rotation(N, r);
	assert_int_equal(qmw_rotation_flow_run(&flow, N, h, sigma, r, &before, &after), QMLA_OK);
	assert_true(qmw_orthogonality(r, N) < 1e-12);
	assert_near(after, loss_of(h, sigma, r, 0), 1e-9 * after);
	assert_true(after >= bound * (1 - 1e-9));
	assert_true(before > 1.5 * bound);
	assert_true(after < 1.1 * bound);
}

static void test_rotation_descends_with_noise(void **state)
{
	struct qmw_rotation_flow flow = qmw_rotation_flow_defaults(2);
	double h[N * N], sigma[N * N], r[N * N], again[N * N], before, after;
	struct qmw_random random;

	(void)state;
	qmw_random_init(&random, 6, QMW_PURPOSE_TEST, 0);
	spread_positive(&random, 3, h);
	spread_positive(&random, 2, sigma);
	qmw_spreading_rotation(N, r);
	memcpy(again, r, sizeof(r));
	assert_near(loss_of(h, sigma, r, 0.14), loss_of(h, sigma, again, 0.14), 0);
	assert_int_equal(qmw_rotation_flow_run(&flow, N, h, sigma, r, &before, &after), QMLA_OK);
	assert_near(before, loss_of(h, sigma, again, 0.14), 1e-9 * before);
	assert_true(after < 0.8 * before);
	assert_true(qmw_orthogonality(r, N) < 1e-12);
	/* The same input, the same bytes. */
	assert_int_equal(qmw_rotation_flow_run(&flow, N, h, sigma, again, &before, &after),
			 QMLA_OK);
	assert_memory_equal(r, again, sizeof(r));
}

static bool stop_at_three(void *user)
{
	return ++*(int *)user < 3;
}

static void test_rotation_stops(void **state)
{
	struct qmw_rotation_flow flow = qmw_rotation_flow_defaults(4);
	double h[N * N], r[N * N], before, after;
	struct qmw_random random;
	int asked = 0;

	(void)state;
	flow.go_on = stop_at_three;
	flow.user = &asked;
	qmw_random_init(&random, 7, QMW_PURPOSE_TEST, 0);
	spread_positive(&random, 1, h);
	qmw_spreading_rotation(N, r);
	assert_int_equal(qmw_rotation_flow_run(&flow, N, h, h, r, &before, &after),
			 QMLA_ERR_CANCELLED);
	assert_int_equal(asked, 3);
}

static struct qmw_rope rope_of(enum qmk_pairing pairing)
{
	return (struct qmw_rope){.dim = N, .pairing = pairing, .amplitude = 1};
}

static void check_pair_gradient(enum qmk_pairing pairing)
{
	struct qmw_pair_flow flow = qmw_pair_flow_defaults();
	struct qmw_rope rope = rope_of(pairing);
	double h[N * N], sigma[N * N], parameters[N], gradient[N], loss, up, down;
	const double step = 1e-6;
	struct qmw_random random;

	flow.noise = 0.1;
	qmw_random_init(&random, 8, QMW_PURPOSE_TEST, pairing);
	spread_positive(&random, 2, h);
	spread_positive(&random, 2, sigma);
	for (size_t i = 0; i < N; i++)
		parameters[i] = 0.7 * qmw_random_real(&random);
	assert_int_equal(qmw_pair_flow_loss(&flow, &rope, h, sigma, parameters, parameters + N / 2,
					    &loss, gradient, gradient + N / 2),
			 QMLA_OK);
	for (size_t i = 0; i < N; i++) {
		double kept = parameters[i];

		parameters[i] = kept + step;
		assert_int_equal(qmw_pair_flow_loss(&flow, &rope, h, sigma, parameters,
						    parameters + N / 2, &up, NULL, NULL),
				 QMLA_OK);
		parameters[i] = kept - step;
		assert_int_equal(qmw_pair_flow_loss(&flow, &rope, h, sigma, parameters,
						    parameters + N / 2, &down, NULL, NULL),
				 QMLA_OK);
		parameters[i] = kept;
		assert_near((up - down) / (2 * step), gradient[i], 1e-6 * (1 + fabs(gradient[i])));
	}
}

static void test_pair_gradient(void **state)
{
	(void)state;
	check_pair_gradient(QMK_INTERLEAVED);
	check_pair_gradient(QMK_HALF_SPLIT);
}

/* A key whose pairs are turned and stretched: the flow undoes much of it. */
static void test_pairs_descend(void **state)
{
	struct qmw_pair_flow flow = qmw_pair_flow_defaults();
	struct qmw_rope rope = rope_of(QMK_INTERLEAVED);
	double h[N * N], sigma[N * N], angle[N / 2], scale[N / 2], log_scale[N / 2] = {0};
	double zero[N / 2] = {0}, plain, found, mean = 0;
	struct qmw_random random;

	(void)state;
	qmw_random_init(&random, 9, QMW_PURPOSE_TEST, 0);
	spread_positive(&random, 2, h);
	spread_positive(&random, 3, sigma);
	assert_int_equal(qmw_pair_flow_run(&flow, &rope, h, sigma, angle, scale), QMLA_OK);
	assert_int_equal(
		qmw_pair_flow_loss(&flow, &rope, h, sigma, zero, log_scale, &plain, NULL, NULL),
		QMLA_OK);
	for (size_t j = 0; j < N / 2; j++) {
		log_scale[j] = log(scale[j]);
		mean += log_scale[j];
	}
	assert_near(mean, 0, 1e-9);
	assert_int_equal(
		qmw_pair_flow_loss(&flow, &rope, h, sigma, angle, log_scale, &found, NULL, NULL),
		QMLA_OK);
	assert_true(found < plain - 0.1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rotation_reaches_bound),
		cmocka_unit_test(test_rotation_descends_with_noise),
		cmocka_unit_test(test_rotation_stops),
		cmocka_unit_test(test_pair_gradient),
		cmocka_unit_test(test_pairs_descend),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
