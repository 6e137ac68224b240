/* SPDX-License-Identifier: Apache-2.0 */
/* Weights into the panels that matrix.c walks. */
#include <stdlib.h>
#include <string.h>

#include "client/model/matrix.h"
#include "kernels/numeric.h"

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

/* Codes go to their columns as values do; a row's scales repeat in its panel's lanes. */
static void pack_codes(struct qmw_matrix *m, const uint8_t *codes, const float *scales)
{
	uint32_t blocks = (m->inputs + QMW_FP8_BLOCK - 1) / QMW_FP8_BLOCK;

	for (uint32_t n = 0; n < m->outputs; n++) {
		uint8_t *to = m->codes + (size_t)(n / QMW_PANEL) * m->inputs * QMW_PANEL;
		float *scale = m->scales + (size_t)(n / QMW_PANEL) * blocks * QMW_PANEL;

		for (uint32_t k = 0; k < m->inputs; k++)
			to[(size_t)k * QMW_PANEL + n % QMW_PANEL] =
				codes[(size_t)n * m->inputs + k];
		for (uint32_t b = 0; b < blocks; b++)
			scale[(size_t)b * QMW_PANEL + n % QMW_PANEL] =
				scales[(size_t)n * blocks + b];
	}
}

qmla_status_t qmw_matrix_init_codes(struct qmw_matrix *matrix, uint32_t outputs, uint32_t inputs,
				    const uint8_t *codes, const float *scales)
{
	struct qmw_matrix m = {.outputs = outputs, .inputs = inputs};
	size_t column, blocks = (inputs + QMW_FP8_BLOCK - 1) / QMW_FP8_BLOCK;

	m.panels = (outputs + QMW_PANEL - 1) / QMW_PANEL;
	column = (size_t)m.panels * QMW_PANEL;
	m.codes = aligned_zeros(column * inputs, sizeof(*m.codes));
	m.scales = aligned_zeros(column * blocks, sizeof(*m.scales));
	if (!m.codes || !m.scales) {
		qmw_matrix_fini(&m);
		return QMLA_ERR_NO_MEMORY;
	}
	pack_codes(&m, codes, scales);
	*matrix = m;
	return QMLA_OK;
}

void qmw_matrix_fini(struct qmw_matrix *matrix)
{
	free(matrix->values);
	free(matrix->halves);
	free(matrix->codes);
	free(matrix->scales);
	free(matrix->bias);
	*matrix = (struct qmw_matrix){0};
}
