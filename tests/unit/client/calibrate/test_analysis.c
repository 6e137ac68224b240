/* SPDX-License-Identifier: Apache-2.0 */
/* The error analysis against Jacobians written out, and its promises about seeds and threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cblas.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/calibrate/analysis.h"
#include "client/calibrate/analysis_error.h"
#include "client/calibrate/analysis_measure.h"
#include "tests/unit/client/calibrate/layer.h"

#define GOLDEN QMLA_SOURCE_DIR "/tests/golden/"

static double total(const float *values, size_t count)
{
	double sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += (double)values[i] * (double)values[i];
	return sum;
}

static void test_errors_have_their_shape_and_size(void **state)
{
	enum { N = 200, DIM = 64 };
	uint64_t seed = 5;
	double *wide = layer_random_rows(&seed, N * DIM, 3);
	float *values = layer_to_float(wide, N * DIM), error[N * DIM], moved[N * DIM];
	struct qmw_cache_rows rows = {.path = QMW_PATH_ROPE, .n = N, .dim = DIM, .values = values};
	struct qmw_random random;
	uint32_t order[N], seen[N] = {0}, stayed = 0;
	double fourth = 0;

	(void)state;
	/* At most half a step off: the range is under 6, there are 15 steps; zero is a code. */
	qmw_error_quantise(&rows, 4, error);
	for (size_t i = 0; i < N * DIM; i++)
		assert_true(fabsf(error[i]) <= .5f * 6 / 15 * 1.001f);
	assert_true(total(error, N * DIM) > 0);

	qmw_random_init(&random, 1, QMW_PURPOSE_TEST, 2);
	qmw_error_permute(&rows, values, &random, order, moved);
	for (uint32_t t = 0; t < N; t++) {
		assert_memory_equal(moved + t * DIM, values + order[t] * DIM, DIM * sizeof(float));
		seen[order[t]]++;
		stayed += order[t] == t;
	}
	for (uint32_t t = 0; t < N; t++)
		assert_int_equal(seen[t], 1);
	assert_true(stayed < 10);

	qmw_error_sign(&rows, values, &random, moved);
	stayed = 0;
	for (uint32_t t = 0; t < N; t++) {
		float sign = moved[t * DIM] / values[t * DIM];

		assert_true(sign == 1 || sign == -1);
		for (uint32_t i = 0; i < DIM; i++)
			assert_true(moved[t * DIM + i] == sign * values[t * DIM + i]);
		stayed += sign > 0;
	}
	assert_true(stayed > 60 && stayed < 140);

	qmw_error_gaussian(&rows, &random, error);
	assert_true(fabs(total(error, N * DIM) / (N * DIM) - 1) < .05);
	for (size_t i = 0; i < N * DIM; i++)
		fourth += pow((double)error[i], 4) / (N * DIM);
	assert_true(fabs(fourth - 3) < .3); /* a normal distribution's */

	qmw_error_match(&rows, .02, error);
	assert_true(fabs(total(error, N * DIM) / total(values, N * DIM) / .02 - 1) < 1e-6);
	memset(error, 0, sizeof(error));
	qmw_error_match(&rows, .02, error);
	assert_true(total(error, N * DIM) == 0);
	free(wide);
	free(values);
}

/* h_j = |J's column j|^2 by a cotangent of each output, in cache coordinates. */
static void exact_diagonal(const struct layer *layer, double *content, double *key)
{
	const struct qmw_config *c = &layer->config;
	size_t outputs = (size_t)layer->n * c->hidden, rows = (size_t)layer->n * c->content_dim;
	size_t keys = (size_t)layer->n * c->rope_dim;
	double *g = calloc(outputs, sizeof(*g)), *u = calloc(rows, sizeof(*u));
	double *k = calloc(keys, sizeof(*k));
	double a2 = (double)layer->rope.amplitude * (double)layer->rope.amplitude;
	struct qmw_operator64 *op;
	struct qmw_passage64 *passage;

	qmw_operator64_create(&layer->config, &layer->rope, &layer->weights, &op);
	qmw_passage64_create(op, layer->input, layer->n, &passage);
	memset(content, 0, rows * sizeof(*content));
	memset(key, 0, keys * sizeof(*key));
	for (size_t o = 0; o < outputs; o++) {
		g[o] = 1;
		assert_int_equal(qmw_passage64_vjp(passage, NULL, 1, g, u, k), QMLA_OK);
		g[o] = 0;
		qmw_passage64_rotate(passage, false, k);
		for (size_t i = 0; i < rows; i++)
			content[i] += pow(u[i] / layer->weights.kv_norm[i % c->content_dim], 2);
		for (size_t i = 0; i < keys; i++)
			key[i] += pow(k[i] / a2, 2);
	}
	qmw_passage64_destroy(passage);
	qmw_operator64_destroy(op);
	free(g);
	free(u);
	free(k);
}

