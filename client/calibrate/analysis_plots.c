/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/analysis_plots.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/calibrate/plot.h"

/* Columns of numbers by layer, of the layers that were measured. */
struct columns {
	const struct qmw_analysis *analysis;
	const char *directory;
	double *x;
	uint32_t count;
	uint32_t *layer; /* [count] */
	char (*caption)[12];
	const char **captions;
	double *store;
	size_t used;
};

typedef double figure(const struct qmw_analysis_layer *layer, unsigned a, unsigned b);

#define COLUMNS 8 /* of one plot at most, beside x */

static void columns_close(struct columns *c)
{
	free(c->layer);
	free(c->caption);
	free(c->captions);
	free(c->store);
}

static qmla_status_t columns_open(const struct qmw_analysis *analysis, const char *directory,
				  struct columns *c)
{
	*c = (struct columns){.analysis = analysis, .directory = directory};
	c->layer = calloc(analysis->count, sizeof(*c->layer));
	c->caption = calloc(analysis->count, sizeof(*c->caption));
	c->captions = calloc(analysis->count, sizeof(*c->captions));
	c->store = calloc((COLUMNS + 1) * (size_t)analysis->count, sizeof(*c->store));
	if (!c->layer || !c->caption || !c->captions || !c->store) {
		columns_close(c);
		return QMLA_ERR_NO_MEMORY;
	}
	for (uint32_t i = 0; i < analysis->count; i++) {
		if (!analysis->layers[i].done)
			continue;
		snprintf(c->caption[c->count], sizeof(c->caption[0]), "%u", i);
		c->captions[c->count] = c->caption[c->count];
		c->store[c->count] = i;
		c->layer[c->count++] = i;
	}
	c->x = c->store;
	c->used = 1;
	return QMLA_OK;
}

/* The next free column, filled by @p f. */
static const double *column(struct columns *c, figure *f, unsigned a, unsigned b)
{
	double *values = c->store + c->used++ * c->analysis->count;

	for (uint32_t i = 0; i < c->count; i++)
		values[i] = f(&c->analysis->layers[c->layer[i]], a, b);
	return values;
}

static qmla_status_t write_plot(struct columns *c, const struct qmw_plot *plot, const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", c->directory, name);
	c->used = 1; /* the columns are free again */
	return qmw_plot_write(plot, path);
}

static double response(const struct qmw_analysis_layer *layer, unsigned path, unsigned shape)
{
	return layer->path[path].gain[shape].response;
}

static double curve_point(const struct qmw_analysis_layer *layer, unsigned path, unsigned level)
{
	return layer->path[path].curve[level];
}

static double measured(const struct qmw_analysis_layer *layer, unsigned shape, unsigned unused)
{
	(void)unused;
	return layer->ratio[shape];
}

static double predicted(const struct qmw_analysis_layer *layer, unsigned shape, unsigned unused)
{
	(void)unused;
	return layer->predicted[shape];
}

/* ln of the RoPE by the content path's term: energy and sensitivity, allocation, the rest. */
static double log_term(const struct qmw_analysis_layer *layer, unsigned term, unsigned unused)
{
	const struct qmw_analysis_path *c = &layer->path[QMW_PATH_CONTENT];
	const struct qmw_analysis_path *k = &layer->path[QMW_PATH_ROPE];
	double total = log(layer->ratio[QMW_SHAPE_QUANTISER]);
	double joint = log(layer->predicted[QMW_SHAPE_QUANTISER]);
	double allocation = log(k->gain[QMW_SHAPE_QUANTISER].allocation /
				c->gain[QMW_SHAPE_QUANTISER].allocation);

	(void)unused;
	return term == 0 ? joint - allocation : term == 1 ? allocation : total - joint;
}

