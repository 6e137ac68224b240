/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/matrix.h"

#include <string.h>

/* Most rows, and most panels, of a tile: its sums must fit the registers of AVX-512. */
#define ROWS_MAX   8u
#define PANELS_MAX 8u
#define SUMS_MAX   16u
/* Rows whose inputs stay in the second-level cache while all panels pass. */
#define ROWS_BLOCK 96u

typedef float vector __attribute__((vector_size(64), aligned(64)));
typedef uint32_t wide __attribute__((vector_size(64), aligned(64)));
typedef uint8_t codes __attribute__((vector_size(16), aligned(16)));

enum storage { FLOATS, HALVES, CODES };

struct tile {
	const void *panels;  /**< [1 … 8] of them */
	size_t panel_stride; /**< vectors */
	const float *scales; /**< of codes: [panels][blocks of 128 inputs][16] */
	size_t scale_stride; /**< vectors */
	uint32_t inputs;
	const float *x;
	size_t x_stride;
	const float *bias; /**< [panels][16] or NULL */
	float *y;
	size_t y_stride;
	uint32_t width; /**< outputs to store, <= 16 panels */
};

static inline __attribute__((always_inline)) void store(const struct tile *t, uint32_t row,
							const vector *sums, uint32_t panels)
{
	float *y = t->y + row * t->y_stride;

	if (t->width == panels * QMW_PANEL)
		memcpy(y, sums, panels * sizeof(*sums));
	else
		memcpy(y, sums, t->width * sizeof(*y));
}

/* One step of the chains: column k of the inputs by the weights at hand. */
static inline __attribute__((always_inline)) void step_run(const struct tile *t, uint32_t rows,
							   uint32_t panels, uint32_t k,
							   const vector *weights, vector *sums)
{
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t p = 0; p < panels; p++)
			sums[r * panels + p] += t->x[r * t->x_stride + k] * weights[p];
}

/* Columns two at a time: a shift and a mask turn one load into both. */
static inline __attribute__((always_inline)) void run_halves(const struct tile *t, uint32_t rows,
							     uint32_t panels, vector *sums)
{
	const wide *pairs = t->panels;
	vector even[PANELS_MAX], odd[PANELS_MAX];

	for (uint32_t k = 0; k < t->inputs; k += 2) {
		for (uint32_t p = 0; p < panels; p++) {
			wide both = pairs[p * t->panel_stride + k / 2];

			even[p] = (vector)(both << 16);
			odd[p] = (vector)(both & 0xffff0000u);
		}
		step_run(t, rows, panels, k, even, sums);
		if (k + 1 < t->inputs)
			step_run(t, rows, panels, k + 1, odd, sums);
	}
}

/*
 * E4M3 to float32, the scale in: an exponent of 8 bits instead of 4, and where that is
 * zero (subnormal) the implied one taken off again. Exact before the scale.
 */
static inline __attribute__((always_inline)) void expand_codes(const codes *packed,
							       const vector *scale, vector *values)
{
	const wide minimum = (wide){0} + 0x3c000000u; /* 2^-7, the biases' difference */
	wide code = __builtin_convertvector(*packed, wide);
	wide sign = (code & 0x80u) << 24, size = (code & 0x7fu) << 20;
	wide subnormal = (wide)(size < 0x00800000u);
	vector below = (vector)(size + minimum + 0x00800000u) - 0x1p-6f;
	wide bits = ((wide)below & subnormal) | ((size + minimum) & ~subnormal);

	*values = (vector)(bits | sign) * *scale;
}

static inline __attribute__((always_inline)) void run_codes(const struct tile *t, uint32_t rows,
							    uint32_t panels, vector *sums)
{
	const codes *columns = t->panels;
	const vector *scales = (const vector *)t->scales;
	vector weights[PANELS_MAX];

	for (uint32_t block = 0; block * QMW_FP8_BLOCK < t->inputs; block++) {
		uint32_t first = block * QMW_FP8_BLOCK, left = t->inputs - first;
		uint32_t last = first + (left < QMW_FP8_BLOCK ? left : QMW_FP8_BLOCK);

		for (uint32_t k = first; k < last; k++) {
			for (uint32_t p = 0; p < panels; p++)
				expand_codes(&columns[p * t->panel_stride + k],
					     &scales[p * t->scale_stride + block], &weights[p]);
			step_run(t, rows, panels, k, weights, sums);
		}
	}
}

static inline __attribute__((always_inline)) void run_floats(const struct tile *t, uint32_t rows,
							     uint32_t panels, vector *sums)
{
	const vector *columns = t->panels;
	vector weights[PANELS_MAX];

	for (uint32_t k = 0; k < t->inputs; k++) {
		for (uint32_t p = 0; p < panels; p++)
			weights[p] = columns[p * t->panel_stride + k];
		step_run(t, rows, panels, k, weights, sums);
	}
}

/*
 * The bias starts the chain and k is walked in order, so that every
 * instantiation (rows, panels) gives the same bits for the same element.
 */
static inline __attribute__((always_inline)) void tile_run(const struct tile *t, uint32_t rows,
							   uint32_t panels, enum storage storage)
{
	vector sums[SUMS_MAX];

	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t p = 0; p < panels; p++)
			sums[r * panels + p] = t->bias ? ((const vector *)t->bias)[p] : (vector){0};
	if (storage == HALVES)
		run_halves(t, rows, panels, sums);
	else if (storage == CODES)
		run_codes(t, rows, panels, sums);
	else
		run_floats(t, rows, panels, sums);
	for (uint32_t r = 0; r < rows; r++)
		store(t, r, sums + r * panels, panels);
}

