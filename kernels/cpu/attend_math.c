/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/attend_math.h"

#include <math.h>
#include <stddef.h>

#include "kernels/cpu/target.h"
#include "kernels/cpu/vector.h"
#include "kernels/numeric.h"

#define ROWS   QMK_ATTEND_ROWS
#define TOKENS QMK_TILE
#define KEYS   4u /* keys a step of the score product */
#define SPAN   2u /* vectors of output a step of the value product */

QMK_CLONES
void qmk_cpu_attend_score_rows(const float *query, const float *keys, uint32_t width,
			       uint32_t begin, uint32_t end, float *score);
QMK_CLONES
void qmk_cpu_attend_softmax_row(float *score, uint32_t begin, uint32_t end, float *peak, float *sum,
				float *shrink);
QMK_CLONES
void qmk_cpu_attend_accumulate_rows(const struct qmk_cpu_rows *rows, uint32_t row,
				    const float *keys, uint32_t begin, uint32_t end);

/*
 * Sums of sixteen vectors as one vector, lane i the sum of lanes of sum[i]: a tree
 * of four levels, each of which interleaves two vectors of partial sums.
 */
QMK_INLINE void sum_lanes(qmk_vector sum[16], qmk_vector *total)
{
	for (unsigned i = 0; i < 16; i += 2)
		sum[i / 2] = __builtin_shufflevector(sum[i], sum[i + 1], 0, 16, 2, 18, 4, 20, 6, 22,
						     8, 24, 10, 26, 12, 28, 14, 30) +
			     __builtin_shufflevector(sum[i], sum[i + 1], 1, 17, 3, 19, 5, 21, 7, 23,
						     9, 25, 11, 27, 13, 29, 15, 31);
	for (unsigned i = 0; i < 8; i += 2)
		sum[i / 2] = __builtin_shufflevector(sum[i], sum[i + 1], 0, 1, 16, 17, 4, 5, 20, 21,
						     8, 9, 24, 25, 12, 13, 28, 29) +
			     __builtin_shufflevector(sum[i], sum[i + 1], 2, 3, 18, 19, 6, 7, 22, 23,
						     10, 11, 26, 27, 14, 15, 30, 31);
	for (unsigned i = 0; i < 4; i += 2)
		sum[i / 2] = __builtin_shufflevector(sum[i], sum[i + 1], 0, 1, 2, 3, 16, 17, 18, 19,
						     8, 9, 10, 11, 24, 25, 26, 27) +
			     __builtin_shufflevector(sum[i], sum[i + 1], 4, 5, 6, 7, 20, 21, 22, 23,
						     12, 13, 14, 15, 28, 29, 30, 31);
	*total = __builtin_shufflevector(sum[0], sum[1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20,
					 21, 22, 23) +
		 __builtin_shufflevector(sum[0], sum[1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26,
					 27, 28, 29, 30, 31);
}

/* Four query rows against keys begin … end - 1, four at a time. */
QMK_CLONES
void qmk_cpu_attend_score_rows(const float *query, const float *keys, uint32_t width,
			       uint32_t begin, uint32_t end, float *score)
{
	const size_t stride = width;

	for (size_t t = begin; t < end; t += KEYS) {
		const float *key = keys + t * stride, *row = query;
		qmk_vector sum[ROWS * KEYS] = {0}, total;

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
		sum_lanes(sum, &total);
		for (unsigned r = 0; r < ROWS; r++)
			memcpy(score + r * TOKENS + t, (float *)&total + r * KEYS,
			       KEYS * sizeof(float));
	}
}

void qmk_cpu_attend_score(const struct qmk_cpu_rows *rows, const float *keys, uint32_t begin,
			  uint32_t end)
{
	for (uint32_t r = 0; r < rows->rows; r += ROWS)
		qmk_cpu_attend_score_rows(rows->query + (size_t)r * rows->width, keys, rows->width,
					  begin / KEYS * KEYS, end,
					  rows->score + (size_t)r * TOKENS);
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

QMK_CLONES
void qmk_cpu_attend_softmax_row(float *score, uint32_t begin, uint32_t end, float *peak, float *sum,
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
			qmk_cpu_attend_softmax_row(score, begin, rows->end[r], &rows->peak[r],
						   &rows->sum[r], &rows->shrink[r]);
		} else {
			memset(score, 0, TOKENS * sizeof(float));
			rows->shrink[r] = 1;
		}
	}
}

/* Four rows: SPAN vectors of each stay in registers while the tile's keys go by. */
QMK_CLONES
void qmk_cpu_attend_accumulate_rows(const struct qmk_cpu_rows *rows, uint32_t row,
				    const float *keys, uint32_t begin, uint32_t end)
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
			qmk_cpu_attend_accumulate_rows(rows, r, keys, begin,
						       last < end ? last : end);
	}
}
