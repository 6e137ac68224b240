/* SPDX-License-Identifier: Apache-2.0 */
/* Solves, eigenvectors, the spreading rotation, the factors, Cayley's rotations. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/calibrate/cayley.h"
#include "client/calibrate/factor.h"
#include "client/calibrate/linear.h"
#include "client/calibrate/random.h"
#include "tests/unit/client/calibrate/near.h"

#define N 24u

static void fill(struct qmw_random *random, double *values, size_t count)
{
	for (size_t i = 0; i < count; i++)
		values[i] = qmw_random_real(random);
}

static void test_solve(void **state)
{
	double m[N * N], x[3][N], b[3][N];
	struct qmw_random random;
	struct qmw_lu *lu;

	(void)state;
	qmw_random_init(&random, 1, QMW_PURPOSE_TEST, 0);
	fill(&random, m, N * N);
	fill(&random, &x[0][0], 3 * N);
	assert_int_equal(qmw_lu_create(m, N, &lu), QMLA_OK);
	for (int transposed = 0; transposed < 2; transposed++) {
		for (size_t c = 0; c < 3; c++) {
			for (size_t i = 0; i < N; i++) {
				b[c][i] = 0;
				for (size_t j = 0; j < N; j++)
					b[c][i] += x[c][j] *
						   (transposed ? m[j * N + i] : m[i * N + j]);
			}
		}
		qmw_lu_solve(lu, transposed, 3, &b[0][0]);
		for (size_t c = 0; c < 3; c++)
			for (size_t i = 0; i < N; i++)
				assert_near(b[c][i], x[c][i], 1e-10);
	}
	qmw_lu_destroy(lu);
	memset(m, 0, sizeof(m));
	assert_int_equal(qmw_lu_create(m, N, &lu), QMLA_ERR_INTERNAL);
}

static void test_eigen(void **state)
{
	double m[N * N], values[N], vectors[N * N];
	struct qmw_random random;

	(void)state;
	qmw_random_init(&random, 2, QMW_PURPOSE_TEST, 0);
	for (size_t i = 0; i < N; i++)
		for (size_t j = 0; j <= i; j++)
			m[i * N + j] = m[j * N + i] = qmw_random_real(&random);
	assert_int_equal(qmw_symmetric_eigen(m, N, values, vectors), QMLA_OK);
	assert_true(qmw_orthogonality(vectors, N) < 1e-12);
	for (size_t k = 0; k < N; k++) {
		const double *v = vectors + k * N;
		double largest = 0;

		assert_true(k == 0 || values[k] >= values[k - 1]);
		for (size_t i = 0; i < N; i++) {
			double sum = 0;

			for (size_t j = 0; j < N; j++)
				sum += m[i * N + j] * v[j];
			assert_near(sum, values[k] * v[i], 1e-11);
			largest = fabs(v[i]) > fabs(largest) ? v[i] : largest;
		}
		assert_true(largest > 0);
	}
}

static void test_spreading_rotation(void **state)
{
	static const uint32_t sizes[] = {1, 2, 64, 96, 192, 7};
	static double r[192 * 192];

	(void)state;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		uint32_t n = sizes[s];
		double bound = n == 64 ? 1.0 / 8 : sqrt(2.0 * 32 / n) / sqrt(32.0) * 1.0001;

		qmw_spreading_rotation(n, r);
		assert_true(qmw_orthogonality(r, n) < 1e-13);
		for (size_t i = 0; n >= 64 && i < (size_t)n * n; i++)
			assert_true(fabs(r[i]) <= bound + 1e-12);
	}
	/* Sylvester's order: the second row alternates. */
	qmw_spreading_rotation(64, r);
	for (size_t j = 0; j < 64; j++)
		assert_near(r[64 + j], j % 2 ? -0.125 : 0.125, 1e-15);
}

