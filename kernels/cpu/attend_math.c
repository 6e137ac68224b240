/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/variant.h"

#include "kernels/cpu/attend_math.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels/cpu/vector.h"
#include "kernels/numeric.h"

#define ROWS   QMK_ATTEND_ROWS
#define TOKENS QMK_TILE
#define SPAN   2u /* vectors of output a step of the value product */
#if QMK_LANES == 16
#define KEYS 4u /* keys a step of the score product: sixteen sums in 32 registers */
#else
#define KEYS 2u /* eight sums in 16 registers */
#endif

#define PRODUCTS (ROWS * KEYS)

/* One level of the tree: pairs of partial sums of neighbours, interleaved. */
#define ADD_PAIR(a, b, low, high)                                                                  \
	(__builtin_shufflevector(a, b, EXPAND low) + __builtin_shufflevector(a, b, EXPAND high))
#define EXPAND(...) __VA_ARGS__

#if QMK_LANES == 16
#define LOW_1  (0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define HIGH_1 (1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#define LOW_2  (0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH_2 (2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define LOW_3  (0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define HIGH_3 (4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define LOW_4  (0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define HIGH_4 (8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#elif QMK_LANES == 8
#define LOW_1  (0, 8, 2, 10, 4, 12, 6, 14)
#define HIGH_1 (1, 9, 3, 11, 5, 13, 7, 15)
#define LOW_2  (0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH_2 (2, 3, 10, 11, 6, 7, 14, 15)
#define LOW_3  (0, 1, 2, 3, 8, 9, 10, 11)
#define HIGH_3 (4, 5, 6, 7, 12, 13, 14, 15)
#else
#define LOW_1  (0, 4, 2, 6)
#define HIGH_1 (1, 5, 3, 7)
#define LOW_2  (0, 1, 4, 5)
#define HIGH_2 (2, 3, 6, 7)
#endif

/* total[i] = sum of the lanes of sum[i]. */
QMK_INLINE void sum_lanes(qmk_vector sum[PRODUCTS], float total[PRODUCTS])
{
	for (unsigned i = 0; i < PRODUCTS; i += 2)
		sum[i / 2] = ADD_PAIR(sum[i], sum[i + 1], LOW_1, HIGH_1);
	for (unsigned i = 0; i < PRODUCTS / 2; i += 2)
		sum[i / 2] = ADD_PAIR(sum[i], sum[i + 1], LOW_2, HIGH_2);
#if QMK_LANES >= 8
	for (unsigned i = 0; i < PRODUCTS / 4; i += 2)
		sum[i / 2] = ADD_PAIR(sum[i], sum[i + 1], LOW_3, HIGH_3);
#endif
#if QMK_LANES == 16
	sum[0] = ADD_PAIR(sum[0], sum[1], LOW_4, HIGH_4);
#endif
	for (unsigned i = 0; i < PRODUCTS / QMK_LANES; i++)
		qmk_vector_store(total + i * QMK_LANES, &sum[i]);
}

/* Four query rows against keys begin … end - 1, KEYS at a time. */
static void score_rows(const float *query, const float *keys, uint32_t width, uint32_t begin,
		       uint32_t end, float *score)
{
	const size_t stride = width;

	for (size_t t = begin; t < end; t += KEYS) {
		const float *key = keys + t * stride, *row = query;
		qmk_vector sum[PRODUCTS] = {0};
		float total[PRODUCTS];

		for (const float *stop = row + stride; row < stop;
		     row += QMK_LANES, key += QMK_LANES) {
			qmk_vector a[ROWS], b;

			for (unsigned r = 0; r < ROWS; r++)
				qmk_vector_load(&a[r], row + r * stride);
			for (unsigned k = 0; k < KEYS; k++) {
				qmk_vector_load(&b, key + k * stride);
				for (unsigned r = 0; r < ROWS; r++)
					sum[r * KEYS + k] += a[r] * b;
			}
		}
		sum_lanes(sum, total);
		for (unsigned r = 0; r < ROWS; r++)
			memcpy(score + r * TOKENS + t, total + r * KEYS, KEYS * sizeof(float));
	}
}

void qmk_cpu_attend_score(const struct qmk_cpu_rows *rows, const float *keys, uint32_t begin,
			  uint32_t end)
{
	for (uint32_t r = 0; r < rows->rows; r += ROWS)
		score_rows(rows->query + (size_t)r * rows->width, keys, rows->width,
			   begin / KEYS * KEYS, end, rows->score + (size_t)r * TOKENS);
}