static double mean_of(const double *values, size_t count)
{
	double sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += values[i];
	return sum / (double)count;
}

static void measure(const struct layer *layer, struct qmw_analysis_job *job,
		    struct qmw_analysis_layer *figures)
{
	struct qmw_measure_setup setup = {.job = job};
	struct qmw_layer_sums sums;

	job->sequences = 1;
	job->length = layer->n;
	assert_int_equal(qmw_team_create(2, &setup.team), QMLA_OK);
	setup.units = qmw_measure_units(job);
	assert_int_equal(qmw_layer_sums_init(&layer->config, &sums), QMLA_OK);
	assert_int_equal(qmw_measure_passage(&setup, &layer->config, &layer->rope, &layer->single,
					     layer->single_input, 3, &sums),
			 QMLA_OK);
	assert_true(atomic_load(&setup.done) == setup.units);
	figures->pair_share = calloc(layer->rope.dim / 2, sizeof(double));
	qmw_layer_figures(&sums, &layer->rope, figures);
	qmw_layer_sums_fini(&sums);
	qmw_team_destroy(setup.team);
}

static const struct layer_shape shapes[] = {
	{24, 3, 12, 0, 16, 8, 5, 4, true, false, false},
	{24, 2, 14, 7, 12, 4, 6, 5, false, true, true},
};

static void test_sensitivity_is_the_trace_of_the_jacobian(void **state)
{
	(void)state;
	for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
		struct layer layer;
		struct qmw_analysis_job job = {.probes = 4000, .nmse = 1e-4, .seed = 11};
		struct qmw_analysis_layer figures = {0};
		double content[24 * 16], key[24 * 8];
		size_t rows = 24 * shapes[s].content_dim, keys = 24 * shapes[s].rope_dim;

		layer_make(&shapes[s], 20 + s, &layer);
		exact_diagonal(&layer, content, key);
		measure(&layer, &job, &figures);
		for (unsigned p = 0; p < QMW_PATHS; p++) {
			const struct qmw_analysis_path *path = &figures.path[p];
			double exact =
				p == QMW_PATH_CONTENT ? mean_of(content, rows) : mean_of(key, keys);

			assert_true(path->sensitivity_error > 0 && path->sensitivity_error < .02);
			assert_true(fabs(path->sensitivity / exact - 1) <
				    5 * path->sensitivity_error);
			for (unsigned e = 0; e < QMW_SHAPES; e++) {
				const struct qmw_analysis_gain *gain = &path->gain[e];

				/* G = T A + O, and a small error is a linear one. */
				assert_true(fabs(path->sensitivity * gain->allocation +
						 gain->coupling - gain->linear) <
					    1e-9 * gain->linear);
				assert_true(fabs(gain->gain / gain->linear - 1) < .05);
			}
			/* Equal variances everywhere prefer no coordinate. */
			assert_true(fabs(path->gain[QMW_SHAPE_GAUSSIAN].allocation - 1) < .3);
		}
		free(figures.pair_share);
		layer_free(&layer);
	}
}