/* A^T D A is put together again. */
static void test_factor(void **state)
{
	static double g[N * N], h[N * N], a[N * N], d[N];
	double mean = 0, condition, low = HUGE_VAL, high = 0;
	struct qmw_random random;

	(void)state;
	qmw_random_init(&random, 3, QMW_PURPOSE_TEST, 0);
	fill(&random, g, N * N);
	memset(g, 0, N * N / 2 * sizeof(double)); /* rank N / 2: the damping is needed */
	qmw_square_product(N, true, g, false, g, h);
	for (size_t i = 0; i < N; i++)
		mean += h[i * N + i] / N;
	assert_int_equal(qmw_factor(h, N, 1e-3, a, d, &condition), QMLA_OK);
	for (size_t i = 0; i < N; i++) {
		assert_true(d[i] > 0);
		low = fmin(low, d[i]);
		high = fmax(high, d[i]);
		for (size_t j = 0; j < N; j++) {
			double sum = 0;

			for (size_t k = 0; k < N; k++)
				sum += a[k * N + i] * d[k] * a[k * N + j];
			assert_near(sum, h[i * N + j] / mean + (i == j ? 1e-3 : 0), 1e-12);
			if (j >= i)
				assert_near(a[i * N + j], i == j, 0);
		}
	}
	assert_near(condition, high / low, 1e-9 * condition);
	memset(h, 0, sizeof(h));
	assert_int_equal(qmw_factor(h, N, 1e-3, a, d, &condition), QMLA_ERR_INVALID_ARGUMENT);
	h[0] = NAN;
	assert_int_equal(qmw_factor(h, N, 1e-3, a, d, &condition), QMLA_ERR_INVALID_ARGUMENT);
}

/* <G, R(parameters)> */
static double cayley_loss(struct qmw_cayley *cayley, const double *parameters, const double *g)
{
	static double r[N * N];
	double sum = 0;

	assert_int_equal(qmw_cayley_rotation(cayley, parameters, r), QMLA_OK);
	for (size_t i = 0; i < N * N; i++)
		sum += g[i] * r[i];
	return sum;
}

static void check_cayley(const double *base, double size)
{
	static double parameters[N * (N - 1) / 2], gradient[N * (N - 1) / 2], g[N * N], r[N * N];
	const double step = 1e-5;
	struct qmw_cayley *cayley;
	struct qmw_random random;

	qmw_random_init(&random, 4, QMW_PURPOSE_TEST, 0);
	fill(&random, g, N * N);
	fill(&random, parameters, N * (N - 1) / 2);
	for (size_t i = 0; i < N * (N - 1) / 2; i++)
		parameters[i] *= size;
	assert_int_equal(qmw_cayley_create(N, base, &cayley), QMLA_OK);
	assert_int_equal(qmw_cayley_rotation(cayley, parameters, r), QMLA_OK);
	assert_true(qmw_orthogonality(r, N) < 1e-12);
	assert_int_equal(qmw_cayley_gradient(cayley, g, gradient), QMLA_OK);
	for (size_t i = 0; i < N * (N - 1) / 2; i += 7) {
		double kept = parameters[i], up, down;

		parameters[i] = kept + step;
		up = cayley_loss(cayley, parameters, g);
		parameters[i] = kept - step;
		down = cayley_loss(cayley, parameters, g);
		parameters[i] = kept;
		assert_near((up - down) / (2 * step), gradient[i], 1e-8 + 1e-7 * fabs(gradient[i]));
	}
	qmw_cayley_destroy(cayley);
}

static void test_cayley(void **state)
{
	static double base[N * N], zero[N * (N - 1) / 2], r[N * N];
	struct qmw_cayley *cayley;

	(void)state;
	qmw_spreading_rotation(N, base);
	assert_int_equal(qmw_cayley_create(N, base, &cayley), QMLA_OK);
	assert_int_equal(qmw_cayley_rotation(cayley, zero, r), QMLA_OK);
	for (size_t i = 0; i < N * N; i++)
		assert_near(r[i], base[i], 1e-14);
	qmw_cayley_destroy(cayley);
	check_cayley(NULL, 0);
	check_cayley(NULL, 0.3);
	check_cayley(base, 2);
}

/* Ten thousand large steps: still orthogonal to 1e-6 (and far better). */
static void test_cayley_does_not_drift(void **state)
{
	static double parameters[N * (N - 1) / 2], r[N * N];
	struct qmw_cayley *cayley;
	struct qmw_random random;

	(void)state;
	qmw_random_init(&random, 5, QMW_PURPOSE_TEST, 0);
	assert_int_equal(qmw_cayley_create(N, NULL, &cayley), QMLA_OK);
	for (int step = 0; step < 10000; step++) {
		for (size_t i = 0; i < N * (N - 1) / 2; i++)
			parameters[i] += 0.05 * qmw_random_real(&random);
		if (step % 500 != 499)
			continue;
		assert_int_equal(qmw_cayley_rotation(cayley, parameters, r), QMLA_OK);
		assert_true(qmw_orthogonality(r, N) < 1e-9);
	}
	qmw_cayley_destroy(cayley);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_solve),
		cmocka_unit_test(test_eigen),
		cmocka_unit_test(test_spreading_rotation),
		cmocka_unit_test(test_factor),
		cmocka_unit_test(test_cayley),
		cmocka_unit_test(test_cayley_does_not_drift),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
