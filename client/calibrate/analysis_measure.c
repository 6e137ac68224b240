/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/analysis_measure.h"

#include <stdlib.h>
#include <string.h>

#include "client/calibrate/analysis_error.h"
#include "client/calibrate/analysis_tasks.h"

static struct qmw_cache_rows cache_rows(const struct qmw_measured *p, enum qmw_path path)
{
	return (struct qmw_cache_rows){
		.path = path, .n = p->n, .dim = p->dim[path], .values = p->cache[path]};
}

/* c = Gamma u, and the key as the cache holds it: after its rotation. */
static void fill_cache(struct qmw_measured *p)
{
	size_t d_c = p->dim[QMW_PATH_CONTENT];
	const float *u = qmw_passage_content(p->handle);

	for (size_t i = 0; i < qmw_measured_rows(p, QMW_PATH_CONTENT); i++)
		p->cache[QMW_PATH_CONTENT][i] = p->gamma[i % d_c] * u[i];
	memcpy(p->cache[QMW_PATH_ROPE], qmw_passage_key(p->handle),
	       qmw_measured_rows(p, QMW_PATH_ROPE) * sizeof(float));
	qmw_passage_rotate(p->handle, false, p->cache[QMW_PATH_ROPE]);
}

static void fill_errors(struct qmw_measured *p, uint32_t *order)
{
	for (enum qmw_path path = 0; path < QMW_PATHS; path++) {
		struct qmw_cache_rows rows = cache_rows(p, path);
		float **error = p->error[path];
		struct qmw_random random;

		/* Probes of the same stream never reach the top bit. */
		qmw_random_init(&random, p->setup->job->seed, QMW_PURPOSE_PROBE,
				UINT64_C(1) << 63 | p->stream << 24 | path);
		qmw_error_quantise(&rows, 4, p->raw[path][0]);
		qmw_error_quantise(&rows, 2, p->raw[path][1]);
		memcpy(error[QMW_SHAPE_QUANTISER], p->raw[path][0],
		       qmw_measured_rows(p, path) * sizeof(float));
		qmw_error_permute(&rows, p->raw[path][0], &random, order,
				  error[QMW_SHAPE_PERMUTED]);
		qmw_error_sign(&rows, p->raw[path][0], &random, error[QMW_SHAPE_SIGNED]);
		qmw_error_gaussian(&rows, &random, error[QMW_SHAPE_GAUSSIAN]);
		for (unsigned shape = 0; shape < QMW_SHAPES; shape++)
			qmw_error_match(&rows, p->setup->job->nmse, error[shape]);
	}
}

static qmla_status_t allocate(struct qmw_measured *p)
{
	size_t both = qmw_measured_rows(p, QMW_PATH_CONTENT) + qmw_measured_rows(p, QMW_PATH_ROPE);
	size_t floats = (size_t)p->n * p->hidden + both * (1 + QMW_SHAPES + QMW_RAW_BITS);
	float *at = malloc(floats * sizeof(*at));

	p->store = at;
	p->diagonal[0] = calloc(QMW_PROBE_GROUPS * both, sizeof(double));
	if (!at || !p->diagonal[0])
		return QMLA_ERR_NO_MEMORY;
	for (unsigned g = 1; g < QMW_PROBE_GROUPS; g++)
		p->diagonal[g] = p->diagonal[0] + g * both;
	p->exact = at;
	at += (size_t)p->n * p->hidden;
	for (enum qmw_path path = 0; path < QMW_PATHS; path++) {
		size_t count = qmw_measured_rows(p, path);

		p->cache[path] = at;
		for (unsigned s = 0; s < QMW_SHAPES; s++)
			p->error[path][s] = at + (1 + s) * count;
		for (unsigned b = 0; b < QMW_RAW_BITS; b++)
			p->raw[path][b] = at + (1 + QMW_SHAPES + b) * count;
		at += (1 + QMW_SHAPES + QMW_RAW_BITS) * count;
	}
	return QMLA_OK;
}

