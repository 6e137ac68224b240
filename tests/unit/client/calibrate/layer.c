/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client/calibrate/layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double layer_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (double)(*seed >> 11) / 0x1p52 - 1;
}

double *layer_random_rows(uint64_t *seed, size_t count, double size)
{
	double *values = malloc((count + 1) * sizeof(*values));

	if (!values)
		abort();
	for (size_t i = 0; i < count; i++)
		values[i] = size * layer_random(seed);
	return values;
}

float *layer_to_float(const double *values, size_t count)
{
	float *rounded = malloc((count + 1) * sizeof(*rounded));

	if (!rounded)
		abort();
	for (size_t i = 0; i < count; i++)
		rounded[i] = (float)values[i];
	return rounded;
}

static void weight(uint64_t *seed, size_t count, double size, const double **wide,
		   const float **narrow)
{
	*wide = layer_random_rows(seed, count, size);
	*narrow = layer_to_float(*wide, count);
}

void layer_make(const struct layer_shape *s, uint64_t seed, struct layer *layer)
{
	struct qmw_attention_weights64 *w = &layer->weights;
	struct qmw_attention_weights *f = &layer->single;
	size_t queries = s->heads * (s->nope_dim + s->rope_dim);
	double in = 2 / sqrt(s->hidden);

	memset(layer, 0, sizeof(*layer));
	layer->n = s->tokens;
	layer->config = (struct qmw_config){.hidden = s->hidden,
					    .heads = s->heads,
					    .q_rank = s->q_rank,
					    .content_dim = s->content_dim,
					    .rope_dim = s->rope_dim,
					    .nope_dim = s->nope_dim,
					    .value_dim = s->value_dim,
					    .rope_theta = 100,
					    .rope_interleave = s->interleaved};
	if (s->yarn)
		layer->config.yarn = (struct qmw_yarn){.enabled = true,
						       .factor = 4,
						       .beta_fast = 32,
						       .beta_slow = 1,
						       .mscale = .7,
						       .mscale_all_dim = 1,
						       .original_max_position = 64,
						       .truncate = true};
	qmw_rope_init(&layer->config, &layer->rope);
	w->kv_norm_eps = w->query_norm_eps = 1e-6;
	f->kv_norm_eps = f->query_norm_eps = 1e-6f;
	if (s->q_rank) {
		weight(&seed, (size_t)s->q_rank * s->hidden, in, &w->query_a, &f->query_a);
		weight(&seed, s->q_rank, 1, &w->query_norm, &f->query_norm);
		weight(&seed, queries * s->q_rank, 2 / sqrt(s->q_rank), &w->query_b, &f->query_b);
		if (s->bias)
			weight(&seed, s->q_rank, .3, &w->query_a_bias, &f->query_a_bias);
	} else {
		weight(&seed, queries * s->hidden, in, &w->query, &f->query);
		if (s->bias)
			weight(&seed, queries, .3, &w->query_bias, &f->query_bias);
	}
	weight(&seed, (size_t)(s->content_dim + s->rope_dim) * s->hidden, in, &w->kv_a, &f->kv_a);
	weight(&seed, s->content_dim, 1, &w->kv_norm, &f->kv_norm);
	weight(&seed, (size_t)s->heads * (s->nope_dim + s->value_dim) * s->content_dim,
	       2 / sqrt(s->content_dim), &w->kv_b, &f->kv_b);
	weight(&seed, (size_t)s->hidden * s->heads * s->value_dim, 1, &w->output, &f->output);
	if (s->bias) {
		weight(&seed, s->content_dim + s->rope_dim, .3, &w->kv_a_bias, &f->kv_a_bias);
		weight(&seed, s->hidden, .3, &w->output_bias, &f->output_bias);
	}
	layer->input = layer_random_rows(&seed, (size_t)s->tokens * s->hidden, 1.7);
	layer->single_input = layer_to_float(layer->input, (size_t)s->tokens * s->hidden);
}

void layer_free(struct layer *layer)
{
	const struct qmw_attention_weights64 *w = &layer->weights;
	const struct qmw_attention_weights *f = &layer->single;
	const double *wide[] = {w->query,      w->query_bias, w->query_a, w->query_a_bias,
				w->query_norm, w->query_b,    w->kv_a,    w->kv_a_bias,
				w->kv_norm,    w->kv_b,       w->output,  w->output_bias};
	const float *narrow[] = {f->query,      f->query_bias, f->query_a, f->query_a_bias,
				 f->query_norm, f->query_b,    f->kv_a,    f->kv_a_bias,
				 f->kv_norm,    f->kv_b,       f->output,  f->output_bias};

	for (size_t i = 0; i < sizeof(wide) / sizeof(wide[0]); i++) {
		free((void *)(uintptr_t)wide[i]);
		free((void *)(uintptr_t)narrow[i]);
	}
	free(layer->input);
	free(layer->single_input);
}

static double dot(const double *a, const double *b, size_t count)
{
	double sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += a[i] * b[i];
	return sum;
}

void layer_rotate(const struct layer *layer, uint32_t token, double *vector)
{
	float cosines[QMK_MAX_ROPE_DIM / 2], sines[QMK_MAX_ROPE_DIM / 2];
	uint32_t half = layer->rope.dim / 2;

	qmw_rope_angles(&layer->rope, token, cosines, sines);
	for (uint32_t j = 0; j < half; j++) {
		uint32_t a = layer->config.rope_interleave ? 2 * j : j;
		uint32_t b = layer->config.rope_interleave ? 2 * j + 1 : j + half;
		double c = (double)cosines[j], s = (double)sines[j], x = vector[a], y = vector[b];

		vector[a] = c * x - s * y;
		vector[b] = s * x + c * y;
	}
}

