/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/variant.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

static void add_weighted(float *out, const float *part, float weight, uint32_t dim)
{
	for (uint32_t i = 0; i < dim; i++)
		out[i] += weight * part[i];
}

/*
 * One row: weights 2^(lse_p - lse). A part that attended nothing is left out
 * altogether, since its output may hold anything.
 */
static float merge_row(const struct qmk_merge_args *args, size_t row)
{
	float *out = args->output + row * args->content_dim;
	float peak = -INFINITY;
	double sum = 0;

	for (uint32_t p = 0; p < args->parts; p++)
		peak = fmaxf(peak, args->lse[(size_t)p * args->rows + row]);
	memset(out, 0, args->content_dim * sizeof(float));
	if (peak == -INFINITY)
		return peak;
	for (uint32_t p = 0; p < args->parts; p++)
		sum += exp2((double)args->lse[(size_t)p * args->rows + row] - (double)peak);
	for (uint32_t p = 0; p < args->parts; p++) {
		size_t at = (size_t)p * args->rows + row;

		if (args->lse[at] != -INFINITY)
			add_weighted(out, args->outputs + at * args->content_dim,
				     (float)(exp2((double)args->lse[at] - (double)peak) / sum),
				     args->content_dim);
	}
	return (float)((double)peak + log2(sum));
}

qmla_status_t qmk_cpu_merge(const struct qmk_merge_args *args)
{
	if (!args || (args->rows > 0 && (!args->output || args->content_dim == 0)))
		return qmk_check_reject("merge", "an argument is missing");
	if (args->rows > 0 && args->parts > 0 && (!args->outputs || !args->lse))
		return qmk_check_reject("merge", "parts without outputs or log-sum-exps");
	for (size_t row = 0; row < args->rows; row++) {
		float lse = merge_row(args, row);

		if (args->output_lse)
			args->output_lse[row] = lse;
	}
	return QMLA_OK;
}
