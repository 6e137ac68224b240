/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/cast.h"

#include <math.h>
#include <string.h>

#include "kernels/numeric.h"

/* Rounded to odd: a second rounding to fewer bits then gives what one rounding would have. */
static float to_odd_float(double value)
{
	float f = (float)value;
	uint32_t bits = qmk_float_bits(f);

	if ((double)f == value || !isfinite(f))
		return f;
	if (fabs((double)f) > fabs(value))
		bits--;
	return qmk_bits_float(bits | 1);
}

uint16_t qmw_cast_bf16(double value)
{
	return qmk_float_to_bf16(to_odd_float(value));
}

uint8_t qmw_cast_e4m3(double value)
{
	uint8_t sign = signbit(value) ? 0x80 : 0;
	double magnitude = fmin(fabs(value), QMW_FP8_MAX), step;
	int exponent;

	/* The spacing of the codes: 2^-9 below 2^-6, else 2^(e - 3) in [2^e, 2^(e + 1)). */
	frexp(magnitude, &exponent);
	step = ldexp(1, (exponent - 1 < -6 ? -6 : exponent - 1) - 3);
	magnitude = nearbyint(magnitude / step) * step; /* exact but for the tie to even */
	if (magnitude < 0x1p-6)
		return sign | (uint8_t)(magnitude * 0x1p9);
	frexp(magnitude, &exponent);
	return sign |
	       (uint8_t)((exponent - 1 + 7) << 3 | ((int)(magnitude * ldexp(1, 4 - exponent)) & 7));
}

double qmw_cast_from_e4m3(uint8_t code)
{
	int exponent = code >> 3 & 15, mantissa = code & 7;
	double magnitude = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);

	if ((code & 0x7f) == 0x7f)
		return NAN;
	return code & 0x80 ? -magnitude : magnitude;
}

double qmw_cast_round(enum qmw_dtype dtype, double value)
{
	switch (dtype) {
	case QMW_DTYPE_BF16:
		return (double)qmk_bf16_to_float(qmw_cast_bf16(value));
	case QMW_DTYPE_F16:
		return (double)qmk_fp16_to_float(qmk_float_to_fp16(to_odd_float(value)));
	default:
		return (double)(float)value;
	}
}

qmla_status_t qmw_cast_store(enum qmw_dtype dtype, const double *values, size_t count, void *bytes)
{
	uint8_t *to = bytes;

	for (size_t i = 0; i < count; i++) {
		double rounded = qmw_cast_round(dtype, values[i]);
		float f = (float)rounded;

		if (!isfinite(rounded))
			return QMLA_ERR_CORRUPT;
		if (dtype == QMW_DTYPE_F32)
			memcpy(to + 4 * i, &f, sizeof(f));
		else if (dtype == QMW_DTYPE_BF16)
			qmk_store16(to + 2 * i, qmk_float_to_bf16(f));
		else if (dtype == QMW_DTYPE_F16)
			qmk_store16(to + 2 * i, qmk_float_to_fp16(f));
		else
			return QMLA_ERR_UNSUPPORTED;
	}
	return QMLA_OK;
}

static bool all_powers_of_two(const struct qmw_fp8 *fp8)
{
	size_t count = (size_t)qmw_fp8_across(fp8->rows) * qmw_fp8_across(fp8->columns);
	int exponent;

	for (size_t i = 0; i < count; i++)
		if (frexpf(fp8->scales[i], &exponent) != 0.5f)
			return false;
	return true;
}

struct square {
	uint32_t row, column, rows, columns; /**< first and count */
};

static void replace_square(struct qmw_fp8 *fp8, const struct square *s, const double *values,
			   bool powers)
{
	float *scale =
		&fp8->scales[(size_t)(s->row / QMW_FP8_BLOCK) * qmw_fp8_across(fp8->columns) +
			     s->column / QMW_FP8_BLOCK];
	double largest = 0;

	for (uint32_t i = s->row; i < s->row + s->rows; i++)
		for (uint32_t j = s->column; j < s->column + s->columns; j++)
			largest = fmax(largest, fabs(values[(size_t)i * fp8->columns + j]));
	*scale = largest > 0 ? (float)(largest / QMW_FP8_MAX) : 1;
	if (powers)
		*scale = exp2f(ceilf(log2f(*scale)));
	for (uint32_t i = s->row; i < s->row + s->rows; i++)
		for (uint32_t j = s->column; j < s->column + s->columns; j++)
			fp8->codes[(size_t)i * fp8->columns + j] = qmw_cast_e4m3(
				values[(size_t)i * fp8->columns + j] / (double)*scale);
}

static bool is_changed(const struct qmw_fp8 *fp8, const struct square *s, const float *before,
		       const double *values)
{
	for (uint32_t i = s->row; i < s->row + s->rows; i++) {
		size_t at = (size_t)i * fp8->columns + s->column;

		for (uint32_t j = 0; j < s->columns; j++)
			if ((double)before[at + j] != values[at + j])
				return true;
	}
	return false;
}

void qmw_fp8_replace(struct qmw_fp8 *fp8, const float *before, const double *values)
{
	bool powers = all_powers_of_two(fp8);

	for (uint32_t i = 0; i < fp8->rows; i += QMW_FP8_BLOCK) {
		for (uint32_t j = 0; j < fp8->columns; j += QMW_FP8_BLOCK) {
			struct square s = {i, j, fp8->rows - i, fp8->columns - j};

			if (s.rows > QMW_FP8_BLOCK)
				s.rows = QMW_FP8_BLOCK;
			if (s.columns > QMW_FP8_BLOCK)
				s.columns = QMW_FP8_BLOCK;
			if (is_changed(fp8, &s, before, values))
				replace_square(fp8, &s, values, powers);
		}
	}
}