/*
 * 2^x for x <= 0, relative error under 2e-7: the polynomial of Cephes' exp2f on
 * [-1/2, 1/2]. Below -126 it gives 2^-126; not a number stays not a number.
 */
QMK_INLINE float power_of_two(float x)
{
	float bounded = x > -126.0f ? x : -126.0f;
	float whole = (bounded + 0x1.8p23f) - 0x1.8p23f;
	float part = bounded - whole;
	float power = 1.535336188319500e-4f;

	power = power * part + 1.339887440266574e-3f;
	power = power * part + 9.618437357674640e-3f;
	power = power * part + 5.550332471162809e-2f;
	power = power * part + 2.402264791363012e-1f;
	power = power * part + 6.931472028550421e-1f;
	power = power * part + 1.0f;
	return power * qmk_bits_float((uint32_t)((int32_t)whole + 127) << 23) + (x - x);
}

static void softmax_row(float *score, uint32_t begin, uint32_t end, float *peak, float *sum,
			float *shrink)
{
	float largest = *peak, lanes[QMK_LANES] = {0}, added = 0;

	for (uint32_t t = begin; t < end; t++)
		largest = score[t] > largest ? score[t] : largest;
	for (uint32_t t = 0; t < TOKENS; t += QMK_LANES) {
		for (uint32_t k = 0; k < QMK_LANES; k++) {
			float weight = power_of_two(score[t + k] - largest);
			float kept = t + k >= begin && t + k < end ? weight : 0;

			score[t + k] = kept;
			lanes[k] += kept;
		}
	}
	for (unsigned k = 0; k < QMK_LANES; k++)
		added += lanes[k];
	*shrink = *peak == -INFINITY ? 0 : power_of_two(*peak - largest);
	*sum = *sum * *shrink + added;
	*peak = largest;
}

void qmk_cpu_attend_softmax(const struct qmk_cpu_rows *rows, uint32_t begin)
{
	for (uint32_t r = 0; r < rows->rows; r++) {
		float *score = rows->score + (size_t)r * TOKENS;

		if (rows->end[r] > begin) {
			softmax_row(score, begin, rows->end[r], &rows->peak[r], &rows->sum[r],
				    &rows->shrink[r]);
		} else {
			memset(score, 0, TOKENS * sizeof(float));
			rows->shrink[r] = 1;
		}
	}
}

/* Four rows: SPAN vectors of each stay in registers while the tile's keys go by. */
static void accumulate_rows(const struct qmk_cpu_rows *rows, uint32_t row, const float *keys,
			    uint32_t begin, uint32_t end)
{
	const size_t values = rows->values, width = rows->width;
	const float *first = rows->score + (size_t)row * TOKENS + begin;
	const float *shrink = rows->shrink + row;
	float *output = rows->output + row * values;

	keys += begin * width;
	for (size_t i = 0; i < values; i += SPAN * QMK_LANES) {
		const float *key = keys + i, *weight = first, *stop = first + (end - begin);
		qmk_vector sum[ROWS][SPAN], value[SPAN];

		for (unsigned r = 0; r < ROWS; r++) {
			for (unsigned v = 0; v < SPAN; v++) {
				qmk_vector_load(&sum[r][v],
						output + r * values + i + v * QMK_LANES);
				sum[r][v] *= shrink[r];
			}
		}
		for (; weight < stop; weight++, key += width) {
			for (unsigned v = 0; v < SPAN; v++)
				qmk_vector_load(&value[v], key + v * QMK_LANES);
			for (unsigned r = 0; r < ROWS; r++)
				for (unsigned v = 0; v < SPAN; v++)
					sum[r][v] += weight[r * TOKENS] * value[v];
		}
		for (unsigned r = 0; r < ROWS; r++)
			for (unsigned v = 0; v < SPAN; v++)
				qmk_vector_store(output + r * values + i + v * QMK_LANES,
						 &sum[r][v]);
	}
}

void qmk_cpu_attend_accumulate(const struct qmk_cpu_rows *rows, const float *keys, uint32_t begin,
			       uint32_t end)
{
	for (uint32_t r = 0; r < rows->rows; r += ROWS) {
		uint32_t last = 0;

		for (unsigned k = 0; k < ROWS; k++)
			last = rows->end[r + k] > last ? rows->end[r + k] : last;
		if (last > begin)
			accumulate_rows(rows, r, keys, begin, last < end ? last : end);
	}
}
