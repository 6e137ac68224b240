/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paper's two objectives and their gradients through cache and attention, against finite
 * differences of the same in double with the rounding frozen; and that learning learns.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/calibrate/cayley.h"
#include "client/calibrate/content_loss.h"
#include "client/calibrate/learn_content.h"
#include "client/calibrate/learn_rope.h"
#include "client/calibrate/linear.h"
#include "client/calibrate/random.h"
#include "client/calibrate/rope_loss.h"
#include "tests/unit/client/calibrate/near.h"
#include "tests/unit/client/calibrate/sequences.h"
#include "tests/unit/client/calibrate/surrogate.h"

#define D_C 128u /* two groups */
#define D_R 16u
#define N   9u

static const struct layer_shape shape = {.tokens = N,
					 .heads = 2,
					 .hidden = 24,
					 .content_dim = D_C,
					 .rope_dim = D_R,
					 .nope_dim = 12,
					 .value_dim = 12,
					 .interleaved = true,
					 .yarn = true};

/* ---- content, in double ---- */

struct content {
	struct sequences s;
	double *u, *z, *exact;
	struct surrogate frozen;
};

static void to_cache(const double *u, const double *r, const double *scale, double *z)
{
	for (size_t t = 0; t < N; t++) {
		for (size_t j = 0; j < D_C; j++) {
			z[t * D_C + j] = 0;
			for (size_t i = 0; i < D_C; i++)
				z[t * D_C + j] += u[t * D_C + i] * r[i * D_C + j] * scale[j];
		}
	}
}

static void from_cache(const double *z, const double *r, const double *scale, double *u)
{
	for (size_t t = 0; t < N; t++) {
		for (size_t i = 0; i < D_C; i++) {
			u[t * D_C + i] = 0;
			for (size_t j = 0; j < D_C; j++)
				u[t * D_C + i] += z[t * D_C + j] / scale[j] * r[i * D_C + j];
		}
	}
}

/* The loss of the first sequence with the rounding as it was frozen. */
static double content_reference(const struct content *c, const double *r, const double *log_scale)
{
	double *stored = malloc(N * D_C * sizeof(double)), *u = malloc(N * D_C * sizeof(double));
	double output[N * 24], scale[D_C], error = 0, energy = 0;

	for (size_t j = 0; j < D_C; j++)
		scale[j] = exp(log_scale[j]);
	to_cache(c->u, r, scale, c->z);
	surrogate_apply(&c->frozen, c->z, stored);
	from_cache(stored, r, scale, u);
	layer_reference(&c->s.layer, u, NULL, NULL, output);
	for (size_t i = 0; i < N * 24; i++) {
		error += (output[i] - c->exact[i]) * (output[i] - c->exact[i]);
		energy += c->exact[i] * c->exact[i];
	}
	free(u);
	free(stored);
	return error / energy;
}

static void content_make(struct content *c)
{
	sequences_make(&shape, 3, 2, 2, &c->s);
	c->u = malloc(N * D_C * sizeof(double));
	c->z = malloc(N * D_C * sizeof(double));
	c->exact = malloc(N * 24 * sizeof(double));
	for (uint32_t t = 0; t < N; t++) {
		double key[D_R];

		layer_rows(&c->s.layer, t, c->u + t * D_C, key);
	}
	layer_reference(&c->s.layer, NULL, NULL, NULL, c->exact);
}

static void content_free(struct content *c)
{
	free(c->exact);
	free(c->z);
	free(c->u);
	sequences_free(&c->s);
}

