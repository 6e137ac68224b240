/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/fake_paper.h"

#include "kernels/numeric.h"

/* What a group's values decide before any is rounded. */
struct grid {
	uint32_t low_at, high_at; /* first of equals */
	float low, scale, stored, zero;
	float top;       /* 2^bits - 1 */
	bool flat;       /* the scale is its lower bound */
	bool zero_inner; /* the zero point is not clipped */
};

/* To nearest even for magnitudes below 2^22: the sum has no fraction bits left. */
static float round_even(float value)
{
	return (value + 0x1.8p23f) - 0x1.8p23f;
}

static float clip(float value, float top)
{
	float low = value > 0 ? value : 0;

	return low < top ? low : top;
}

static void grid_find(const struct qmw_fake_paper *quantiser, const float *x, struct grid *grid)
{
	float range, offset;

	grid->low_at = grid->high_at = 0;
	for (uint32_t i = 1; i < quantiser->group; i++) {
		grid->low_at = x[i] < x[grid->low_at] ? i : grid->low_at;
		grid->high_at = x[i] > x[grid->high_at] ? i : grid->high_at;
	}
	grid->low = x[grid->low_at];
	range = x[grid->high_at] - grid->low;
	grid->flat = !(range > 1e-8f);
	grid->top = (float)((1u << quantiser->bits) - 1);
	grid->scale = (grid->flat ? 1e-8f : range) / grid->top;
	grid->stored = quantiser->bf16_scale ? qmk_bf16_to_float(qmk_float_to_bf16(grid->scale))
					     : grid->scale;
	offset = -grid->low / grid->scale;
	grid->zero_inner = offset >= 0 && offset <= grid->top;
	grid->zero = round_even(clip(offset, grid->top));
}

void qmw_fake_paper_apply(const struct qmw_fake_paper *quantiser, size_t rows, uint32_t dim,
			  const float *x, float *y)
{
	for (size_t at = 0; at < rows * dim; at += quantiser->group) {
		struct grid grid;

		grid_find(quantiser, x + at, &grid);
		for (uint32_t i = 0; i < quantiser->group; i++) {
			/* The bounds are whole numbers: clipping first gives the same. */
			float code = round_even(clip(x[at + i] / grid.scale + grid.zero, grid.top));

			y[at + i] = grid.stored * (code - grid.zero);
		}
	}
}

/*
 * With q = clip(x / s + z): inside the range dy/dx = 1, dy/ds = (q - z) - x / s,
 * dy/dz = 0; where it is clipped dy/dx = 0, dy/ds = q - z, dy/dz = -s.
 */
static void group_gradient(const struct grid *grid, uint32_t group, const float *x, float *g)
{
	float to_scale = 0, to_zero = 0;

	for (uint32_t i = 0; i < group; i++) {
		float free_code = round_even(clip(x[i] / grid->scale + grid->zero, 1e6f) -
					     clip(-x[i] / grid->scale - grid->zero, 1e6f));
		float code = clip(free_code, grid->top);

		if (free_code == code) {
			to_scale += g[i] * (code - grid->zero - x[i] / grid->scale);
			continue;
		}
		to_scale += g[i] * (code - grid->zero);
		to_zero -= g[i] * grid->scale;
		g[i] = 0;
	}
	if (grid->zero_inner) { /* z = -min / s */
		g[grid->low_at] -= to_zero / grid->scale;
		to_scale += to_zero * grid->low / (grid->scale * grid->scale);
	}
	if (grid->flat)
		return;
	g[grid->high_at] += to_scale / grid->top;
	g[grid->low_at] -= to_scale / grid->top;
}

void qmw_fake_paper_gradient(const struct qmw_fake_paper *quantiser, size_t rows, uint32_t dim,
			     const float *x, float *gradient)
{
	for (size_t at = 0; at < rows * dim; at += quantiser->group) {
		struct grid grid;

		grid_find(quantiser, x + at, &grid);
		group_gradient(&grid, quantiser->group, x + at, gradient + at);
	}
}
