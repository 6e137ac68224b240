/* SPDX-License-Identifier: Apache-2.0 */
/* The attention operator against plain loops, and its derivatives against finite differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/client/calibrate/layer.h"

/* More than one block of 128 queries, and a last one that is not full. */
static const struct layer_shape shapes[] = {
	{137, 2, 12, 0, 10, 6, 5, 4, true, false, false},
	{137, 3, 11, 7, 9, 4, 6, 5, false, false, true},
	{40, 2, 12, 0, 10, 8, 3, 7, false, true, true},
	{1, 1, 6, 4, 8, 4, 4, 4, true, true, false},
};

#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

struct rig {
	struct layer layer;
	struct qmw_operator64 *op;
	struct qmw_passage64 *passage;
	size_t n, content, key, output;
	uint64_t seed;
	double *u, *k, *near_u, *near_k; /* other rows than its own */
	struct qmw_near64 near;
	struct qmw_rows64 rows;
};

static void rig_open(struct rig *rig, const struct layer_shape *shape, bool near)
{
	memset(rig, 0, sizeof(*rig));
	rig->seed = 99;
	layer_make(shape, 7, &rig->layer);
	rig->n = shape->tokens;
	rig->content = rig->n * shape->content_dim;
	rig->key = rig->n * shape->rope_dim;
	rig->output = rig->n * shape->hidden;
	assert_int_equal(qmw_operator64_create(&rig->layer.config, &rig->layer.rope,
					       &rig->layer.weights, &rig->op),
			 QMLA_OK);
	assert_int_equal(
		qmw_passage64_create(rig->op, rig->layer.input, (uint32_t)rig->n, &rig->passage),
		QMLA_OK);
	rig->u = layer_random_rows(&rig->seed, rig->content, 1.5);
	rig->k = layer_random_rows(&rig->seed, rig->key, 1.5);
	rig->near_u = layer_random_rows(&rig->seed, rig->content, 1.5);
	rig->near_k = layer_random_rows(&rig->seed, rig->key, 1.5);
	rig->near = (struct qmw_near64){rig->near_u, rig->near_k, 16, 9, 3};
	rig->rows = (struct qmw_rows64){
		.content = rig->u, .key = rig->k, .near = near ? &rig->near : NULL};
}

static void rig_close(struct rig *rig)
{
	qmw_passage64_destroy(rig->passage);
	qmw_operator64_destroy(rig->op);
	layer_free(&rig->layer);
	free(rig->u);
	free(rig->k);
	free(rig->near_u);
	free(rig->near_k);
}

static double distance(const double *a, const double *b, size_t count)
{
	double error = 0, energy = 0;

	for (size_t i = 0; i < count; i++) {
		error += (a[i] - b[i]) * (a[i] - b[i]);
		energy += b[i] * b[i];
	}
	return sqrt(error / energy);
}

static double inner(const double *a, const double *b, size_t count)
{
	double sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += a[i] * b[i];
	return sum;
}

static void shifted(const double *from, const double *by, double step, size_t count, double *to)
{
	for (size_t i = 0; i < count; i++)
		to[i] = from[i] + step * by[i];
}

static void test_rows_match_the_formulas(void **state)
{
	(void)state;
	for (size_t s = 0; s < SHAPES; s++) {
		struct rig rig;
		double u[16], k[16], query[16];

		rig_open(&rig, &shapes[s], false);
		for (uint32_t t = 0; t < rig.n; t++) {
			layer_rows(&rig.layer, t, u, k);
			for (uint32_t i = 0; i < shapes[s].content_dim; i++)
				assert_true(
					fabs(qmw_passage64_content(
						     rig.passage)[t * shapes[s].content_dim + i] -
					     u[i]) < 1e-12);
			for (uint32_t i = 0; i < shapes[s].rope_dim; i++)
				assert_true(fabs(qmw_passage64_key(
							 rig.passage)[t * shapes[s].rope_dim + i] -
						 k[i]) < 1e-12);
			for (uint32_t h = 0; h < shapes[s].heads; h++) {
				size_t d = shapes[s].nope_dim + shapes[s].rope_dim;

				layer_query(&rig.layer, t, h, query);
				for (size_t i = 0; i < d; i++)
					assert_true(
						fabs(qmw_passage64_query(rig.passage)
							     [(t * shapes[s].heads + h) * d + i] -
						     query[i]) < 1e-12);
			}
		}
		assert_int_equal(qmw_passage64_tokens(rig.passage), rig.n);
		rig_close(&rig);
	}
}