/* Few rows take more panels at once: a chain of additions alone waits for its own latency. */
static inline __attribute__((always_inline)) void tile_any(const struct tile *t, uint32_t rows,
							   uint32_t panels, enum storage storage)
{
	switch (rows * PANELS_MAX + panels - 1) {
#define TILE(r, p)                                                                                 \
	case (r)*PANELS_MAX + (p)-1:                                                               \
		tile_run(t, r, p, storage);                                                        \
		break;
		TILE(1, 8)
		TILE(1, 4)
		TILE(2, 4)
		TILE(1, 2)
		TILE(2, 2)
		TILE(3, 2)
		TILE(4, 2)
		TILE(5, 2)
		TILE(6, 2)
		TILE(7, 2)
		TILE(8, 2)
		TILE(1, 1)
		TILE(2, 1)
		TILE(3, 1)
		TILE(4, 1)
		TILE(5, 1)
		TILE(6, 1)
		TILE(7, 1)
		TILE(8, 1)
#undef TILE
	default:
		__builtin_unreachable();
	}
}

/* A group of panels against a block of rows, @step at a time. */
static inline __attribute__((always_inline)) void
group_run(const struct qmw_matrix *m, uint32_t panel, uint32_t panels, const float *x,
	  size_t x_stride, uint32_t rows, float *y, size_t y_stride, uint32_t step)
{
	uint32_t left = m->outputs - panel * QMW_PANEL;
	size_t stride = m->halves ? (m->inputs + 1) / 2 : m->inputs;
	struct tile t = {.panel_stride = stride,
			 .inputs = m->inputs,
			 .x_stride = x_stride,
			 .bias = m->bias ? m->bias + (size_t)panel * QMW_PANEL : NULL,
			 .y_stride = y_stride,
			 .width = left < panels * QMW_PANEL ? left : panels * QMW_PANEL};

	t.scale_stride = (m->inputs + QMW_FP8_BLOCK - 1) / QMW_FP8_BLOCK;
	if (m->halves)
		t.panels = m->halves + panel * stride * QMW_PANEL;
	else if (m->codes)
		t.panels = m->codes + panel * stride * QMW_PANEL;
	else
		t.panels = m->values + panel * stride * QMW_PANEL;
	t.scales = m->scales ? m->scales + panel * t.scale_stride * QMW_PANEL : NULL;
	for (uint32_t r = 0; r < rows; r += step) {
		uint32_t count = rows - r < step ? rows - r : step;

		t.x = x + r * x_stride;
		t.y = y + r * y_stride + (size_t)panel * QMW_PANEL;
		if (m->halves)
			tile_any(&t, count, panels, HALVES);
		else if (m->codes)
			tile_any(&t, count, panels, CODES);
		else
			tile_any(&t, count, panels, FLOATS);
	}
}

/* Largest group of panels that @p rows rows leave registers for; @sums of them there are. */
static uint32_t group_panels(uint32_t rows, uint32_t pair, uint32_t sums)
{
	uint32_t panels = rows == 1 ? sums / 2 : rows == 2 ? sums / 4 : pair;

	return panels > pair ? panels : pair;
}

static inline __attribute__((always_inline)) void
apply(const struct qmw_matrix *m, uint32_t first, uint32_t last, const float *x, size_t x_stride,
      uint32_t rows, float *y, size_t y_stride, uint32_t pair, uint32_t step, uint32_t sums)
{
	for (uint32_t r = 0; r < rows; r += ROWS_BLOCK) {
		uint32_t count = rows - r < ROWS_BLOCK ? rows - r : ROWS_BLOCK;
		uint32_t panels = group_panels(count, pair, sums);

		for (uint32_t panel = first; panel < last; panel += panels) {
			while (panels > last - panel)
				panels /= 2;
			group_run(m, panel, panels, x + r * x_stride, x_stride, count,
				  y + r * y_stride, y_stride, step);
		}
	}
}

#if defined(__x86_64__)
/* 8 rows x 2 panels: 16 of 32 registers of 64 bytes hold sums. */
__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma"))) static void
apply_avx512(const struct qmw_matrix *m, uint32_t first, uint32_t last, const float *x,
	     size_t x_stride, uint32_t rows, float *y, size_t y_stride)
{
	apply(m, first, last, x, x_stride, rows, y, y_stride, 2, 8, 16);
}

/* 6 rows x 1 panel: 12 of 16 registers of 32 bytes. */
__attribute__((target("avx2,fma"))) static void apply_avx2(const struct qmw_matrix *m,
							   uint32_t first, uint32_t last,
							   const float *x, size_t x_stride,
							   uint32_t rows, float *y, size_t y_stride)
{
	apply(m, first, last, x, x_stride, rows, y, y_stride, 1, 6, 8);
}
#endif

static void apply_plain(const struct qmw_matrix *m, uint32_t first, uint32_t last, const float *x,
			size_t x_stride, uint32_t rows, float *y, size_t y_stride)
{
	apply(m, first, last, x, x_stride, rows, y, y_stride, 1, 2, 4);
}

void qmw_matrix_apply(const struct qmw_matrix *matrix, uint32_t first, uint32_t last,
		      const float *x, size_t x_stride, uint32_t rows, float *y, size_t y_stride)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
	    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
		apply_avx512(matrix, first, last, x, x_stride, rows, y, y_stride);
		return;
	}
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
		apply_avx2(matrix, first, last, x, x_stride, rows, y, y_stride);
		return;
	}
#endif
	apply_plain(matrix, first, last, x, x_stride, rows, y, y_stride);
}
