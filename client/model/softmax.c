/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/softmax.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels/numeric.h"

#define LANES         16u
#define LOG2_E        1.44269504f
#define ROUND_TO_EVEN 12582912.0f /* 1.5 * 2^23: the sum has no fraction bits */

/* exp(x) for x <= 0 to 2e-7, as 2^n 2^f, without branches so that a loop of it vectorises. */
static inline __attribute__((always_inline)) float fast_exp(float x)
{
	float y = x * LOG2_E, n, f, p;

	y = y < -126.0f ? -126.0f : y;
	n = (y + ROUND_TO_EVEN) - ROUND_TO_EVEN;
	f = y - n;
	p = 1.5403530e-4f;
	p = p * f + 1.3333558e-3f;
	p = p * f + 9.6181291e-3f;
	p = p * f + 5.5504109e-2f;
	p = p * f + 2.4022651e-1f;
	p = p * f + 6.9314718e-1f;
	p = p * f + 1.0f;
	return p * qmk_bits_float((uint32_t)((int32_t)n + 127) << 23);
}

static inline __attribute__((always_inline)) void row(float *x, uint32_t count, uint32_t total,
						      float scale)
{
	float max[LANES], sum[LANES] = {0}, largest = -INFINITY, all = 0;
	uint32_t whole = count / LANES * LANES;

	for (uint32_t k = 0; k < LANES; k++)
		max[k] = -INFINITY;
	for (uint32_t t = 0; t < whole; t += LANES)
		for (uint32_t k = 0; k < LANES; k++)
			max[k] = x[t + k] > max[k] ? x[t + k] : max[k];
	for (uint32_t k = 0; k < LANES; k++)
		largest = max[k] > largest ? max[k] : largest;
	for (uint32_t t = whole; t < count; t++)
		largest = x[t] > largest ? x[t] : largest;
	for (uint32_t t = 0; t < whole; t += LANES) {
		for (uint32_t k = 0; k < LANES; k++) {
			x[t + k] = fast_exp(scale * (x[t + k] - largest));
			sum[k] += x[t + k];
		}
	}
	for (uint32_t t = whole; t < count; t++) {
		x[t] = fast_exp(scale * (x[t] - largest));
		all += x[t];
	}
	for (uint32_t k = 0; k < LANES; k++)
		all += sum[k];
	all = 1 / all;
	for (uint32_t t = 0; t < count; t++)
		x[t] *= all;
	memset(x + count, 0, (total - count) * sizeof(*x));
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma"))) static void
row_avx512(float *x, uint32_t count, uint32_t total, float scale)
{
	row(x, count, total, scale);
}

__attribute__((target("avx2,fma"))) static void row_avx2(float *x, uint32_t count, uint32_t total,
							 float scale)
{
	row(x, count, total, scale);
}
#endif

void qmw_softmax(float *x, uint32_t count, uint32_t total, float scale)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
	    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
		row_avx512(x, count, total, scale);
		return;
	}
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
		row_avx2(x, count, total, scale);
		return;
	}
#endif
	row(x, count, total, scale);
}
