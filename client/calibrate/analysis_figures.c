/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over sequences to figures. */
#include <math.h>
#include <stdlib.h>

#include "client/calibrate/analysis_measure.h"

qmla_status_t qmw_layer_sums_init(const struct qmw_config *config, struct qmw_layer_sums *sums)
{
	const uint32_t dim[QMW_PATHS] = {config->content_dim, config->rope_dim};

	*sums = (struct qmw_layer_sums){0};
	for (unsigned path = 0; path < QMW_PATHS; path++) {
		sums->path[path].mean = calloc(dim[path], sizeof(double));
		sums->path[path].square = calloc(dim[path], sizeof(double));
		if (!sums->path[path].mean || !sums->path[path].square) {
			qmw_layer_sums_fini(sums);
			return QMLA_ERR_NO_MEMORY;
		}
	}
	return QMLA_OK;
}

void qmw_layer_sums_fini(struct qmw_layer_sums *sums)
{
	for (unsigned path = 0; path < QMW_PATHS; path++) {
		free(sums->path[path].mean);
		free(sums->path[path].square);
	}
	*sums = (struct qmw_layer_sums){0};
}

/* Share of the energy of coordinates [first, first + count) step by step that is their mean's. */
static double mean_share(const struct qmw_path_sums *sums, double tokens, const uint32_t *which,
			 size_t count)
{
	double mean = 0, all = 0;

	for (size_t i = 0; i < count; i++) {
		uint32_t at = which ? which[i] : (uint32_t)i;
		double m = sums->mean[at] / tokens;

		mean += m * m;
		all += sums->square[at] / tokens;
	}
	return all > 0 ? mean / all : 0;
}

/* Standard error of the mean of the groups that have probes, relative to it. */
static double group_error(const double groups[QMW_PROBE_GROUPS])
{
	double sum = 0, squares = 0, count = 0, mean;

	for (unsigned g = 0; g < QMW_PROBE_GROUPS; g++) {
		if (groups[g] > 0) {
			sum += groups[g];
			count++;
		}
	}
	if (count < 2)
		return NAN;
	mean = sum / count;
	for (unsigned g = 0; g < QMW_PROBE_GROUPS; g++)
		squares += groups[g] > 0 ? (groups[g] - mean) * (groups[g] - mean) : 0;
	return sqrt(squares / (count - 1) / count) / mean;
}

static double group_mean(const double groups[QMW_PROBE_GROUPS])
{
	double sum = 0, count = 0;

	for (unsigned g = 0; g < QMW_PROBE_GROUPS; g++) {
		sum += groups[g];
		count += groups[g] > 0;
	}
	return count > 0 ? sum / count : 0;
}

static void gain_figures(const struct qmw_shape_sums *sums, double output, double sensitivity,
			 struct qmw_analysis_gain *gain)
{
	gain->response = sums->change / output;
	gain->gain = sums->change / sums->error;
	gain->linear = sums->linear / sums->error;
	gain->allocation = sums->sensitivity / (sensitivity * sums->error);
	gain->coupling = gain->linear - sensitivity * gain->allocation;
}

static void path_figures(const struct qmw_path_sums *sums, double output, double tokens,
			 struct qmw_analysis_path *path)
{
	size_t dim = (size_t)(sums->coordinates / tokens + .5);

	path->energy = sums->cache / sums->coordinates;
	path->sensitivity = group_mean(sums->probes) / sums->coordinates;
	path->sensitivity_error = group_error(sums->probes);
	path->mean_share = mean_share(sums, tokens, NULL, dim);
	for (unsigned b = 0; b < 2; b++) {
		path->cache_nmse[b] = sums->raw_error[b] / sums->cache;
		path->output_nmse[b] = sums->raw_change[b] / output;
	}
	for (unsigned i = 0; i < QMW_ANALYSIS_LEVELS; i++)
		path->curve[i] = sums->curve[i] / output;
	for (unsigned s = 0; s < QMW_SHAPES; s++)
		gain_figures(&sums->shape[s], output, path->sensitivity, &path->gain[s]);
}

void qmw_layer_figures(const struct qmw_layer_sums *sums, const struct qmw_rope *rope,
		       struct qmw_analysis_layer *layer)
{
	const struct qmw_path_sums *content = &sums->path[QMW_PATH_CONTENT];
	const struct qmw_path_sums *key = &sums->path[QMW_PATH_ROPE];

	layer->done = true;
	for (unsigned path = 0; path < QMW_PATHS; path++)
		path_figures(&sums->path[path], sums->output, sums->tokens, &layer->path[path]);
	layer->matching = sums->matching / sums->output;
	layer->aggregation = sums->aggregation / sums->output;
	for (unsigned s = 0; s < QMW_SHAPES; s++) {
		layer->ratio[s] = key->shape[s].change / content->shape[s].change;
		layer->predicted[s] = key->shape[s].sensitivity / content->shape[s].sensitivity;
	}
	layer->bound = sums->bound;
	layer->bounded = sums->bounded;
	layer->tightest = sums->tightest;
	for (uint32_t j = 0; j < rope->dim / 2; j++) {
		uint32_t pair[2];

		qmw_rope_pair(rope, j, &pair[0], &pair[1]);
		layer->pair_share[j] = mean_share(key, sums->tokens, pair, 2);
	}
}