static void check_output(const struct layer_shape *shape, bool own, bool near)
{
	struct rig rig;
	double *output, *reference;

	rig_open(&rig, shape, near);
	output = calloc(rig.output, sizeof(*output));
	reference = calloc(rig.output, sizeof(*reference));
	if (own)
		rig.rows.content = rig.rows.key = NULL;
	assert_int_equal(qmw_passage64_output(rig.passage, own && !near ? NULL : &rig.rows, output),
			 QMLA_OK);
	layer_reference(&rig.layer, rig.rows.content, rig.rows.key, rig.rows.near, reference);
	assert_true(distance(output, reference, rig.output) < 1e-13);
	free(output);
	free(reference);
	rig_close(&rig);
}

static void test_output_matches_plain_loops(void **state)
{
	(void)state;
	for (size_t s = 0; s < SHAPES; s++) {
		check_output(&shapes[s], true, false);
		check_output(&shapes[s], false, false);
	}
}

static void test_output_with_near_rows_matches_plain_loops(void **state)
{
	(void)state;
	for (size_t s = 0; s < SHAPES; s++) {
		check_output(&shapes[s], false, true);
		check_output(&shapes[s], true, true);
	}
}

/* An error in the keys' content alone, and in the values' alone: to first order they add up. */
static void test_matching_and_aggregation_add_up(void **state)
{
	(void)state;
	for (size_t s = 0; s + 1 < SHAPES; s++) {
		struct rig rig;
		const double *own;
		double *exact, *both, *keys, *values;
		struct qmw_rows64 rows = {0};

		rig_open(&rig, &shapes[s], false);
		own = qmw_passage64_content(rig.passage);
		exact = calloc(4 * rig.output, sizeof(*exact));
		both = exact + rig.output;
		keys = both + rig.output;
		values = keys + rig.output;
		shifted(own, rig.near_u, 1e-6, rig.content, rig.u);
		rows.content = rig.u;
		assert_int_equal(qmw_passage64_output(rig.passage, NULL, exact), QMLA_OK);
		assert_int_equal(qmw_passage64_output(rig.passage, &rows, both), QMLA_OK);
		rows.value_content = own;
		assert_int_equal(qmw_passage64_output(rig.passage, &rows, keys), QMLA_OK);
		rows.content = NULL;
		rows.value_content = rig.u;
		assert_int_equal(qmw_passage64_output(rig.passage, &rows, values), QMLA_OK);
		for (size_t i = 0; i < rig.output; i++) {
			keys[i] -= exact[i];
			values[i] -= exact[i];
			both[i] -= exact[i];
		}
		assert_true(inner(keys, keys, rig.output) > 1e-4 * inner(both, both, rig.output));
		assert_true(inner(values, values, rig.output) >
			    1e-4 * inner(both, both, rig.output));
		shifted(keys, values, 1, rig.output, keys);
		assert_true(distance(keys, both, rig.output) < 1e-4);
		assert_int_equal(qmw_passage64_vjp(rig.passage, &rows, 1, both, rig.u, NULL),
				 QMLA_ERR_INVALID_ARGUMENT);
		assert_int_equal(qmw_passage64_jvp(rig.passage, &rows, NULL, NULL, both),
				 QMLA_ERR_INVALID_ARGUMENT);
		free(exact);
		rig_close(&rig);
	}
}

/* <G, Y(x + h d) - Y(x - h d)> / 2h, by the output itself. */
static double difference(const struct rig *rig, const double *cotangent, const double *du,
			 const double *dk, double *change)
{
	const double h = 1e-5;
	double *u = malloc(rig->content * sizeof(*u)), *k = malloc(rig->key * sizeof(*k));
	double *after = malloc(rig->output * sizeof(*after)), sum;
	struct qmw_rows64 rows = {.content = u, .key = k, .near = rig->rows.near};

	shifted(rig->u, du, h, rig->content, u);
	shifted(rig->k, dk, h, rig->key, k);
	assert_int_equal(qmw_passage64_output(rig->passage, &rows, after), QMLA_OK);
	shifted(rig->u, du, -h, rig->content, u);
	shifted(rig->k, dk, -h, rig->key, k);
	assert_int_equal(qmw_passage64_output(rig->passage, &rows, change), QMLA_OK);
	for (size_t i = 0; i < rig->output; i++)
		change[i] = (after[i] - change[i]) / (2 * h);
	sum = inner(cotangent, change, rig->output);
	free(u);
	free(k);
	free(after);
	return sum;
}

