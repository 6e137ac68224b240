/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client/calibrate/surrogate.h"

#include <math.h>
#include <stdlib.h>

static double clip(double value, double top)
{
	return fmin(fmax(value, 0), top);
}

static void freeze_group(struct surrogate *s, size_t g, const double *x)
{
	double top = (1 << s->bits) - 1, scale, zero, free_zero;
	uint32_t low = 0, high = 0;

	for (uint32_t i = 1; i < s->group; i++) {
		low = x[i] < x[low] ? i : low;
		high = x[i] > x[high] ? i : high;
	}
	scale = (x[high] - x[low]) / top;
	free_zero = clip(-x[low] / scale, top);
	zero = nearbyint(free_zero);
	s->low_at[g] = low;
	s->high_at[g] = high;
	s->zero[g] = zero - free_zero;
	for (uint32_t i = 0; i < s->group; i++) {
		double code = nearbyint(x[i] / scale + zero);

		/* Codes are whole: the outermost stand on the bounds, and are not clipped. */
		s->code[g * s->group + i] = code - (x[i] / scale + zero);
		s->bound[g * s->group + i] = code < 0 ? 0 : code > top ? top : NAN;
	}
}

void surrogate_freeze(struct surrogate *s, uint32_t bits, uint32_t group, size_t groups,
		      const double *x)
{
	*s = (struct surrogate){.bits = bits, .group = group, .groups = groups};
	s->zero = malloc(groups * sizeof(double));
	s->code = malloc(2 * groups * group * sizeof(double));
	s->low_at = malloc(2 * groups * sizeof(uint32_t));
	if (!s->zero || !s->code || !s->low_at)
		abort();
	s->bound = s->code + groups * group;
	s->high_at = s->low_at + groups;
	for (size_t g = 0; g < groups; g++)
		freeze_group(s, g, x + g * group);
}

void surrogate_apply(const struct surrogate *s, const double *x, double *y)
{
	double top = (1 << s->bits) - 1;

	for (size_t g = 0; g < s->groups; g++) {
		const double *v = x + g * s->group;
		double low = v[s->low_at[g]], scale = (v[s->high_at[g]] - low) / top;
		double zero = clip(-low / scale, top) + s->zero[g];

		for (uint32_t i = 0; i < s->group; i++) {
			size_t at = g * s->group + i;
			double code = isnan(s->bound[at]) ? v[i] / scale + zero + s->code[at]
							  : s->bound[at];

			y[at] = scale * (code - zero);
		}
	}
}

void surrogate_free(struct surrogate *s)
{
	free(s->zero);
	free(s->code);
	free(s->low_at);
}
