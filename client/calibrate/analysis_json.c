/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/calibrate/analysis_plots.h"
#include "common/log.h"

static const char *const shape_names[QMW_SHAPES] = {"quantiser", "permuted", "signed", "gaussian"};
static const char *const path_names[QMW_PATHS] = {"content", "rope"};

/* JSON has no infinity and no NaN. */
static void set_real(json_t *object, const char *key, double value)
{
	json_object_set_new(object, key, isfinite(value) ? json_real(value) : json_null());
}

static json_t *reals(const double *values, size_t count)
{
	json_t *array = json_array();

	for (size_t i = 0; i < count; i++)
		json_array_append_new(array,
				      isfinite(values[i]) ? json_real(values[i]) : json_null());
	return array;
}

static json_t *gain_json(const struct qmw_analysis_gain *gain)
{
	json_t *object = json_object();

	set_real(object, "output_nmse", gain->response);
	set_real(object, "gain", gain->gain);
	set_real(object, "linear_gain", gain->linear);
	set_real(object, "allocation", gain->allocation);
	set_real(object, "coupling", gain->coupling);
	return object;
}

static json_t *path_json(const struct qmw_analysis_path *path)
{
	json_t *object = json_object();

	set_real(object, "energy", path->energy);
	set_real(object, "sensitivity", path->sensitivity);
	set_real(object, "sensitivity_error", path->sensitivity_error);
	set_real(object, "mean_share", path->mean_share);
	json_object_set_new(object, "int4",
			    json_pack("{s:f,s:f}", "cache_nmse", path->cache_nmse[0], "output_nmse",
				      path->output_nmse[0]));
	json_object_set_new(object, "int2",
			    json_pack("{s:f,s:f}", "cache_nmse", path->cache_nmse[1], "output_nmse",
				      path->output_nmse[1]));
	json_object_set_new(object, "curve", reals(path->curve, QMW_ANALYSIS_LEVELS));
	for (unsigned s = 0; s < QMW_SHAPES; s++)
		json_object_set_new(object, shape_names[s], gain_json(&path->gain[s]));
	return object;
}

static json_t *layer_json(const struct qmw_analysis *analysis, uint32_t index)
{
	const struct qmw_analysis_layer *layer = &analysis->layers[index];
	json_t *object = json_pack("{s:i}", "layer", (int)index), *ratio = json_object();

	for (unsigned p = 0; p < QMW_PATHS; p++)
		json_object_set_new(object, path_names[p], path_json(&layer->path[p]));
	set_real(object, "matching_output_nmse", layer->matching);
	set_real(object, "aggregation_output_nmse", layer->aggregation);
	for (unsigned s = 0; s < QMW_SHAPES; s++) {
		json_t *pair = json_object();

		set_real(pair, "measured", layer->ratio[s]);
		set_real(pair, "predicted", layer->predicted[s]);
		json_object_set_new(ratio, shape_names[s], pair);
	}
	json_object_set_new(object, "ratio", ratio);
	json_object_set_new(object, "proposition2",
			    json_pack("{s:f,s:f,s:f}", "bound", layer->bound, "error",
				      layer->bounded, "largest_share", layer->tightest));
	json_object_set_new(object, "key_mean_share", reals(layer->pair_share, analysis->pairs));
	return object;
}

static json_t *summary_json(const struct qmw_analysis_summary *summary)
{
	json_t *object = json_object();

	for (unsigned s = 0; s < QMW_SHAPES; s++) {
		json_t *part = json_object();

		set_real(part, "geometric_mean", summary->mean[s]);
		set_real(part, "lowest", summary->low[s]);
		set_real(part, "highest", summary->high[s]);
		set_real(part, "mean_log_error", summary->log_error[s]);
		json_object_set_new(object, shape_names[s], part);
	}
	set_real(object, "proposition2_largest_share", summary->tightest);
	return object;
}

json_t *qmw_analysis_json(const struct qmw_analysis *analysis)
{
	json_t *object = json_pack("{s:s,s:i,s:i,s:i,s:I,s:f}", "model", analysis->model,
				   "sequences", (int)analysis->sequences, "length",
				   (int)analysis->length, "probes", (int)analysis->probes, "seed",
				   (json_int_t)analysis->seed, "nmse", analysis->nmse);
	json_t *layers = json_array();

	json_object_set_new(object, "levels", reals(qmw_analysis_levels, QMW_ANALYSIS_LEVELS));
	json_object_set_new(object, "ratio", summary_json(&analysis->summary));
	for (uint32_t i = 0; i < analysis->count; i++) {
		if (analysis->layers[i].done)
			json_array_append_new(layers, layer_json(analysis, i));
	}
	json_object_set_new(object, "layers", layers);
	return object;
}

qmla_status_t qmw_analysis_write(const struct qmw_analysis *analysis, const char *directory)
{
	char path[PATH_MAX];
	json_t *object = qmw_analysis_json(analysis);
	int written;

	if (!object)
		return QMLA_ERR_NO_MEMORY;
	snprintf(path, sizeof(path), "%s/analysis.json", directory);
	written = json_dump_file(object, path,
				 JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
	json_decref(object);
	if (written != 0) {
		qmc_error("analyze", "%s cannot be written: %s", path, strerror(errno));
		return QMLA_ERR_IO;
	}
	return qmw_analysis_plots(analysis, directory);
}