static void check_content(uint32_t bits)
{
	static double r[D_C * D_C], to_r[D_C * D_C], parameters[D_C * (D_C - 1) / 2],
		gradient[D_C * (D_C - 1) / 2];
	double log_scale[D_C], scale[D_C], to_scale[D_C], loss, reference, up, down;
	const double step = 1e-5;
	const uint32_t first = 0;
	struct qmw_cayley *cayley;
	struct qmw_random random;
	struct content c;

	qmw_random_init(&random, 3, QMW_PURPOSE_TEST, bits);
	for (size_t i = 0; i < sizeof(parameters) / sizeof(parameters[0]); i++)
		parameters[i] = 0.1 * qmw_random_real(&random);
	for (size_t j = 0; j < D_C; j++) {
		log_scale[j] = 0.5 * qmw_random_real(&random);
		scale[j] = exp(log_scale[j]);
	}
	content_make(&c);
	assert_int_equal(qmw_cayley_create(D_C, NULL, &cayley), QMLA_OK);
	assert_int_equal(qmw_cayley_rotation(cayley, parameters, r), QMLA_OK);
	to_cache(c.u, r, scale, c.z);
	surrogate_freeze(&c.frozen, bits, 64, N * D_C / 64, c.z);
	assert_int_equal(qmw_content_loss(&c.s.samples, &first, 1, bits, r, log_scale, &loss, to_r,
					  to_scale),
			 QMLA_OK);
	/* Scales are stored as BF16 there and not here: a little apart. */
	reference = content_reference(&c, r, log_scale);
	assert_near(loss, reference, 0.03 * reference);
	for (size_t j = 0; j < D_C; j += 17) {
		double kept = log_scale[j];

		log_scale[j] = kept + step;
		up = content_reference(&c, r, log_scale);
		log_scale[j] = kept - step;
		down = content_reference(&c, r, log_scale);
		log_scale[j] = kept;
		assert_near(to_scale[j], (up - down) / (2 * step),
			    0.02 * fabs(to_scale[j]) + 0.02 * loss);
	}
	/* Down to the Cayley parameters, as the learner has them. */
	assert_int_equal(qmw_cayley_gradient(cayley, to_r, gradient), QMLA_OK);
	for (size_t i = 0; i < sizeof(parameters) / sizeof(parameters[0]); i += 997) {
		double kept = parameters[i];

		parameters[i] = kept + step;
		assert_int_equal(qmw_cayley_rotation(cayley, parameters, r), QMLA_OK);
		up = content_reference(&c, r, log_scale);
		parameters[i] = kept - step;
		assert_int_equal(qmw_cayley_rotation(cayley, parameters, r), QMLA_OK);
		down = content_reference(&c, r, log_scale);
		parameters[i] = kept;
		assert_near(gradient[i], (up - down) / (2 * step),
			    0.02 * fabs(gradient[i]) + 0.02 * loss);
	}
	qmw_cayley_destroy(cayley);
	surrogate_free(&c.frozen);
	content_free(&c);
}

static void test_content_gradient(void **state)
{
	(void)state;
	check_content(2);
	check_content(4);
}

/* ---- RoPE, in double ---- */

/* Normalised error of the causal positional scores of the layer's own sequence. */
static double rope_reference(const struct layer *layer, const struct surrogate *frozen,
			     const double *angle, const double *log_scale, double *keys)
{
	double restored[N][D_R], exact[N][D_R], z[N * D_R], stored[N * D_R];
	double error = 0, energy = 0;
	uint32_t a, b;

	for (uint32_t t = 0; t < N; t++) {
		double u[D_C];

		layer_rows(layer, t, u, exact[t]);
		layer_rotate(layer, t, exact[t]);
		for (uint32_t j = 0; j < D_R / 2; j++) {
			double s = exp(log_scale[j]), c = cos(angle[j]), d = sin(angle[j]);

			qmw_rope_pair(&layer->rope, j, &a, &b);
			z[t * D_R + a] = s * (c * exact[t][a] - d * exact[t][b]);
			z[t * D_R + b] = s * (d * exact[t][a] + c * exact[t][b]);
		}
	}
	if (keys)
		memcpy(keys, z, sizeof(z));
	if (!frozen)
		return 0;
	surrogate_apply(frozen, z, stored);
	for (uint32_t t = 0; t < N; t++) {
		for (uint32_t j = 0; j < D_R / 2; j++) {
			double s = exp(log_scale[j]), c = cos(angle[j]), d = sin(angle[j]);

			qmw_rope_pair(&layer->rope, j, &a, &b);
			restored[t][a] = (c * stored[t * D_R + a] + d * stored[t * D_R + b]) / s;
			restored[t][b] = (-d * stored[t * D_R + a] + c * stored[t * D_R + b]) / s;
		}
	}
	for (uint32_t t = 0; t < N; t++) {
		for (uint32_t h = 0; h < 2; h++) {
			double query[12 + D_R];

			layer_query(layer, t, h, query);
			for (uint32_t k = 0; k <= t; k++) {
				double score = 0, miss = 0;

				for (uint32_t i = 0; i < D_R; i++) {
					score += query[12 + i] * exact[k][i];
					miss += query[12 + i] * (restored[k][i] - exact[k][i]);
				}
				error += miss * miss;
				energy += score * score;
			}
		}
	}
	return error / energy;
}

static void test_rope_gradient(void **state)
{
	double parameters[D_R], gradient[D_R], z[N * D_R], loss, up, down;
	double *log_scale = parameters + D_R / 2;
	const double step = 1e-5;
	const uint32_t first = 0;
	struct surrogate frozen;
	struct qmw_random random;
	struct sequences s;

	(void)state;
	qmw_random_init(&random, 4, QMW_PURPOSE_TEST, 0);
	for (size_t i = 0; i < D_R; i++)
		parameters[i] = 0.6 * qmw_random_real(&random);
	sequences_make(&shape, 1, 1, 1, &s);
	rope_reference(&s.layer, NULL, parameters, log_scale, z);
	surrogate_freeze(&frozen, 4, D_R, N, z);
	assert_int_equal(qmw_rope_loss(&s.samples, &first, 1, parameters, log_scale, &loss,
				       gradient, gradient + D_R / 2),
			 QMLA_OK);
	assert_near(loss, rope_reference(&s.layer, &frozen, parameters, log_scale, NULL),
		    1e-3 * loss);
	for (size_t i = 0; i < D_R; i++) {
		double kept = parameters[i];

		parameters[i] = kept + step;
		up = rope_reference(&s.layer, &frozen, parameters, log_scale, NULL);
		parameters[i] = kept - step;
		down = rope_reference(&s.layer, &frozen, parameters, log_scale, NULL);
		parameters[i] = kept;
		assert_near(gradient[i], (up - down) / (2 * step),
			    0.01 * fabs(gradient[i]) + 1e-3 * loss);
	}
	surrogate_free(&frozen);
	sequences_free(&s);
}