static void test_figures_are_those_of_their_definitions(void **state)
{
	struct layer layer;
	struct qmw_analysis_job job = {.probes = 64, .nmse = .01, .seed = 12};
	struct qmw_analysis_layer figures = {0};
	double mean[16] = {0}, square = 0, u[16], k[8], pair = 0, energy = 0;

	(void)state;
	layer_make(&shapes[0], 31, &layer);
	measure(&layer, &job, &figures);
	for (uint32_t t = 0; t < layer.n; t++) {
		layer_rows(&layer, t, u, k);
		for (uint32_t i = 0; i < 8; i++) {
			mean[i] += k[i] / layer.n;
			square += k[i] * k[i] / layer.n;
			pair += i / 2 == 1 ? k[i] * k[i] / layer.n : 0;
		}
		for (uint32_t i = 0; i < 16; i++)
			energy += pow(u[i] * layer.weights.kv_norm[i], 2) / (layer.n * 16.);
	}
	assert_true(fabs(figures.path[QMW_PATH_CONTENT].energy / energy - 1) < 1e-5);
	assert_true(fabs(figures.pair_share[1] - (mean[2] * mean[2] + mean[3] * mean[3]) / pair) <
		    1e-5);
	for (uint32_t i = 1; i < 8; i++)
		mean[0] = i == 1 ? mean[0] * mean[0] + mean[1] * mean[1]
				 : mean[0] + mean[i] * mean[i];
	assert_true(fabs(figures.path[QMW_PATH_ROPE].mean_share - mean[0] / square) < 1e-5);
	for (unsigned s = 0; s < QMW_SHAPES; s++) {
		const struct qmw_analysis_gain *c = &figures.path[QMW_PATH_CONTENT].gain[s];
		const struct qmw_analysis_gain *r = &figures.path[QMW_PATH_ROPE].gain[s];

		assert_true(fabs(figures.ratio[s] / (r->response / c->response) - 1) < 1e-9);
		/* Matched: responses are gains times the same share of each path's energy. */
		assert_true(fabs(c->response / r->response /
					 (c->gain * figures.path[QMW_PATH_CONTENT].energy * 16 /
					  (r->gain * figures.path[QMW_PATH_ROPE].energy * 8)) -
				 1) < 1e-5);
	}
	/* The curve passes through the matched point. */
	assert_true(fabs(figures.path[QMW_PATH_ROPE].curve[2] /
				 figures.path[QMW_PATH_ROPE].gain[QMW_SHAPE_QUANTISER].response -
			 1) < 1e-9);
	assert_true(figures.matching > 0 && figures.aggregation > 0);
	free(figures.pair_share);
	layer_free(&layer);
}

static void test_proposition_two_holds(void **state)
{
	(void)state;
	for (unsigned seed = 0; seed < 6; seed++) {
		struct layer layer;
		struct qmw_analysis_job job = {.probes = 8, .nmse = .5, .seed = seed};
		struct qmw_analysis_layer figures = {0};

		layer_make(&shapes[seed % 2], 40 + seed, &layer);
		measure(&layer, &job, &figures);
		assert_true(figures.bounded > 0);
		assert_true(figures.tightest > 0 && figures.tightest <= 1);
		assert_true(fabs(figures.tightest - figures.bounded / figures.bound) < 1e-12);
		free(figures.pair_share);
		layer_free(&layer);
	}
}

struct ending {
	uint64_t calls, last, of, stop_at;
};

static bool watch(void *user, uint64_t done, uint64_t of)
{
	struct ending *ending = user;

	ending->calls++;
	assert_true(done >= ending->last && done <= of);
	ending->last = done;
	ending->of = of;
	return ending->stop_at == 0 || ending->calls < ending->stop_at;
}

static struct qmw_analysis_job small_job(const uint32_t *tokens, struct ending *ending)
{
	return (struct qmw_analysis_job){.model = GOLDEN "v3-bf16-yarn-qlora-bias-sharded",
					 .tokens = tokens,
					 .sequences = 2,
					 .length = 20,
					 .probes = 9,
					 .nmse = .01,
					 .seed = 4,
					 .threads = 1,
					 .progress = watch,
					 .user = ending};
}