static void check_derivatives(const struct layer_shape *shape, bool near)
{
	struct rig rig;
	double *g, *gu, *gk, *du, *dk, *change, *tangent, numeric, analytic;

	rig_open(&rig, shape, near);
	g = layer_random_rows(&rig.seed, 3 * rig.output, 1);
	gu = malloc(3 * rig.content * sizeof(*gu));
	gk = malloc(3 * rig.key * sizeof(*gk));
	change = malloc(rig.output * sizeof(*change));
	tangent = malloc(rig.output * sizeof(*tangent));
	assert_int_equal(qmw_passage64_vjp(rig.passage, &rig.rows, 3, g, gu, gk), QMLA_OK);
	for (int round = 0; round < 4; round++) {
		/* Both, one alone, the other alone. */
		du = layer_random_rows(&rig.seed, rig.content, round == 2 ? 0 : 1);
		dk = layer_random_rows(&rig.seed, rig.key, round == 1 ? 0 : 1);
		for (size_t c = 0; c < 3; c++) {
			numeric = difference(&rig, g + c * rig.output, du, dk, change);
			analytic = inner(gu + c * rig.content, du, rig.content) +
				   inner(gk + c * rig.key, dk, rig.key);
			assert_true(
				fabs(numeric - analytic) <
				1e-7 * (fabs(numeric) + sqrt(inner(change, change, rig.output))));
		}
		assert_int_equal(qmw_passage64_jvp(rig.passage, &rig.rows, round == 2 ? NULL : du,
						   round == 1 ? NULL : dk, tangent),
				 QMLA_OK);
		if (inner(change, change, rig.output) > 0)
			assert_true(distance(tangent, change, rig.output) < 1e-7);
		free(du);
		free(dk);
	}
	/* One output alone is the same numbers. */
	du = malloc(rig.content * sizeof(*du));
	assert_int_equal(qmw_passage64_vjp(rig.passage, &rig.rows, 1, g, du, NULL), QMLA_OK);
	assert_memory_equal(du, gu, rig.content * sizeof(*du));
	free(du);
	free(g);
	free(gu);
	free(gk);
	free(change);
	free(tangent);
	rig_close(&rig);
}

static void test_derivatives_match_finite_differences(void **state)
{
	(void)state;
	for (size_t s = 0; s + 1 < SHAPES; s++) {
		check_derivatives(&shapes[s], false);
		check_derivatives(&shapes[s], true);
	}
}

/* Every single coordinate of a short sequence, not only directions. */
static void test_loss_gradient_matches_finite_differences(void **state)
{
	const struct layer_shape shape = {9, 2, 7, 0, 6, 4, 3, 5, false, true, true};
	const double h = 1e-5;
	struct rig rig;
	double *reference, *gu, *gk, loss, above, below;

	(void)state;
	rig_open(&rig, &shape, false);
	reference = malloc(rig.output * sizeof(*reference));
	gu = malloc(rig.content * sizeof(*gu));
	gk = malloc(rig.key * sizeof(*gk));
	assert_int_equal(qmw_passage64_output(rig.passage, NULL, reference), QMLA_OK);
	assert_int_equal(qmw_passage64_loss(rig.passage, NULL, reference, &loss, NULL, NULL),
			 QMLA_OK);
	assert_true(loss < 1e-28);
	assert_int_equal(qmw_passage64_loss(rig.passage, &rig.rows, reference, &loss, gu, gk),
			 QMLA_OK);
	assert_true(loss > .1);
	for (size_t i = 0; i < rig.content + rig.key; i++) {
		double *x = i < rig.content ? rig.u + i : rig.k + i - rig.content;
		double g = i < rig.content ? gu[i] : gk[i - rig.content], old = *x;

		*x = old + h;
		qmw_passage64_loss(rig.passage, &rig.rows, reference, &above, NULL, NULL);
		*x = old - h;
		qmw_passage64_loss(rig.passage, &rig.rows, reference, &below, NULL, NULL);
		*x = old;
		assert_true(fabs((above - below) / (2 * h) - g) < 1e-8 * (1 + fabs(g)));
	}
	free(reference);
	free(gu);
	free(gk);
	rig_close(&rig);
}

static void plain_scores(const struct rig *rig, const double *key, double *error, double *energy)
{
	const struct qmw_config *c = &rig->layer.config;
	double query[32], u[32], own[32], other[32];

	*error = *energy = 0;
	for (uint32_t i = 0; i < rig->n; i++) {
		for (uint32_t h = 0; h < c->heads; h++) {
			layer_query(&rig->layer, i, h, query);
			for (uint32_t j = 0; j <= i; j++) {
				double z, d;

				layer_rows(&rig->layer, j, u, own);
				layer_rotate(&rig->layer, j, own);
				memcpy(other, key + j * c->rope_dim, c->rope_dim * sizeof(*other));
				layer_rotate(&rig->layer, j, other);
				z = inner(query + c->nope_dim, own, c->rope_dim);
				d = inner(query + c->nope_dim, other, c->rope_dim) - z;
				*error += d * d;
				*energy += z * z;
			}
		}
	}
}

