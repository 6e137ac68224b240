/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sensitivities against Jacobians row by row, the joint form of the default method against
 * its definition, and that the default method does what it is for.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/calibrate/joint.h"
#include "client/calibrate/linear.h"
#include "client/calibrate/method.h"
#include "client/calibrate/pair_flow.h"
#include "client/calibrate/random.h"
#include "client/calibrate/recipe.h"
#include "tests/unit/client/calibrate/near.h"
#include "tests/unit/client/calibrate/sequences.h"

#define HIDDEN 20u
#define D_C    64u
#define D_R    32u
#define N      10u

static const struct layer_shape shape = {.tokens = N,
					 .heads = 2,
					 .hidden = HIDDEN,
					 .content_dim = D_C,
					 .rope_dim = D_R,
					 .nope_dim = 8,
					 .value_dim = 8};

/* J^T J of the layer's own sequence, a unit cotangent for each number of the output. */
static void exact_operators(const struct sequences *s, double *h_u, double *h_k, double *h_x)
{
	const size_t outputs = (size_t)N * HIDDEN;
	float *unit = calloc(outputs * outputs, sizeof(float));
	float *u = malloc(outputs * N * D_C * sizeof(float));
	float *k = malloc(outputs * N * D_R * sizeof(float));
	struct qmw_passage *passage;

	assert_int_equal(qmw_passage_create(s->op, s->layer.single_input, N, &passage), QMLA_OK);
	for (size_t i = 0; i < outputs; i++)
		unit[i * outputs + i] = 1;
	assert_int_equal(qmw_passage_vjp(passage, NULL, (uint32_t)outputs, unit, u, k), QMLA_OK);
	memset(h_u, 0, D_C * D_C * sizeof(double));
	memset(h_k, 0, D_R * D_R * sizeof(double));
	memset(h_x, 0, D_C * D_R * sizeof(double));
	for (size_t row = 0; row < outputs * N; row++) {
		const float *gu = u + row * D_C, *gk = k + row * D_R;

		for (size_t i = 0; i < D_C; i++) {
			for (size_t j = 0; j < D_C; j++)
				h_u[i * D_C + j] += (double)gu[i] * gu[j] / N;
			for (size_t j = 0; j < D_R; j++)
				h_x[i * D_R + j] += (double)gu[i] * gk[j] / N;
		}
		for (size_t i = 0; i < D_R; i++)
			for (size_t j = 0; j < D_R; j++)
				h_k[i * D_R + j] += (double)gk[i] * gk[j] / N;
	}
	qmw_passage_destroy(passage);
	free(k);
	free(u);
	free(unit);
}

static double distance(const double *a, const double *b, size_t count)
{
	double miss = 0, size = 0;

	for (size_t i = 0; i < count; i++) {
		miss += (a[i] - b[i]) * (a[i] - b[i]);
		size += b[i] * b[i];
	}
	return sqrt(miss / size);
}

static void test_sensitivity(void **state)
{
	static double h_u[D_C * D_C], h_k[D_R * D_R], h_x[D_C * D_R];
	struct qmw_sensitivity found;
	struct sequences s;
	double mean[D_C] = {0}, moment = 0;

	(void)state;
	sequences_make(&shape, 1, 1, 1, &s);
	exact_operators(&s, h_u, h_k, h_x);
	assert_int_equal(qmw_sensitivity_measure(&s.samples, 4000, &found), QMLA_OK);
	/* 4,000 probes: about 1 / sqrt(4000) of noise in each entry. */
	assert_true(distance(found.content, h_u, D_C * D_C) < 0.06);
	assert_true(distance(found.rope, h_k, D_R * D_R) < 0.06);
	assert_true(distance(found.cross, h_x, D_C * D_R) < 0.15);
	for (uint32_t t = 0; t < N; t++) {
		double u[D_C], k[D_R];

		layer_rows(&s.layer, t, u, k);
		for (size_t i = 0; i < D_C; i++)
			mean[i] += u[i] / N;
		moment += u[3] * u[5] / N;
	}
	for (size_t i = 0; i < D_C; i++)
		assert_near(found.content_mean[i], mean[i], 1e-5);
	assert_near(found.content_moment[3 * D_C + 5], moment, 1e-5);
	assert_int_equal(found.tokens, N);
	qmw_sensitivity_free(&found);
	sequences_free(&s);
}