static char *run_to_text(const struct qmw_analysis_job *job)
{
	struct qmw_analysis *analysis;
	json_t *object;
	char *text;

	assert_int_equal(qmw_analysis_run(job, &analysis), QMLA_OK);
	object = qmw_analysis_json(analysis);
	text = json_dumps(object, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
	json_decref(object);
	qmw_analysis_destroy(analysis);
	assert_non_null(text);
	return text;
}

static void test_threads_do_not_show_and_seeds_do(void **state)
{
	uint32_t tokens[40];
	struct ending ending = {0}, again = {0};
	struct qmw_analysis_job job = small_job(tokens, &ending);
	char *one, *three, *other;

	(void)state;
	for (uint32_t i = 0; i < 40; i++)
		tokens[i] = (i * 7 + 3) % 50;
	one = run_to_text(&job);
	assert_true(ending.calls > 0);
	job.threads = 3;
	job.user = &again;
	three = run_to_text(&job);
	assert_string_equal(one, three);
	again = (struct ending){0};
	job.seed = 5;
	other = run_to_text(&job);
	assert_string_not_equal(one, other);
	free(one);
	free(three);
	free(other);
}

static void test_some_layers_only(void **state)
{
	uint32_t tokens[40] = {0};
	struct ending ending = {0};
	struct qmw_analysis_job job = small_job(tokens, &ending);
	struct qmw_analysis *all, *some;
	bool chosen[16] = {false};

	(void)state;
	for (uint32_t i = 0; i < 40; i++)
		tokens[i] = (i * 11 + 1) % 50;
	assert_int_equal(qmw_analysis_run(&job, &all), QMLA_OK);
	assert_true(all->count >= 2 && all->count <= 16);
	chosen[1] = true;
	job.layers = chosen;
	job.layer_count = all->count;
	ending = (struct ending){0};
	assert_int_equal(qmw_analysis_run(&job, &some), QMLA_OK);
	assert_false(some->layers[0].done);
	assert_int_equal(some->summary.layers, 1);
	assert_memory_equal(&some->layers[1].path, &all->layers[1].path,
			    sizeof(all->layers[1].path));
	assert_true(some->summary.mean[0] == exp(log(all->layers[1].ratio[0])));
	qmw_analysis_destroy(all);
	qmw_analysis_destroy(some);
}

static void test_what_cannot_be_done_is_refused(void **state)
{
	uint32_t tokens[40] = {0};
	struct ending ending = {.stop_at = 3};
	struct qmw_analysis_job job = small_job(tokens, &ending);
	struct qmw_analysis *analysis = NULL;
	bool chosen[1] = {true};

	(void)state;
	assert_int_equal(qmw_analysis_run(&job, &analysis), QMLA_ERR_CANCELLED);
	ending = (struct ending){0};
	job.layers = chosen;
	job.layer_count = 99;
	assert_int_equal(qmw_analysis_run(&job, &analysis), QMLA_ERR_INVALID_ARGUMENT);
	job.layers = NULL;
	tokens[39] = 1 << 30;
	assert_int_equal(qmw_analysis_run(&job, &analysis), QMLA_ERR_INVALID_ARGUMENT);
	tokens[39] = 0;
	job.probes = 0;
	assert_int_equal(qmw_analysis_run(&job, &analysis), QMLA_ERR_INVALID_ARGUMENT);
	job = small_job(tokens, &ending);
	job.model = "/nonexistent";
	assert_int_equal(qmw_analysis_run(&job, &analysis), QMLA_ERR_NOT_FOUND);
	assert_null(analysis);
}

static void test_files_are_written(void **state)
{
	static const char *const names[] = {"analysis.json", "paths.svg",         "curve.svg",
					    "predicted.svg", "decomposition.svg", "key-mean.svg"};
	const char *base = getenv("TMPDIR");
	char directory[256], path[512];
	uint32_t tokens[40];
	struct ending ending = {0};
	struct qmw_analysis_job job = small_job(tokens, &ending);
	struct qmw_analysis *analysis;

	(void)state;
	for (uint32_t i = 0; i < 40; i++)
		tokens[i] = i;
	snprintf(directory, sizeof(directory), "%s/qmla-analysis-XXXXXX", base ? base : "/tmp");
	assert_non_null(mkdtemp(directory));
	assert_int_equal(qmw_analysis_run(&job, &analysis), QMLA_OK);
	assert_int_equal(qmw_analysis_write(analysis, directory), QMLA_OK);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
		assert_int_equal(unlink(path), 0);
	}
	assert_int_equal(rmdir(directory), 0);
	assert_int_equal(qmw_analysis_write(analysis, directory), QMLA_ERR_IO);
	qmw_analysis_destroy(analysis);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_errors_have_their_shape_and_size),
		cmocka_unit_test(test_sensitivity_is_the_trace_of_the_jacobian),
		cmocka_unit_test(test_figures_are_those_of_their_definitions),
		cmocka_unit_test(test_proposition_two_holds),
		cmocka_unit_test(test_threads_do_not_show_and_seeds_do),
		cmocka_unit_test(test_some_layers_only),
		cmocka_unit_test(test_what_cannot_be_done_is_refused),
		cmocka_unit_test(test_files_are_written),
	};

	openblas_set_num_threads(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