static void test_positional_scores(void **state)
{
	(void)state;
	for (size_t s = 0; s < SHAPES; s++) {
		struct rig rig;
		double error, energy, plain_error, plain_energy, *gradient;
		const double h = 1e-4;

		rig_open(&rig, &shapes[s], false);
		gradient = malloc(rig.key * sizeof(*gradient));
		assert_int_equal(
			qmw_passage64_positional(rig.passage, rig.k, &error, &energy, gradient),
			QMLA_OK);
		plain_scores(&rig, rig.k, &plain_error, &plain_energy);
		assert_true(fabs(error / plain_error - 1) < 1e-12);
		assert_true(fabs(energy / plain_energy - 1) < 1e-12);
		for (size_t i = 0; i < rig.key; i += 1 + rig.key / 50) {
			double old = rig.k[i], above, below;

			rig.k[i] = old + h;
			qmw_passage64_positional(rig.passage, rig.k, &above, &energy, NULL);
			rig.k[i] = old - h;
			qmw_passage64_positional(rig.passage, rig.k, &below, &energy, NULL);
			rig.k[i] = old;
			/* Quadratic in the key: the central difference is exact up to rounding. */
			assert_true(fabs((above - below) / (2 * h * energy) - gradient[i]) <
				    1e-8 * error / energy);
		}
		free(gradient);
		rig_close(&rig);
	}
}

static void test_query_energy(void **state)
{
	struct rig rig;
	double energy[3], query[16], expected[3] = {0};

	(void)state;
	rig_open(&rig, &shapes[0], false);
	qmw_passage64_query_energy(rig.passage, energy);
	for (uint32_t t = 0; t < rig.n; t++) {
		for (uint32_t h = 0; h < shapes[0].heads; h++) {
			layer_query(&rig.layer, t, h, query);
			for (uint32_t j = 0; j < 3; j++)
				expected[j] += query[5 + 2 * j] * query[5 + 2 * j] +
					       query[6 + 2 * j] * query[6 + 2 * j];
		}
	}
	for (uint32_t j = 0; j < 3; j++)
		assert_true(fabs(energy[j] / (expected[j] / (double)(rig.n * shapes[0].heads)) -
				 1) < 1e-12);
	rig_close(&rig);
}

/* ||C B||_2 by power iteration on C B itself. */
static double power_iteration(const struct rig *rig, uint32_t head)
{
	const struct qmw_config *c = &rig->layer.config;
	const struct qmw_attention_weights64 *w = &rig->layer.weights;
	const double *up = w->kv_b + ((size_t)head * (c->nope_dim + c->value_dim) + c->nope_dim) *
					     c->content_dim;
	double *x = calloc(c->hidden, sizeof(*x)), *y = calloc(rig->n, sizeof(*y)), norm = 0;
	double *cb = calloc(rig->n * c->hidden, sizeof(*cb)), u[32], k[32];

	for (uint32_t t = 0; t < rig->n; t++) {
		layer_rows(&rig->layer, t, u, k);
		for (uint32_t i = 0; i < c->content_dim; i++)
			u[i] *= w->kv_norm[i];
		for (uint32_t d = 0; d < c->value_dim; d++) {
			double v = inner(up + d * c->content_dim, u, c->content_dim);

			for (uint32_t o = 0; o < c->hidden; o++)
				cb[t * c->hidden + o] +=
					v *
					w->output[((size_t)o * c->heads + head) * c->value_dim + d];
		}
	}
	for (uint32_t o = 0; o < c->hidden; o++)
		x[o] = 1 + o % 3;
	for (int step = 0; step < 3000; step++) {
		norm = sqrt(inner(x, x, c->hidden));
		for (uint32_t t = 0; t < rig->n; t++)
			y[t] = inner(cb + t * c->hidden, x, c->hidden) / norm;
		memset(x, 0, c->hidden * sizeof(*x));
		for (uint32_t t = 0; t < rig->n; t++) {
			for (uint32_t o = 0; o < c->hidden; o++)
				x[o] += y[t] * cb[t * c->hidden + o];
		}
	}
	norm = sqrt(inner(x, x, c->hidden));
	free(x);
	free(y);
	free(cb);
	return norm;
}

