/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/matrix.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/numeric.h"

/* Most rows, and most panels, of a tile: its sums must fit the registers of AVX-512. */
#define ROWS_MAX   8u
#define PANELS_MAX 8u
#define SUMS_MAX   16u
/* Rows whose inputs stay in the second-level cache while all panels pass. */
#define ROWS_BLOCK 96u

typedef float vector __attribute__((vector_size(64), aligned(64)));
typedef uint32_t wide __attribute__((vector_size(64), aligned(64)));

struct tile {
	const void *panels;  /**< [1 … 8] of them */
	size_t panel_stride; /**< vectors */
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
							   uint32_t panels, bool halves)
{
	vector sums[SUMS_MAX];

	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t p = 0; p < panels; p++)
			sums[r * panels + p] = t->bias ? ((const vector *)t->bias)[p] : (vector){0};
	if (halves)
		run_halves(t, rows, panels, sums);
	else
		run_floats(t, rows, panels, sums);
	for (uint32_t r = 0; r < rows; r++)
		store(t, r, sums + r * panels, panels);
}

/* Few rows take more panels at once: a chain of additions alone waits for its own latency. */
static inline __attribute__((always_inline)) void tile_any(const struct tile *t, uint32_t rows,
							   uint32_t panels, bool halves)
{
	switch (rows * PANELS_MAX + panels - 1) {
#define TILE(r, p)                                                                                 \
	case (r)*PANELS_MAX + (p)-1:                                                               \
		tile_run(t, r, p, halves);                                                         \
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

	t.panels = m->halves ? (const void *)(m->halves + panel * stride * QMW_PANEL)
			     : (const void *)(m->values + panel * stride * QMW_PANEL);
	for (uint32_t r = 0; r < rows; r += step) {
		uint32_t count = rows - r < step ? rows - r : step;

		t.x = x + r * x_stride;
		t.y = y + r * y_stride + (size_t)panel * QMW_PANEL;
		if (m->halves)
			tile_any(&t, count, panels, true);
		else
			tile_any(&t, count, panels, false);
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

static void *aligned_zeros(size_t count, size_t size)
{
	size_t bytes = (count * size + 63) / 64 * 64;
	void *p = aligned_alloc(64, bytes ? bytes : 64);

	if (p)
		memset(p, 0, bytes);
	return p;
}

static bool all_bf16(uint32_t outputs, uint32_t inputs, const float *weights, size_t stride)
{
	for (uint32_t n = 0; n < outputs; n++)
		for (uint32_t k = 0; k < inputs; k++)
			if (qmk_float_bits(weights[n * stride + k]) & 0xffffu)
				return false;
	return true;
}

static void pack_values(struct qmw_matrix *m, const float *weights, size_t stride)
{
	for (uint32_t n = 0; n < m->outputs; n++) {
		float *to = m->values + (size_t)(n / QMW_PANEL) * m->inputs * QMW_PANEL;

		for (uint32_t k = 0; k < m->inputs; k++)
			to[(size_t)k * QMW_PANEL + n % QMW_PANEL] = weights[n * stride + k];
	}
}

static void pack_halves(struct qmw_matrix *m, const float *weights, size_t stride)
{
	for (uint32_t n = 0; n < m->outputs; n++) {
		uint32_t *to =
			m->halves + (size_t)(n / QMW_PANEL) * ((m->inputs + 1) / 2) * QMW_PANEL;

		for (uint32_t k = 0; k < m->inputs; k++)
			to[(size_t)(k / 2) * QMW_PANEL + n % QMW_PANEL] |=
				qmk_float_bits(weights[n * stride + k]) >> (k % 2 ? 0 : 16);
	}
}

qmla_status_t qmw_matrix_init(struct qmw_matrix *matrix, uint32_t outputs, uint32_t inputs,
			      const float *weights, size_t stride, const float *bias)
{
	struct qmw_matrix m = {.outputs = outputs, .inputs = inputs};
	size_t column;

	m.panels = (outputs + QMW_PANEL - 1) / QMW_PANEL;
	column = (size_t)m.panels * QMW_PANEL;
	if (all_bf16(outputs, inputs, weights, stride))
		m.halves = aligned_zeros(column * ((inputs + 1) / 2), sizeof(*m.halves));
	else
		m.values = aligned_zeros(column * inputs, sizeof(*m.values));
	m.bias = bias ? aligned_zeros(column, sizeof(*m.bias)) : NULL;
	if ((!m.halves && !m.values) || (bias && !m.bias)) {
		qmw_matrix_fini(&m);
		return QMLA_ERR_NO_MEMORY;
	}
	if (m.halves)
		pack_halves(&m, weights, stride);
	else
		pack_values(&m, weights, stride);
	if (bias)
		memcpy(m.bias, bias, outputs * sizeof(*bias));
	*matrix = m;
	return QMLA_OK;
}

void qmw_matrix_fini(struct qmw_matrix *matrix)
{
	free(matrix->values);
	free(matrix->halves);
	free(matrix->bias);
	*matrix = (struct qmw_matrix){0};
}
