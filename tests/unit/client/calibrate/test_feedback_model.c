/* SPDX-License-Identifier: Apache-2.0 */
/* The error model, its gradients against finite differences, and against what happens. */
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
#include "client/calibrate/random.h"
#include "tests/unit/client/calibrate/near.h"

#define N 12u

static void random_positive(struct qmw_random *random, double *h)
{
	double g[N * N];

	for (size_t i = 0; i < N * N; i++)
		g[i] = qmw_random_real(random);
	qmw_square_product(N, true, g, false, g, h);
	for (size_t i = 0; i < N; i++)
		h[i * N + i] += 0.1;
}

static void random_variance(struct qmw_random *random, double *variance)
{
	for (size_t i = 0; i < N; i++)
		variance[i] = 1.5 + qmw_random_real(random);
}

static double scaled(struct qmw_feedback_model *model, const double *h, double k,
		     const double *variance)
{
	double tau2[N];

	assert_int_equal(qmw_feedback_model_set(model, h), QMLA_OK);
	return qmw_feedback_scaled(model, k, variance, tau2);
}

static double common(struct qmw_feedback_model *model, const double *h, double k,
		     const double *variance)
{
	assert_int_equal(qmw_feedback_model_set(model, h), QMLA_OK);
	return qmw_feedback_common(model, k, variance, NULL, NULL);
}

/* A^T D A = H and A B = I. */
static void test_factors(void **state)
{
	struct qmw_feedback_model model;
	struct qmw_random random;
	double h[N * N], product[N * N];

	(void)state;
	qmw_random_init(&random, 1, QMW_PURPOSE_TEST, 0);
	random_positive(&random, h);
	assert_int_equal(qmw_feedback_model_init(&model, N), QMLA_OK);
	assert_int_equal(qmw_feedback_model_set(&model, h), QMLA_OK);
	for (size_t i = 0; i < N; i++) {
		for (size_t j = 0; j < N; j++) {
			double sum = 0;

			for (size_t k = 0; k < N; k++)
				sum += model.a[k * N + i] * model.d[k] * model.a[k * N + j];
			assert_near(sum, h[i * N + j], 1e-12);
		}
	}
	qmw_square_product(N, false, model.a, false, model.b, product);
	for (size_t i = 0; i < N * N; i++)
		assert_near(product[i], i % (N + 1) == 0, 1e-12);
	qmw_feedback_model_fini(&model);
}

typedef double loss_function(struct qmw_feedback_model *model, const double *h, double k,
			     const double *variance);

static void check_gradient(loss_function *loss, struct qmw_feedback_model *model, double k,
			   double *h, double *variance, const double *to_h,
			   const double *to_variance)
{
	const double step = 1e-5;

	for (size_t i = 0; i < N; i++) {
		double kept = variance[i], up, down;

		variance[i] = kept + step;
		up = loss(model, h, k, variance);
		variance[i] = kept - step;
		down = loss(model, h, k, variance);
		variance[i] = kept;
		assert_near((up - down) / (2 * step), to_variance[i],
			    1e-6 * (1 + fabs(to_variance[i])));
	}
	for (size_t i = 0; i < N; i++) {
		for (size_t j = 0; j <= i; j++) {
			double kept = h[i * N + j], up, down;
			double expected = (i == j ? 1 : 2) * to_h[i * N + j];

			h[i * N + j] = h[j * N + i] = kept + step;
			up = loss(model, h, k, variance);
			h[i * N + j] = h[j * N + i] = kept - step;
			down = loss(model, h, k, variance);
			h[i * N + j] = h[j * N + i] = kept;
			assert_near((up - down) / (2 * step), expected,
				    1e-5 * (1 + fabs(expected)));
		}
	}
}