static void test_value_norms(void **state)
{
	(void)state;
	for (size_t s = 0; s < 3; s++) {
		struct rig rig;
		double norms[4];

		rig_open(&rig, &shapes[s], false);
		assert_int_equal(qmw_passage64_value_norms(rig.passage, NULL, norms), QMLA_OK);
		for (uint32_t h = 0; h < shapes[s].heads; h++) {
			double expected = power_iteration(&rig, h);

			assert_true(norms[h] > expected * (1 - 1e-9));
			assert_true(norms[h] < expected * 1.0001);
		}
		rig_close(&rig);
	}
}

static void test_rotation_and_back(void **state)
{
	(void)state;
	for (size_t s = 0; s < SHAPES; s++) {
		struct rig rig;
		double *turned, one[16];

		rig_open(&rig, &shapes[s], false);
		turned = malloc(rig.key * sizeof(*turned));
		memcpy(turned, rig.k, rig.key * sizeof(*turned));
		qmw_passage64_rotate(rig.passage, false, turned);
		for (uint32_t t = 0; t < rig.n; t++) {
			memcpy(one, rig.k + t * shapes[s].rope_dim,
			       shapes[s].rope_dim * sizeof(*one));
			layer_rotate(&rig.layer, t, one);
			assert_true(distance(turned + t * shapes[s].rope_dim, one,
					     shapes[s].rope_dim) < 1e-14);
		}
		qmw_passage64_rotate(rig.passage, true, turned);
		assert_true(distance(turned, rig.k, rig.key) < 1e-14);
		free(turned);
		rig_close(&rig);
	}
}

/* The float32 instance is the same function. */
static void test_single_precision_follows_double(void **state)
{
	(void)state;
	for (size_t s = 0; s < SHAPES; s++) {
		struct rig rig;
		struct qmw_operator *op;
		struct qmw_passage *passage;
		float *u, *k, *near_u, *near_k, *g, *y, *gu, *gk;
		double *g64, *y64, *gu64, *gk64;

		rig_open(&rig, &shapes[s], true);
		g64 = layer_random_rows(&rig.seed, rig.output, 1);
		y64 = malloc(rig.output * sizeof(*y64));
		gu64 = malloc(rig.content * sizeof(*gu64));
		gk64 = malloc(rig.key * sizeof(*gk64));
		u = layer_to_float(rig.u, rig.content);
		k = layer_to_float(rig.k, rig.key);
		near_u = layer_to_float(rig.near_u, rig.content);
		near_k = layer_to_float(rig.near_k, rig.key);
		g = layer_to_float(g64, rig.output);
		y = malloc(rig.output * sizeof(*y));
		gu = malloc(rig.content * sizeof(*gu));
		gk = malloc(rig.key * sizeof(*gk));
		{
			struct qmw_near near = {near_u, near_k, 16, 9, 3};
			struct qmw_rows rows = {.content = u, .key = k, .near = &near};

			qmw_operator_create(&rig.layer.config, &rig.layer.rope, &rig.layer.single,
					    &op);
			qmw_passage_create(op, rig.layer.single_input, (uint32_t)rig.n, &passage);
			assert_int_equal(qmw_passage_output(passage, &rows, y), QMLA_OK);
			assert_int_equal(qmw_passage_vjp(passage, &rows, 1, g, gu, gk), QMLA_OK);
		}
		qmw_passage64_output(rig.passage, &rig.rows, y64);
		qmw_passage64_vjp(rig.passage, &rig.rows, 1, g64, gu64, gk64);
		for (size_t i = 0; i < rig.output; i++)
			assert_true(fabs((double)y[i] - y64[i]) < 1e-4);
		for (size_t i = 0; i < rig.content; i++)
			assert_true(fabs((double)gu[i] - gu64[i]) < 3e-4);
		for (size_t i = 0; i < rig.key; i++)
			assert_true(fabs((double)gk[i] - gk64[i]) < 3e-4);
		qmw_passage_destroy(passage);
		qmw_operator_destroy(op);
		free(u), free(k), free(near_u), free(near_k), free(g), free(y), free(gu), free(gk);
		free(g64), free(y64), free(gu64), free(gk64);
		rig_close(&rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows_match_the_formulas),
		cmocka_unit_test(test_output_matches_plain_loops),
		cmocka_unit_test(test_output_with_near_rows_matches_plain_loops),
		cmocka_unit_test(test_matching_and_aggregation_add_up),
		cmocka_unit_test(test_derivatives_match_finite_differences),
		cmocka_unit_test(test_loss_gradient_matches_finite_differences),
		cmocka_unit_test(test_positional_scores),
		cmocka_unit_test(test_query_energy),
		cmocka_unit_test(test_value_norms),
		cmocka_unit_test(test_rotation_and_back),
		cmocka_unit_test(test_single_precision_follows_double),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