static double inverse_rms(const double *x, size_t count)
{
	return 1 / sqrt(dot(x, x, count) / (double)count + 1e-6);
}

void layer_query(const struct layer *layer, uint32_t token, uint32_t head, double *query)
{
	const struct qmw_config *c = &layer->config;
	const struct qmw_attention_weights64 *w = &layer->weights;
	const double *x = layer->input + (size_t)token * c->hidden;
	size_t dim = c->nope_dim + c->rope_dim;
	double latent[512], scale;

	for (uint32_t i = 0; i < c->q_rank; i++)
		latent[i] = dot(w->query_a + (size_t)i * c->hidden, x, c->hidden) +
			    (w->query_a_bias ? w->query_a_bias[i] : 0);
	scale = c->q_rank ? inverse_rms(latent, c->q_rank) : 1;
	for (uint32_t i = 0; i < c->q_rank; i++)
		latent[i] *= scale * w->query_norm[i];
	for (size_t i = 0; i < dim; i++) {
		size_t row = head * dim + i;

		query[i] = c->q_rank ? dot(w->query_b + row * c->q_rank, latent, c->q_rank)
				     : dot(w->query + row * c->hidden, x, c->hidden) +
					       (w->query_bias ? w->query_bias[row] : 0);
	}
	layer_rotate(layer, token, query + c->nope_dim);
}

void layer_rows(const struct layer *layer, uint32_t token, double *content, double *key)
{
	const struct qmw_config *c = &layer->config;
	const struct qmw_attention_weights64 *w = &layer->weights;
	const double *x = layer->input + (size_t)token * c->hidden;
	double scale;

	for (uint32_t i = 0; i < c->content_dim + c->rope_dim; i++) {
		double value = dot(w->kv_a + (size_t)i * c->hidden, x, c->hidden) +
			       (w->kv_a_bias ? w->kv_a_bias[i] : 0);

		if (i < c->content_dim)
			content[i] = value;
		else
			key[i - c->content_dim] = value;
	}
	scale = inverse_rms(content, c->content_dim);
	for (uint32_t i = 0; i < c->content_dim; i++)
		content[i] *= scale;
}

/* What one query reads of one token. */
static void seen_rows(const struct layer *layer, uint32_t query, uint32_t token,
		      const double *content, const double *key, const struct qmw_near64 *near,
		      double *u, double *k)
{
	uint32_t d_c = layer->config.content_dim, d_r = layer->config.rope_dim;
	bool close = near && (token < near->sink ||
			      (near->block && token / near->block == query / near->block) ||
			      token + near->recent > query);

	if (close) {
		content = near->content;
		key = near->key;
	}
	layer_rows(layer, token, u, k);
	if (content)
		memcpy(u, content + (size_t)token * d_c, d_c * sizeof(*u));
	if (key)
		memcpy(k, key + (size_t)token * d_r, d_r * sizeof(*k));
	layer_rotate(layer, token, k);
}

static void attend(const struct layer *layer, uint32_t i, const double *content, const double *key,
		   const struct qmw_near64 *near, double *output)
{
	const struct qmw_config *c = &layer->config;
	const struct qmw_attention_weights64 *w = &layer->weights;
	uint32_t d_c = c->content_dim, d_r = c->rope_dim, d_n = c->nope_dim, d_v = c->value_dim;
	double *u = malloc((i + 1) * (size_t)(d_c + d_r) * sizeof(*u)), *k = u + (i + 1) * d_c;
	double *score = malloc((i + 1) * sizeof(*score));
	double query[512], value[512];

	if (!u || !score)
		abort();
	for (uint32_t j = 0; j <= i; j++)
		seen_rows(layer, i, j, content, key, near, u + j * d_c, k + j * d_r);
	for (uint32_t t = 0; t <= i; t++) {
		for (uint32_t d = 0; d < d_c; d++)
			u[t * d_c + d] *= w->kv_norm[d];
	}
	for (uint32_t h = 0; h < c->heads; h++) {
		const double *up = w->kv_b + (size_t)h * (d_n + d_v) * d_c;
		double sum = 0;

		layer_query(layer, i, h, query);
		for (uint32_t j = 0; j <= i; j++) {
			double s = dot(query + d_n, k + j * d_r, d_r);

			for (uint32_t d = 0; d < d_n; d++)
				s += query[d] * dot(up + d * d_c, u + j * d_c, d_c);
			score[j] = exp((double)layer->rope.softmax_scale * s);
			sum += score[j];
		}
		for (uint32_t d = 0; d < d_v; d++) {
			value[d] = 0;
			for (uint32_t j = 0; j <= i; j++)
				value[d] += score[j] / sum *
					    dot(up + (d_n + d) * d_c, u + j * d_c, d_c);
		}
		for (uint32_t d = 0; d < c->hidden; d++)
			output[d] += dot(w->output + ((size_t)d * c->heads + h) * d_v, value, d_v);
	}
	free(u);
	free(score);
}

void layer_reference(const struct layer *layer, const double *content, const double *key,
		     const struct qmw_near64 *near, double *output)
{
	uint32_t hidden = layer->config.hidden;

	for (uint32_t i = 0; i < layer->n; i++) {
		double *row = output + (size_t)i * hidden;

		for (uint32_t d = 0; d < hidden; d++)
			row[d] = layer->weights.output_bias ? layer->weights.output_bias[d] : 0;
		attend(layer, i, content, key, near, row);
	}
}
