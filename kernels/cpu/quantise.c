/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/quantise.h"

#include <float.h>
#include <math.h>

#include "kernels/cpu/target.h"
#include "kernels/cpu/vector.h"
#include "kernels/numeric.h"

#define TOKENS     QMK_PAGE_TOKENS
#define VECTORS    (TOKENS / QMK_LANES) /* vectors a coordinate */
#define CANDIDATES 11u
#define BLOCK      16u /* coordinates whose targets are prepared together */
#define ROWS       4u  /* coordinates a step of the matrix product */

/* Scales under trial, one a token. */
struct trial {
	float scale[TOKENS];
	float inverse[TOKENS]; /* 0 where the scale is 0 */
	float error[TOKENS];
};

QMK_CLONES
void qmk_cpu_quantise_base(const struct qmk_cpu_plane *plane, float base[TOKENS]);
QMK_CLONES
void qmk_cpu_quantise_try(const float base[TOKENS], float ratio, struct trial *trial);
QMK_CLONES
void qmk_cpu_quantise_plain(const struct qmk_cpu_plane *plane, struct trial *trial);
QMK_CLONES
void qmk_cpu_quantise_feedback(const struct qmk_cpu_plane *plane, struct trial *trial);

/*
 * The scale that ratio 1 stands for: 4 bits, the one that just covers the
 * largest magnitude; 2 bits, the root mean square.
 */
QMK_CLONES
void qmk_cpu_quantise_base(const struct qmk_cpu_plane *plane, float base[TOKENS])
{
	float largest[TOKENS] = {0}, squares[TOKENS] = {0};

	for (uint32_t i = 0; i < plane->dim; i++) {
		const float *row = plane->values + (size_t)i * TOKENS;

		for (unsigned t = 0; t < TOKENS; t++) {
			float magnitude = fabsf(row[t]);

			largest[t] = magnitude > largest[t] ? magnitude : largest[t];
			squares[t] += row[t] * row[t];
		}
	}
	for (unsigned t = 0; t < TOKENS; t++)
		base[t] = plane->bits == 4 ? largest[t] / 7.5f
					   : sqrtf(squares[t] / (float)plane->dim);
}

/* Codes are chosen with the scale as it is stored, so it is rounded to fp16 first. */
QMK_CLONES
void qmk_cpu_quantise_try(const float base[TOKENS], float ratio, struct trial *trial)
{
	for (unsigned t = 0; t < TOKENS; t++) {
		float wanted = base[t] * ratio;
		float bounded = wanted < QMK_FP16_MAX ? wanted : QMK_FP16_MAX;
		float scale = qmk_fp16_to_float(qmk_float_to_fp16(bounded));

		trial->scale[t] = scale;
		trial->inverse[t] = scale > 0 ? 1 / scale : 0;
		trial->error[t] = 0;
	}
}

/* Rounds one coordinate of 64 tokens: codes, errors against the value itself, judged error. */
QMK_INLINE void round_row(const struct qmk_cpu_plane *plane, uint32_t i,
			  const float *restrict target, struct trial *restrict trial)
{
	const float *restrict value = plane->values + (size_t)i * TOKENS;
	float *restrict error = plane->errors + (size_t)i * TOKENS;
	uint8_t *restrict codes = plane->codes + (size_t)i * TOKENS;
	float weight = plane->weight ? plane->weight[i] : 1;
	float half = (float)(1u << (plane->bits - 1)), last = 2 * half - 1;

	for (unsigned t = 0; t < TOKENS; t++) {
		float scaled = target[t] * trial->inverse[t] + half;
		/* In this order a NaN (from absurd constants) ends as code 0. */
		float low = scaled > 0 ? scaled : 0;
		int32_t code = (int32_t)(low < last ? low : last);
		float restored = ((float)code + (0.5f - half)) * trial->scale[t];
		float miss = target[t] - restored;

		trial->error[t] += weight * (miss * miss);
		error[t] = value[t] - restored;
		codes[t] = (uint8_t)code;
	}
}

