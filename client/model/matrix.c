/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/matrix.h"

#include <stdlib.h>
#include <string.h>

/* Rows at a time against one pair of panels: what fits the registers of AVX-512. */
#define ROWS_MAX 8u
/* Rows whose inputs stay in the second-level cache while all panels pass. */
#define ROWS_BLOCK 96u

typedef float vector __attribute__((vector_size(64), aligned(64)));

struct tile {
	const float *panels; /**< [1 or 2][K][16] */
	size_t panel_stride;
	uint32_t inputs;
	const float *x;
	size_t x_stride;
	const float *bias; /**< [32] or NULL */
	float *y;
	size_t y_stride;
	uint32_t width; /**< outputs to store, <= 32 */
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

/*
 * The bias starts the chain and k is walked in order, so that every
 * instantiation (rows, panels) gives the same bits for the same element.
 */
static inline __attribute__((always_inline)) void tile_run(const struct tile *t, uint32_t rows,
							   uint32_t panels)
{
	vector sums[ROWS_MAX][2];
	const float *b0 = t->panels;
	const float *b1 = t->panels + t->panel_stride;

	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t p = 0; p < panels; p++)
			sums[r][p] = t->bias ? ((const vector *)t->bias)[p] : (vector){0};
	for (uint32_t k = 0; k < t->inputs; k++) {
		vector w0 = *(const vector *)(b0 + (size_t)k * QMW_PANEL);
		vector w1 = panels == 2 ? *(const vector *)(b1 + (size_t)k * QMW_PANEL) : w0;

		for (uint32_t r = 0; r < rows; r++) {
			float x = t->x[r * t->x_stride + k];

			sums[r][0] += x * w0;
			if (panels == 2)
				sums[r][1] += x * w1;
		}
	}
	for (uint32_t r = 0; r < rows; r++)
		store(t, r, sums[r], panels);
}

static inline __attribute__((always_inline)) void tile_rows(const struct tile *t, uint32_t rows,
							    uint32_t panels)
{
	switch (rows) {
	case 8:
		tile_run(t, 8, panels);
		break;
	case 7:
		tile_run(t, 7, panels);
		break;
	case 6:
		tile_run(t, 6, panels);
		break;
	case 5:
		tile_run(t, 5, panels);
		break;
	case 4:
		tile_run(t, 4, panels);
		break;
	case 3:
		tile_run(t, 3, panels);
		break;
	case 2:
		tile_run(t, 2, panels);
		break;
	default:
		tile_run(t, 1, panels);
		break;
	}
}

/* One pair of panels (or a single last one) against a block of rows. */
static inline __attribute__((always_inline)) void
pair_run(const struct qmw_matrix *m, uint32_t panel, uint32_t panels, const float *x,
	 size_t x_stride, uint32_t rows, float *y, size_t y_stride, uint32_t step)
{
	uint32_t left = m->outputs - panel * QMW_PANEL;
	struct tile t = {.panels = m->values + (size_t)panel * m->inputs * QMW_PANEL,
			 .panel_stride = (size_t)m->inputs * QMW_PANEL,
			 .inputs = m->inputs,
			 .x_stride = x_stride,
			 .bias = m->bias ? m->bias + (size_t)panel * QMW_PANEL : NULL,
			 .y_stride = y_stride,
			 .width = left < panels * QMW_PANEL ? left : panels * QMW_PANEL};

	for (uint32_t r = 0; r < rows; r += step) {
		uint32_t count = rows - r < step ? rows - r : step;

		t.x = x + r * x_stride;
		t.y = y + r * y_stride + (size_t)panel * QMW_PANEL;
		if (panels == 2)
			tile_rows(&t, count, 2);
		else
			tile_rows(&t, count, 1);
	}
}

static inline __attribute__((always_inline)) void
apply(const struct qmw_matrix *m, uint32_t first, uint32_t last, const float *x, size_t x_stride,
      uint32_t rows, float *y, size_t y_stride, uint32_t pair, uint32_t step)
{
	for (uint32_t r = 0; r < rows; r += ROWS_BLOCK) {
		uint32_t count = rows - r < ROWS_BLOCK ? rows - r : ROWS_BLOCK;
		uint32_t panel = first;

		for (; panel + pair <= last; panel += pair)
			pair_run(m, panel, pair, x + r * x_stride, x_stride, count,
				 y + r * y_stride, y_stride, step);
		if (panel < last)
			pair_run(m, panel, 1, x + r * x_stride, x_stride, count, y + r * y_stride,
				 y_stride, step);
	}
}

#if defined(__x86_64__)
/* 8 rows x 2 panels: 16 of 32 registers of 64 bytes hold sums. */
__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma"))) static void
apply_avx512(const struct qmw_matrix *m, uint32_t first, uint32_t last, const float *x,
	     size_t x_stride, uint32_t rows, float *y, size_t y_stride)
{
	apply(m, first, last, x, x_stride, rows, y, y_stride, 2, 8);
}

/* 6 rows x 1 panel: 12 of 16 registers of 32 bytes. */
__attribute__((target("avx2,fma"))) static void apply_avx2(const struct qmw_matrix *m,
							   uint32_t first, uint32_t last,
							   const float *x, size_t x_stride,
							   uint32_t rows, float *y, size_t y_stride)
{
	apply(m, first, last, x, x_stride, rows, y, y_stride, 1, 6);
}
#endif

static void apply_plain(const struct qmw_matrix *m, uint32_t first, uint32_t last, const float *x,
			size_t x_stride, uint32_t rows, float *y, size_t y_stride)
{
	apply(m, first, last, x, x_stride, rows, y, y_stride, 1, 2);
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

static float *aligned_floats(size_t count)
{
	size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
	float *p = aligned_alloc(64, bytes ? bytes : 64);

	if (p)
		memset(p, 0, bytes);
	return p;
}

qmla_status_t qmw_matrix_init(struct qmw_matrix *matrix, uint32_t outputs, uint32_t inputs,
			      const float *weights, size_t stride, const float *bias)
{
	uint32_t panels = (outputs + QMW_PANEL - 1) / QMW_PANEL;
	float *values = aligned_floats((size_t)panels * inputs * QMW_PANEL);
	float *copy = bias ? aligned_floats((size_t)panels * QMW_PANEL) : NULL;

	if (!values || (bias && !copy)) {
		free(values);
		free(copy);
		return QMLA_ERR_NO_MEMORY;
	}
	for (uint32_t n = 0; n < outputs; n++) {
		float *panel = values + (size_t)(n / QMW_PANEL) * inputs * QMW_PANEL;

		for (uint32_t k = 0; k < inputs; k++)
			panel[(size_t)k * QMW_PANEL + n % QMW_PANEL] = weights[n * stride + k];
	}
	if (bias)
		memcpy(copy, bias, outputs * sizeof(*bias));
	*matrix = (struct qmw_matrix){outputs, inputs, panels, values, copy};
	return QMLA_OK;
}

void qmw_matrix_fini(struct qmw_matrix *matrix)
{
	free(matrix->values);
	free(matrix->bias);
	*matrix = (struct qmw_matrix){0};
}