static void add_means(struct qmw_measured *p)
{
	for (enum qmw_path path = 0; path < QMW_PATHS; path++) {
		struct qmw_path_sums *sums = &p->sums->path[path];
		const float *rows =
			path == QMW_PATH_CONTENT ? p->cache[path] : qmw_passage_key(p->handle);

		for (size_t i = 0; i < qmw_measured_rows(p, path); i++) {
			sums->mean[i % p->dim[path]] += (double)rows[i];
			sums->square[i % p->dim[path]] += (double)rows[i] * (double)rows[i];
		}
	}
	p->sums->tokens += p->n;
}

/* Diagonals of the groups joined: h_j, its sum, and its sum over an error's energy. */
static void add_sensitivity(struct qmw_measured *p)
{
	size_t at = 0;

	for (enum qmw_path path = 0; path < QMW_PATHS; path++) {
		struct qmw_path_sums *sums = &p->sums->path[path];

		for (size_t i = 0; i < qmw_measured_rows(p, path); i++, at++) {
			double h = 0;

			for (uint32_t g = 0; g < QMW_PROBE_GROUPS; g++) {
				uint32_t probes = qmw_group_probes(p->setup->job, g);

				h += p->diagonal[g][at];
				if (probes)
					sums->probes[g] += p->diagonal[g][at] / probes;
			}
			h /= p->setup->job->probes;
			for (unsigned s = 0; s < QMW_SHAPES; s++)
				sums->shape[s].sensitivity += h * (double)p->error[path][s][i] *
							      (double)p->error[path][s][i];
		}
	}
}

static void add_sizes(struct qmw_measured *p)
{
	for (enum qmw_path path = 0; path < QMW_PATHS; path++) {
		struct qmw_path_sums *sums = &p->sums->path[path];
		size_t count = qmw_measured_rows(p, path);

		sums->cache += qmw_sum_of_squares(p->cache[path], count);
		sums->coordinates += (double)count;
		for (unsigned b = 0; b < QMW_RAW_BITS; b++)
			sums->raw_error[b] += qmw_sum_of_squares(p->raw[path][b], count);
		for (unsigned s = 0; s < QMW_SHAPES; s++)
			sums->shape[s].error += qmw_sum_of_squares(p->error[path][s], count);
	}
	p->sums->output += qmw_sum_of_squares(p->exact, (size_t)p->n * p->hidden);
}

static qmla_status_t measure(struct qmw_measured *p, uint32_t heads)
{
	uint32_t *order = malloc(p->n * sizeof(*order));
	qmla_status_t status = order ? allocate(p) : QMLA_ERR_NO_MEMORY;

	if (status == QMLA_OK)
		status = qmw_passage_output(p->handle, NULL, p->exact);
	if (status != QMLA_OK)
		goto out;
	fill_cache(p);
	fill_errors(p, order);
	qmw_measured_run(p, heads);
	status = atomic_load_explicit(&p->status, memory_order_relaxed);
	if (status == QMLA_OK && atomic_load_explicit(&p->setup->cancelled, memory_order_relaxed))
		status = QMLA_ERR_CANCELLED;
	if (status != QMLA_OK)
		goto out;
	add_means(p);
	add_sizes(p);
	add_sensitivity(p);
out:
	free(order);
	free(p->store);
	free(p->diagonal[0]);
	return status;
}

qmla_status_t qmw_measure_passage(struct qmw_measure_setup *setup, const struct qmw_config *config,
				  const struct qmw_rope *rope,
				  const struct qmw_attention_weights *weights, const float *input,
				  uint64_t stream, struct qmw_layer_sums *sums)
{
	struct qmw_operator *op;
	struct qmw_measured p = {
		.setup = setup,
		.rope = rope,
		.gamma = weights->kv_norm,
		.n = setup->job->length,
		.hidden = config->hidden,
		.dim = {config->content_dim, config->rope_dim},
		.stream = stream,
		.sums = sums,
	};
	qmla_status_t status = qmw_operator_create(config, rope, weights, &op);

	if (status != QMLA_OK)
		return status;
	status = qmw_passage_create(op, input, p.n, &p.handle);
	if (status == QMLA_OK)
		status = measure(&p, config->heads);
	qmw_passage_destroy(p.handle);
	qmw_operator_destroy(op);
	return status;
}