QMK_CLONES
void qmk_cpu_quantise_plain(const struct qmk_cpu_plane *plane, struct trial *trial)
{
	for (uint32_t i = 0; i < plane->dim; i++)
		round_row(plane, i, plane->values + (size_t)i * TOKENS, trial);
}

/*
 * Targets of ROWS coordinates as far as the first `known` coordinates' errors go:
 * a product of ROWS rows of A with errors [known][64].
 */
QMK_INLINE void targets_of_rows(const struct qmk_cpu_plane *plane, uint32_t first, uint32_t known,
				float *target)
{
	const float *feedback = plane->feedback + (size_t)first * plane->dim;
	qmk_vector sum[ROWS][VECTORS], error[VECTORS];

	for (unsigned r = 0; r < ROWS; r++)
		for (unsigned v = 0; v < VECTORS; v++)
			qmk_vector_load(&sum[r][v], plane->values + (size_t)(first + r) * TOKENS +
							    v * QMK_LANES);
	for (uint32_t j = 0; j < known; j++) {
		for (unsigned v = 0; v < VECTORS; v++)
			qmk_vector_load(&error[v],
					plane->errors + (size_t)j * TOKENS + v * QMK_LANES);
		for (unsigned r = 0; r < ROWS; r++)
			for (unsigned v = 0; v < VECTORS; v++)
				sum[r][v] += feedback[(size_t)r * plane->dim + j] * error[v];
	}
	for (unsigned r = 0; r < ROWS; r++)
		for (unsigned v = 0; v < VECTORS; v++)
			qmk_vector_store(target + r * TOKENS + v * QMK_LANES, &sum[r][v]);
}

QMK_CLONES
void qmk_cpu_quantise_feedback(const struct qmk_cpu_plane *plane, struct trial *trial)
{
	float target[BLOCK * TOKENS] __attribute__((aligned(64)));

	for (uint32_t first = 0; first < plane->dim; first += BLOCK) {
		for (uint32_t r = 0; r < BLOCK; r += ROWS)
			targets_of_rows(plane, first + r, first, target + r * TOKENS);
		for (uint32_t i = 0; i < BLOCK; i++) {
			const float *row = plane->feedback + (size_t)(first + i) * plane->dim;
			float *sum = target + i * TOKENS;

			for (uint32_t j = first; j < first + i; j++) {
				const float *error = plane->errors + (size_t)j * TOKENS;

				for (unsigned t = 0; t < TOKENS; t++)
					sum[t] += row[j] * error[t];
			}
			round_row(plane, first + i, sum, trial);
		}
	}
}

static void round_plane(const struct qmk_cpu_plane *plane, struct trial *trial)
{
	if (plane->feedback)
		qmk_cpu_quantise_feedback(plane, trial);
	else
		qmk_cpu_quantise_plain(plane, trial);
}

void qmk_cpu_quantise(const struct qmk_cpu_plane *plane)
{
	float base[TOKENS], best_error[TOKENS], best_ratio_scale[TOKENS];
	float first = plane->bits == 4 ? 0.6f : 0.5f;
	float step = (2.0f - first) / (CANDIDATES - 1);
	struct trial trial;

	for (unsigned t = 0; t < TOKENS; t++) {
		best_error[t] = FLT_MAX;
		best_ratio_scale[t] = 0;
	}
	qmk_cpu_quantise_base(plane, base);
	for (unsigned c = 0; c < CANDIDATES; c++) {
		qmk_cpu_quantise_try(base, first + step * (float)c, &trial);
		round_plane(plane, &trial);
		for (unsigned t = 0; t < TOKENS; t++) {
			if (trial.error[t] < best_error[t]) {
				best_error[t] = trial.error[t];
				best_ratio_scale[t] = trial.scale[t];
			}
		}
	}
	/* The scales are fp16 values already: ratio 1 keeps them. */
	qmk_cpu_quantise_try(best_ratio_scale, 1, &trial);
	round_plane(plane, &trial);
	for (unsigned t = 0; t < TOKENS; t++)
		plane->scales[t] = qmk_float_to_fp16(trial.scale[t]);
}