/* The response at equal cache NMSE, layer by layer. */
static qmla_status_t plot_paths(struct columns *c)
{
	char subtitle[256], label[64];
	const struct qmw_plot_series series[] = {
		{.name = "RoPE key, rounding",
		 .y = column(c, response, QMW_PATH_ROPE, QMW_SHAPE_QUANTISER),
		 .colour = QMW_PLOT_VERMILION,
		 .mark = QMW_PLOT_CIRCLE,
		 .line = true},
		{.name = "RoPE key, Gaussian",
		 .y = column(c, response, QMW_PATH_ROPE, QMW_SHAPE_GAUSSIAN),
		 .colour = QMW_PLOT_VERMILION,
		 .mark = QMW_PLOT_CIRCLE,
		 .line = true,
		 .dashed = true,
		 .hollow = true},
		{.name = "content, rounding",
		 .y = column(c, response, QMW_PATH_CONTENT, QMW_SHAPE_QUANTISER),
		 .colour = QMW_PLOT_BLUE,
		 .mark = QMW_PLOT_SQUARE,
		 .line = true},
		{.name = "content, Gaussian",
		 .y = column(c, response, QMW_PATH_CONTENT, QMW_SHAPE_GAUSSIAN),
		 .colour = QMW_PLOT_BLUE,
		 .mark = QMW_PLOT_SQUARE,
		 .line = true,
		 .dashed = true,
		 .hollow = true},
	};
	struct qmw_plot_series shown[4];
	struct qmw_plot plot = {.title = "The same relative error in the cache, at the output",
				.subtitle = subtitle,
				.x = {.label = "cache layer", .whole = true},
				.y = {.label = label, .logarithmic = true},
				.series = shown,
				.count = 4};

	snprintf(subtitle, sizeof(subtitle),
		 "One path disturbed, the other exact; cache NMSE %g in either. RoPE by content: "
		 "%.2f to %.2f, mean %.2f",
		 c->analysis->nmse, c->analysis->summary.low[QMW_SHAPE_QUANTISER],
		 c->analysis->summary.high[QMW_SHAPE_QUANTISER],
		 c->analysis->summary.mean[QMW_SHAPE_QUANTISER]);
	snprintf(label, sizeof(label), "NMSE of the sub-layer's output");
	for (unsigned i = 0; i < 4; i++) {
		shown[i] = series[i];
		shown[i].x = c->x;
		shown[i].count = c->count;
	}
	return write_plot(c, &plot, "paths.svg");
}

/* Response by NMSE: faint lines are layers, bold ones their mean. */
static qmla_status_t plot_curve(struct columns *c)
{
	size_t lines = 2 * ((size_t)c->count + 1);
	struct qmw_plot_series *series = calloc(lines, sizeof(*series));
	double *y = calloc(lines * QMW_ANALYSIS_LEVELS, sizeof(*y));
	struct qmw_plot plot = {
		.title = "How the output follows the cache's error",
		.subtitle = "Rounding error of the paper's INT4 quantiser, scaled; faint lines are "
			    "layers, bold ones their geometric mean",
		.x = {.label = "NMSE of the cache, one path", .logarithmic = true},
		.y = {.label = "NMSE of the sub-layer's output", .logarithmic = true},
		.series = series,
		.count = lines};
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	for (unsigned path = 0; path < QMW_PATHS && series && y; path++) {
		struct qmw_plot_series *mean = series + lines - 2 + path;
		double *mean_y = y + (lines - 2 + path) * QMW_ANALYSIS_LEVELS;

		*mean = (struct qmw_plot_series){
			.name = path == QMW_PATH_ROPE ? "RoPE key" : "content",
			.x = qmw_analysis_levels,
			.y = mean_y,
			.count = QMW_ANALYSIS_LEVELS,
			.line = true,
			.colour = path == QMW_PATH_ROPE ? QMW_PLOT_VERMILION : QMW_PLOT_BLUE,
			.mark = path == QMW_PATH_ROPE ? QMW_PLOT_CIRCLE : QMW_PLOT_SQUARE};
		for (uint32_t i = 0; i < c->count; i++) {
			size_t at = path * (size_t)c->count + i;

			series[at] = *mean;
			series[at].name = NULL;
			series[at].y = y + at * QMW_ANALYSIS_LEVELS;
			series[at].faint = true;
			series[at].mark = QMW_PLOT_NO_MARK;
			for (unsigned l = 0; l < QMW_ANALYSIS_LEVELS; l++) {
				double value =
					curve_point(&c->analysis->layers[c->layer[i]], path, l);

				y[at * QMW_ANALYSIS_LEVELS + l] = value;
				mean_y[l] += log(value) / c->count;
			}
		}
		for (unsigned l = 0; l < QMW_ANALYSIS_LEVELS; l++)
			mean_y[l] = exp(mean_y[l]);
		status = QMLA_OK;
	}
	if (status == QMLA_OK)
		status = write_plot(c, &plot, "curve.svg");
	free(series);
	free(y);
	return status;
}