/* The same bits with any number of threads, others with another seed. */
static void test_sensitivity_is_reproducible(void **state)
{
	struct qmw_sensitivity found[3];
	struct sequences s;

	(void)state;
	for (uint32_t run = 0; run < 3; run++) {
		sequences_make(&shape, 5, 1, 1 + run, &s);
		s.samples.seed = run == 2 ? 9 : 1;
		assert_int_equal(qmw_sensitivity_measure(&s.samples, 2, &found[run]), QMLA_OK);
		sequences_free(&s);
	}
	assert_memory_equal(found[0].content, found[1].content, D_C * D_C * sizeof(double));
	assert_memory_equal(found[0].cross, found[1].cross, D_C * D_R * sizeof(double));
	assert_memory_equal(found[0].rope_moment, found[1].rope_moment, D_R * D_R * sizeof(double));
	assert_memory_not_equal(found[0].content, found[2].content, D_C * D_C * sizeof(double));
	for (uint32_t run = 0; run < 3; run++)
		qmw_sensitivity_free(&found[run]);
}

/* x^T m y */
static double form(const double *x, const double *m, const double *y, size_t rows, size_t columns)
{
	double sum = 0;

	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < columns; j++)
			sum += x[i] * m[i * columns + j] * y[j];
	return sum;
}

/*
 * With any errors e_c and e_k in cache coordinates: e^T H e = sum D (A e_c + X e_k)^2 +
 * e_k^T S_k e_k, and the rest is sum D_k (A_k e_k)^2 up to its damping and a common factor.
 */
static void test_rounding_matrices(void **state)
{
	struct qmw_layer_figures figures = {0};
	struct qmw_transform t = {.content_dim = D_C, .rope_dim = D_R};
	double cache_c[D_C], cache_k[D_R], e_u[D_C] = {0}, e_k[D_R], unit, whole, sum = 0;
	double rope_sum = 0, rope_form, kept[D_R * D_R], damped = 0;
	struct qmw_sensitivity found;
	struct qmw_joint joint;
	struct qmw_random random;
	struct sequences s;

	(void)state;
	sequences_make(&shape, 4, 1, 1, &s);
	assert_int_equal(qmw_sensitivity_measure(&s.samples, 8, &found), QMLA_OK);
	assert_int_equal(qmw_recipe_solve(&found, &s.layer.rope, 4, 1, NULL, NULL, &t, &figures),
			 QMLA_OK);
	assert_true(qmw_orthogonality(t.rotation, D_C) < 1e-10);
	qmw_random_init(&random, 6, QMW_PURPOSE_TEST, 0);
	for (size_t i = 0; i < D_C; i++)
		cache_c[i] = qmw_random_real(&random);
	for (size_t i = 0; i < D_R; i++)
		cache_k[i] = qmw_random_real(&random);
	for (size_t i = 0; i < D_C; i++)
		for (size_t j = 0; j < D_C; j++)
			e_u[i] += cache_c[j] / t.content_scale[j] * t.rotation[i * D_C + j];
	for (uint32_t j = 0; j < D_R / 2; j++) {
		double c = cos(t.rope_angle[j]) / t.rope_scale[j];
		double d = sin(t.rope_angle[j]) / t.rope_scale[j];
		uint32_t a, b;

		qmw_rope_pair(&s.layer.rope, j, &a, &b);
		e_k[a] = c * cache_k[a] + d * cache_k[b];
		e_k[b] = -d * cache_k[a] + c * cache_k[b];
	}
	unit = qmw_trace(found.content, D_C) / D_C;
	whole = (form(e_u, found.content, e_u, D_C, D_C) +
		 2 * form(e_u, found.cross, e_k, D_C, D_R) + form(e_k, found.rope, e_k, D_R, D_R)) /
		unit;
	for (size_t i = 0; i < D_C; i++)
		whole += 1e-3 * e_u[i] * e_u[i];
	for (size_t i = 0; i < D_C; i++) {
		double r = 0;

		for (size_t j = 0; j <= i; j++)
			r += t.content_feedback[i * D_C + j] * cache_c[j];
		for (size_t j = 0; j < D_R; j++)
			r += t.cross_feedback[i * D_R + j] * cache_k[j];
		sum += t.content_weight[i] * r * r;
	}
	assert_int_equal(qmw_joint_init(&found, 1e-3, &joint), QMLA_OK);
	rope_form = form(e_k, joint.rope, e_k, D_R, D_R);
	assert_near(sum + rope_form, whole, 1e-8 * whole);
	/* The RoPE matrices: normalised to a mean diagonal of one, and damped. */
	qmw_pair_flow_sensitivity(&s.layer.rope, t.rope_angle, t.rope_scale, joint.rope, kept);
	for (size_t i = 0; i < D_R; i++) {
		double r = 0;

		for (size_t j = 0; j <= i; j++)
			r += t.rope_feedback[i * D_R + j] * cache_k[j];
		rope_sum += t.rope_weight[i] * r * r;
		damped += 2e-3 * cache_k[i] * cache_k[i];
	}
	assert_near(form(cache_k, kept, cache_k, D_R, D_R), rope_form, 1e-9 * rope_form);
	assert_near(rope_sum, rope_form / (qmw_trace(kept, D_R) / D_R) + damped, 1e-9 * rope_sum);
	qmw_joint_fini(&joint);
	qmw_transform_free(&t);
	qmw_sensitivity_free(&found);
	sequences_free(&s);
}

