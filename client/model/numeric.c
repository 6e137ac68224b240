/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/numeric.h"

#include <math.h>
#include <stdlib.h>

void qmw_round_rows(bool enabled, float *values, size_t count)
{
	if (!enabled)
		return;
	for (size_t i = 0; i < count; i++)
		values[i] = qmw_round_to_bf16(values[i]);
}

/* Sixteen running sums: the same order on every machine, and one the compiler can vectorise. */
static float sum_of_squares(const float *x, uint32_t count)
{
	float lanes[16] = {0};
	float sum = 0;
	uint32_t i = 0;

	for (; i + 16 <= count; i += 16)
		for (uint32_t j = 0; j < 16; j++)
			lanes[j] += x[i + j] * x[i + j];
	for (uint32_t j = 0; i < count; i++, j++)
		lanes[j] += x[i] * x[i];
	for (uint32_t j = 0; j < 16; j++)
		sum += lanes[j];
	return sum;
}

void qmw_rms_norm(const float *x, const float *weight, float eps, uint32_t count, bool round,
		  float *y)
{
	float scale = 1.0f / sqrtf(sum_of_squares(x, count) / (float)count + eps);

	for (uint32_t i = 0; i < count; i++)
		y[i] = x[i] * scale;
	qmw_round_rows(round, y, count);
	if (!weight)
		return;
	for (uint32_t i = 0; i < count; i++)
		y[i] *= weight[i];
	qmw_round_rows(round, y, count);
}

void qmw_silu_product(const float *gate, const float *up, uint32_t count, bool round, float *y)
{
	if (!round) {
		for (uint32_t i = 0; i < count; i++)
			y[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
		return;
	}
	for (uint32_t i = 0; i < count; i++) {
		float silu = qmw_round_to_bf16(gate[i] / (1.0f + expf(-gate[i])));

		y[i] = qmw_round_to_bf16(silu * up[i]);
	}
}

void qmw_add_weighted(const float *x, float factor, uint32_t count, bool round, float *y)
{
	if (!round) {
		for (uint32_t i = 0; i < count; i++)
			y[i] += factor * x[i];
		return;
	}
	for (uint32_t i = 0; i < count; i++)
		y[i] = qmw_round_to_bf16(y[i] + qmw_round_to_bf16(factor * x[i]));
}

double qmw_log_sum_exp(const float *x, uint32_t count)
{
	double max = -INFINITY, sum = 0;

	if (count == 0)
		return -INFINITY;
	for (uint32_t i = 0; i < count; i++)
		max = x[i] > max ? x[i] : max;
	for (uint32_t i = 0; i < count; i++)
		sum += exp(x[i] - max);
	return max + log(sum);
}

uint32_t qmw_argmax(const float *x, uint32_t count)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < count; i++)
		if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i])))
			best = i;
	return best;
}

double *qmw_widen(const float *values, size_t count)
{
	double *wide = values ? malloc((count + 1) * sizeof(*wide)) : NULL;

	for (size_t i = 0; wide && i < count; i++)
		wide[i] = (double)values[i];
	return wide;
}