static qmla_status_t plot_predicted(struct columns *c)
{
	static const char *const names[QMW_SHAPES] = {"rounding error", "tokens permuted",
						      "random signs", "Gaussian"};
	static const enum qmw_plot_colour colours[QMW_SHAPES] = {QMW_PLOT_VERMILION, QMW_PLOT_GREEN,
								 QMW_PLOT_PURPLE, QMW_PLOT_BLUE};
	static const enum qmw_plot_mark marks[QMW_SHAPES] = {QMW_PLOT_CIRCLE, QMW_PLOT_DIAMOND,
							     QMW_PLOT_TRIANGLE, QMW_PLOT_SQUARE};
	const double *log_error = c->analysis->summary.log_error;
	struct qmw_plot_series series[QMW_SHAPES];
	char subtitle[256];
	struct qmw_plot plot = {
		.title = "What sensitivity and allocation predict",
		.subtitle = subtitle,
		.x = {.label = "predicted ratio, T·A alone", .logarithmic = true},
		.y = {.label = "measured ratio, RoPE by content", .logarithmic = true},
		.series = series,
		.count = QMW_SHAPES,
		.diagonal = true};

	snprintf(subtitle, sizeof(subtitle),
		 "Numbers are layers. Mean |ln| error: rounding %.2f, permuted %.2f, signs %.2f, "
		 "Gaussian %.2f (%u probes)",
		 log_error[QMW_SHAPE_QUANTISER], log_error[QMW_SHAPE_PERMUTED],
		 log_error[QMW_SHAPE_SIGNED], log_error[QMW_SHAPE_GAUSSIAN], c->analysis->probes);
	for (unsigned s = 0; s < QMW_SHAPES; s++)
		series[s] = (struct qmw_plot_series){
			.name = names[s],
			.x = column(c, predicted, s, 0),
			.y = column(c, measured, s, 0),
			.count = c->count,
			.caption = s == QMW_SHAPE_QUANTISER ? c->captions : NULL,
			.side = QMW_PLOT_LEFT,
			.colour = colours[s],
			.mark = marks[s],
			.hollow = s != QMW_SHAPE_QUANTISER};
	return write_plot(c, &plot, "predicted.svg");
}

static qmla_status_t plot_decomposition(struct columns *c)
{
	static const char *const names[] = {"sensitivity T, with energies", "allocation A",
					    "rest: coupling, higher order"};
	static const enum qmw_plot_colour colours[] = {QMW_PLOT_BLUE, QMW_PLOT_ORANGE,
						       QMW_PLOT_GREY};
	struct qmw_plot_series series[3];
	struct qmw_plot plot = {
		.title = "Where the ratio comes from",
		.subtitle = "ln of the RoPE path's term by the content path's; the three bars of a "
			    "layer add up to ln of its measured ratio",
		.x = {.label = "cache layer", .whole = true},
		.y = {.label = "ln (RoPE / content)"},
		.series = series,
		.count = 3};

	for (unsigned term = 0; term < 3; term++)
		series[term] = (struct qmw_plot_series){.name = names[term],
							.x = c->x,
							.y = column(c, log_term, term, 0),
							.count = c->count,
							.colour = colours[term],
							.bar = true};
	return write_plot(c, &plot, "decomposition.svg");
}

static qmla_status_t plot_key_mean(struct columns *c)
{
	uint32_t pairs = c->analysis->pairs;
	double *values = calloc((size_t)c->analysis->count * pairs, sizeof(*values));
	char path[PATH_MAX];
	struct qmw_plot_cells cells = {
		.title = "How much of the RoPE key is its mean",
		.subtitle = "Share of a frequency pair's energy before the rotation that its mean "
			    "over tokens holds; pair 0 turns fastest",
		.x_label = "frequency pair",
		.y_label = "cache layer",
		.scale_label = "share of energy",
		.values = values,
		.rows = c->analysis->count,
		.columns = pairs,
		.high = 1};
	qmla_status_t status;

	if (!values)
		return QMLA_ERR_NO_MEMORY;
	for (size_t i = 0; i < (size_t)c->analysis->count * pairs; i++)
		values[i] = c->analysis->layers[i / pairs].pair_share[i % pairs];
	snprintf(path, sizeof(path), "%s/key-mean.svg", c->directory);
	status = qmw_plot_write_cells(&cells, path);
	free(values);
	return status;
}

qmla_status_t qmw_analysis_plots(const struct qmw_analysis *analysis, const char *directory)
{
	struct columns c;
	qmla_status_t status = columns_open(analysis, directory, &c);

	if (status != QMLA_OK)
		return status;
	status = plot_paths(&c);
	if (status == QMLA_OK)
		status = plot_curve(&c);
	if (status == QMLA_OK)
		status = plot_predicted(&c);
	if (status == QMLA_OK)
		status = plot_decomposition(&c);
	if (status == QMLA_OK)
		status = plot_key_mean(&c);
	columns_close(&c);
	return status;
}