/* A layer that nothing reads gets its means, and no error. */
static void test_dead_layer(void **state)
{
	struct qmw_layer_figures figures = {0};
	struct qmw_transform t = {.content_dim = D_C, .rope_dim = D_R};
	struct qmw_sensitivity found;
	struct sequences s;

	(void)state;
	sequences_make(&shape, 2, 1, 1, &s);
	assert_int_equal(qmw_sensitivity_measure(&s.samples, 1, &found), QMLA_OK);
	memset(found.content, 0, D_C * D_C * sizeof(double));
	assert_int_equal(qmw_recipe_solve(&found, &s.layer.rope, 4, 1, NULL, NULL, &t, &figures),
			 QMLA_OK);
	assert_null(t.content_feedback);
	assert_null(t.rotation);
	for (size_t i = 0; i < D_C; i++)
		assert_near(t.content_mean[i], found.content_mean[i], 0);
	for (size_t i = 0; i < D_R; i++)
		assert_near(t.rope_mean[i], found.rope_mean[i], 0);
	qmw_transform_free(&t);
	qmw_sensitivity_free(&found);
	sequences_free(&s);
}

/* Every method on the same layer: the default loses least, at both widths. */
static void test_methods(void **state)
{
	static const enum qmw_method methods[] = {QMW_METHOD_RTN, QMW_METHOD_SMOOTHQUANT,
						  QMW_METHOD_QUAROT, QMW_METHOD_PAPER,
						  QMW_METHOD_DEFAULT};
	struct layer_shape longer = shape;
	struct sequences s;

	(void)state;
	longer.tokens = 70; /* more than a page */
	sequences_make(&longer, 6, 2, 2, &s);
	for (uint32_t bits = 2; bits <= 4; bits += 2) {
		double error[5];

		for (size_t i = 0; i < 5; i++) {
			const struct qmw_method_options options = {
				.method = methods[i],
				.content_bits = bits,
				.probes = 2,
				.steps = 5,
			};
			struct qmw_layer_figures figures;
			struct qmw_transform t = {0};

			assert_int_equal(qmw_method_learn(&s.samples, &options, &t, &figures),
					 QMLA_OK);
			error[i] = figures.after.both;
			assert_true(figures.before.both > 0 && figures.after.content > 0 &&
				    figures.after.rope > 0 && figures.after.score > 0);
			if (methods[i] == QMW_METHOD_RTN)
				assert_near(figures.after.both, figures.before.both, 0);
			qmw_transform_free(&t);
		}
		for (size_t i = 0; i < 4; i++)
			assert_true(error[4] < error[i]);
	}
	sequences_free(&s);
}

/* Ten tokens for 64 numbers: as measured they have no use, and more damping is found. */
static void test_too_few_tokens(void **state)
{
	struct qmw_method_options options = {
		.method = QMW_METHOD_DEFAULT, .content_bits = 4, .probes = 1, .damping = 1e-3};
	struct qmw_layer_figures harmed, chosen;
	struct qmw_transform t = {0};
	struct sequences s;
	qmla_status_t status;

	(void)state;
	sequences_make(&shape, 1, 6, 2, &s);
	status = qmw_method_learn(&s.samples, &options, &t, &harmed);
	qmw_transform_free(&t);
	options.damping = 0;
	assert_int_equal(qmw_method_learn(&s.samples, &options, &t, &chosen), QMLA_OK);
	qmw_transform_free(&t);
	assert_true(chosen.damping >= 1);
	assert_true(status == QMLA_ERR_INVALID_ARGUMENT ||
		    (status == QMLA_OK && harmed.after.both > chosen.after.both));
	/* Without more damping than usual it would have been kept only if it helps. */
	assert_true(chosen.damping > 1 || chosen.after.both <= chosen.before.both);
	sequences_free(&s);
}

static void test_method_names(void **state)
{
	enum qmw_method method;

	(void)state;
	for (int i = 0; i < 5; i++) {
		assert_int_equal(qmw_method_parse(qmw_method_name((enum qmw_method)i), &method),
				 QMLA_OK);
		assert_int_equal(method, i);
		assert_in_range(strlen(qmw_method_recipe(method)), 1, 95);
	}
	assert_int_equal(qmw_method_parse("Paper", &method), QMLA_ERR_INVALID_ARGUMENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sensitivity),
		cmocka_unit_test(test_sensitivity_is_reproducible),
		cmocka_unit_test(test_rounding_matrices),
		cmocka_unit_test(test_dead_layer),
		cmocka_unit_test(test_methods),
		cmocka_unit_test(test_too_few_tokens),
		cmocka_unit_test(test_method_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