static void test_scaled_gradient(void **state)
{
	struct qmw_feedback_model model;
	struct qmw_random random;
	double h[N * N], variance[N], tau2[N], to_h[N * N], to_variance[N];

	(void)state;
	qmw_random_init(&random, 2, QMW_PURPOSE_TEST, 0);
	random_positive(&random, h);
	random_variance(&random, variance);
	assert_int_equal(qmw_feedback_model_init(&model, N), QMLA_OK);
	assert_int_equal(qmw_feedback_model_set(&model, h), QMLA_OK);
	qmw_feedback_scaled(&model, 0.14, variance, tau2);
	qmw_feedback_scaled_gradient(&model, 0.14, tau2, to_h, to_variance);
	check_gradient(scaled, &model, 0.14, h, variance, to_h, to_variance);
	qmw_feedback_model_fini(&model);
}

static void test_common_gradient(void **state)
{
	struct qmw_feedback_model model;
	struct qmw_random random;
	double h[N * N], variance[N], to_h[N * N], to_variance[N];

	(void)state;
	qmw_random_init(&random, 3, QMW_PURPOSE_TEST, 0);
	random_positive(&random, h);
	random_variance(&random, variance);
	assert_int_equal(qmw_feedback_model_init(&model, N), QMLA_OK);
	assert_int_equal(qmw_feedback_model_set(&model, h), QMLA_OK);
	qmw_feedback_common(&model, 0.05, variance, to_h, to_variance);
	check_gradient(common, &model, 0.05, h, variance, to_h, to_variance);
	qmw_feedback_model_fini(&model);
}

/*
 * Rounding simulated: errors r of variance k tau_i^2 drawn one by one, each target widened by
 * what the former owe. Widths and weighted error come out as the model says.
 */
static void test_against_simulation(void **state)
{
	enum { ROUNDS = 40000 };
	struct qmw_feedback_model model;
	struct qmw_random random;
	double h[N * N], variance[N], tau2[N], seen[N] = {0}, error = 0, k = 0.1, loss;

	(void)state;
	qmw_random_init(&random, 4, QMW_PURPOSE_TEST, 0);
	random_positive(&random, h);
	random_variance(&random, variance);
	assert_int_equal(qmw_feedback_model_init(&model, N), QMLA_OK);
	assert_int_equal(qmw_feedback_model_set(&model, h), QMLA_OK);
	loss = qmw_feedback_scaled(&model, k, variance, tau2);
	for (int round = 0; round < ROUNDS; round++) {
		double e[N], cost = 0;

		for (size_t i = 0; i < N; i++) {
			double z = sqrt(3 * variance[i]) * qmw_random_real(&random);
			double target = z, r = sqrt(3 * k * tau2[i]) * qmw_random_real(&random);

			for (size_t j = 0; j < i; j++)
				target += model.a[i * N + j] * e[j];
			seen[i] += target * target / ROUNDS;
			e[i] = z - (target - r);
		}
		for (size_t i = 0; i < N; i++)
			for (size_t j = 0; j < N; j++)
				cost += e[i] * h[i * N + j] * e[j];
		error += cost / ROUNDS;
	}
	for (size_t i = 0; i < N; i++)
		assert_near(seen[i], tau2[i], 0.05 * tau2[i]);
	assert_near(error, k * loss, 0.05 * k * loss);
	qmw_feedback_model_fini(&model);
}

static void test_refuses_indefinite(void **state)
{
	struct qmw_feedback_model model;
	double h[N * N] = {0};

	(void)state;
	for (size_t i = 0; i < N; i++)
		h[i * N + i] = i == 5 ? -1 : 1;
	assert_int_equal(qmw_feedback_model_init(&model, N), QMLA_OK);
	assert_int_equal(qmw_feedback_model_set(&model, h), QMLA_ERR_INVALID_ARGUMENT);
	qmw_feedback_model_fini(&model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_factors),
		cmocka_unit_test(test_scaled_gradient),
		cmocka_unit_test(test_common_gradient),
		cmocka_unit_test(test_against_simulation),
		cmocka_unit_test(test_refuses_indefinite),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
