/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/analyze_table.h"

#include <math.h>
#include <stdio.h>

static const char *const shape_names[QMW_SHAPES] = {"rounding error", "tokens permuted",
						    "random signs", "Gaussian"};

static void print_responses(const struct qmw_analysis *a)
{
	printf("Output NMSE when one path has cache NMSE %g (rounding error of INT4, scaled)\n\n"
	       "layer    content       RoPE      ratio  predicted   ln error |  ratio: permuted    "
	       " "
	       "signs  Gaussian\n",
	       a->nmse);
	for (uint32_t i = 0; i < a->count; i++) {
		const struct qmw_analysis_layer *l = &a->layers[i];

		if (!l->done)
			continue;
		printf("%5u %10.2e %10.2e %10.2f %10.2f %+10.2f | %16.2f %9.2f %9.2f\n", i,
		       l->path[QMW_PATH_CONTENT].gain[QMW_SHAPE_QUANTISER].response,
		       l->path[QMW_PATH_ROPE].gain[QMW_SHAPE_QUANTISER].response,
		       l->ratio[QMW_SHAPE_QUANTISER], l->predicted[QMW_SHAPE_QUANTISER],
		       log(l->predicted[QMW_SHAPE_QUANTISER] / l->ratio[QMW_SHAPE_QUANTISER]),
		       l->ratio[QMW_SHAPE_PERMUTED], l->ratio[QMW_SHAPE_SIGNED],
		       l->ratio[QMW_SHAPE_GAUSSIAN]);
	}
}

static void print_path(const char *name, const struct qmw_analysis_path *path)
{
	const struct qmw_analysis_gain *rounding = &path->gain[QMW_SHAPE_QUANTISER];
	const struct qmw_analysis_gain *permuted = &path->gain[QMW_SHAPE_PERMUTED];
	const struct qmw_analysis_gain *alone = &path->gain[QMW_SHAPE_SIGNED];
	double predicted = path->sensitivity * rounding->allocation;

	printf("  %-8s %9.2e %9.2e %8.2f%% %7.3f %9.2e %+8.1f%% %9.3f %9.2f %9.2f\n", name,
	       rounding->gain, path->sensitivity, 100 * path->sensitivity_error,
	       rounding->allocation, predicted, 100 * rounding->coupling / predicted,
	       rounding->gain / rounding->linear, permuted->gain / rounding->gain,
	       alone->gain / rounding->gain);
}

static void print_decomposition(const struct qmw_analysis *a)
{
	printf("\nGain G = T A + O of the rounding error, in cache coordinates\n\n"
	       "layer/path         G         T   T's se       A      T A    O/(T A)  "
	       "G/linear  permuted/G  signs/G\n");
	for (uint32_t i = 0; i < a->count; i++) {
		if (!a->layers[i].done)
			continue;
		printf("%u\n", i);
		print_path("content", &a->layers[i].path[QMW_PATH_CONTENT]);
		print_path("RoPE", &a->layers[i].path[QMW_PATH_ROPE]);
	}
}

static void print_cache(const struct qmw_analysis *a)
{
	printf("\nThe quantiser as it is, ways of the content error, mean of the key, Proposition "
	       "2\n\n"
	       "layer   INT4 cache NMSE    INT4 output NMSE   matching  aggregat.   key mean   "
	       "error/bound\n"
	       "       content     RoPE   content     RoPE   of content's     "
	       "of its energy\n");
	for (uint32_t i = 0; i < a->count; i++) {
		const struct qmw_analysis_layer *l = &a->layers[i];
		const struct qmw_analysis_path *c = &l->path[QMW_PATH_CONTENT];
		const struct qmw_analysis_path *k = &l->path[QMW_PATH_ROPE];
		double content = c->gain[QMW_SHAPE_QUANTISER].response;

		if (!l->done)
			continue;
		printf("%5u %8.1e %8.1e  %8.1e %8.1e   %7.3f %10.3f %10.3f %13.2e\n", i,
		       c->cache_nmse[0], k->cache_nmse[0], c->output_nmse[0], k->output_nmse[0],
		       l->matching / content, l->aggregation / content, k->mean_share, l->tightest);
	}
}

static void print_summary(const struct qmw_analysis *a)
{
	const struct qmw_analysis_summary *s = &a->summary;

	printf("\nRoPE by content response over %u layers, mean |ln predicted - ln measured|\n\n",
	       s->layers);
	for (unsigned shape = 0; shape < QMW_SHAPES; shape++)
		printf("  %-16s %6.2f (%.2f to %.2f), error %.3f\n", shape_names[shape],
		       s->mean[shape], s->low[shape], s->high[shape], s->log_error[shape]);
	printf("\nProposition 2 %s: the error was at most %.2e of its bound.\n",
	       s->tightest <= 1 ? "holds" : "is VIOLATED", s->tightest);
}

void qmw_analyze_print(const struct qmw_analysis *analysis)
{
	printf("%s: %u x %u tokens, %u probes, seed %llu\n\n", analysis->model, analysis->sequences,
	       analysis->length, analysis->probes, (unsigned long long)analysis->seed);
	print_responses(analysis);
	print_decomposition(analysis);
	print_cache(analysis);
	print_summary(analysis);
}