/* ---- learning ---- */

static double *flat(uint32_t n)
{
	double *ones = malloc(n * sizeof(*ones));

	for (uint32_t i = 0; i < n; i++)
		ones[i] = 1;
	return ones;
}

/* The held-out loss falls, what is kept has it, and threads do not change a bit. */
static void test_learns_content(void **state)
{
	struct qmw_learn_options options = qmw_learn_defaults(30, 2);
	struct qmw_transform transforms[2] = {{.content_dim = D_C, .rope_dim = D_R},
					      {.content_dim = D_C, .rope_dim = D_R}};
	struct qmw_learn_result results[2];
	double *amplitude = flat(D_C), loss, log_scale[D_C];
	const uint32_t held_out[2] = {6, 7};
	struct sequences s;

	(void)state;
	options.validate = 10;
	for (uint32_t run = 0; run < 2; run++) {
		sequences_make(&shape, 6, 2, 1 + 2 * run, &s);
		assert_int_equal(qmw_learn_content(&s.samples, &options, amplitude,
						   &transforms[run], &results[run]),
				 QMLA_OK);
		sequences_free(&s);
	}
	assert_true(results[0].best < 0.97 * results[0].plain);
	assert_true(results[0].at_step > 0 && results[0].at_step <= 30);
	assert_true(results[0].best == results[1].best && results[0].plain == results[1].plain);
	assert_int_equal(results[0].at_step, results[1].at_step);
	assert_memory_equal(transforms[0].rotation, transforms[1].rotation,
			    D_C * D_C * sizeof(double));
	assert_true(qmw_orthogonality(transforms[0].rotation, D_C) < 1e-6);
	sequences_make(&shape, 6, 2, 1, &s);
	for (size_t j = 0; j < D_C; j++)
		log_scale[j] = log(transforms[0].content_scale[j]);
	assert_int_equal(qmw_content_loss(&s.samples, held_out, 2, 2, transforms[0].rotation,
					  log_scale, &loss, NULL, NULL),
			 QMLA_OK);
	assert_near(loss, results[0].best, 1e-6 * loss);
	sequences_free(&s);
	qmw_transform_free(&transforms[0]);
	qmw_transform_free(&transforms[1]);
	free(amplitude);
}

static void test_learns_rope(void **state)
{
	struct qmw_learn_options options = qmw_learn_defaults(60, 4);
	struct qmw_transform transform = {.content_dim = D_C, .rope_dim = D_R};
	struct qmw_learn_result result;
	double *amplitude = flat(D_R / 2), loss, log_scale[D_R / 2];
	const uint32_t held_out[2] = {6, 7};
	struct sequences s;

	(void)state;
	options.validate = 10;
	options.angle_rate = options.scale_rate = 1e-2;
	sequences_make(&shape, 6, 2, 2, &s);
	assert_int_equal(qmw_learn_rope(&s.samples, &options, amplitude, &transform, &result),
			 QMLA_OK);
	assert_true(result.best < result.plain && result.best <= result.initial);
	for (size_t j = 0; j < D_R / 2; j++)
		log_scale[j] = log(transform.rope_scale[j]);
	assert_int_equal(qmw_rope_loss(&s.samples, held_out, 2, transform.rope_angle, log_scale,
				       &loss, NULL, NULL),
			 QMLA_OK);
	assert_near(loss, result.best, 1e-6 * loss);
	sequences_free(&s);
	qmw_transform_free(&transform);
	free(amplitude);
}

/* Every sequence once an epoch. */
static void test_order(void **state)
{
	struct qmw_samples samples = {.train = 5, .seed = 3};
	struct qmw_learn_order order;
	uint32_t batch[15], seen[5] = {0};

	(void)state;
	assert_int_equal(qmw_learn_order_init(&order, &samples, 1), QMLA_OK);
	qmw_learn_order_batch(&order, 15, batch);
	for (int i = 0; i < 15; i++) {
		seen[batch[i]]++;
		if (i % 5 == 4)
			for (int k = 0; k < 5; k++)
				assert_int_equal(seen[k], i / 5 + 1);
	}
	qmw_learn_order_free(&order);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_content_gradient),
		cmocka_unit_test(test_rope_gradient),
		cmocka_unit_test(test_learns_content),
		cmocka_unit_test(test_learns_rope),
		cmocka_unit_test(test_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
