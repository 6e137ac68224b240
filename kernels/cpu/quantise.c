/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/variant.h"

#include "kernels/cpu/quantise.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/vector.h"
#include "kernels/numeric.h"

#define TOKENS QMK_PAGE_TOKENS
#define BLOCK  16u /* coordinates whose targets are prepared together */
#define ROWS   4u  /* coordinates a step of the matrix product */
#if QMK_LANES == 16
#define SPAN 4u /* vectors of tokens: sixteen sums in 32 registers */
#else
#define SPAN 2u /* eight sums in 16 registers */
#endif

/*
 * Ratios of the scale that are tried, then half a step to both sides of the best. With
 * feedback a trial costs dim^2 / 2 multiply-adds a token, and the ratios lie where the best
 * one does: rounding errors that are fed back widen the targets, so that at 2 bits it is
 * well above the best one of plain rounding; at 4 bits a coordinate that is cut off is made
 * up for by later ones, so that it is far below the one that covers the largest. Every
 * scale starts a feedback search anew, so that more of them always help; the few
 * coordinates of a RoPE key can afford many.
 */
struct grid {
	const float *ratios; /* NULL: first + n * step */
	float first, step;
	unsigned count;
	unsigned halvings; /* half the last step to both sides of the best, so often */
	bool largest;      /* ratio 1 just covers the largest magnitude, else it is the rms */
};

/* The last two are for tokens with a few coordinates far above the others. */
static const float ratios_4[] = {0.22f, 0.25f, 0.28f, 0.31f, 0.34f, 0.37f, 0.4f, 0.5f, 0.65f};

static const struct grid plain_4 = {NULL, 0.6f, 0.14f, 11, 1, true};
static const struct grid plain_2 = {NULL, 0.5f, 0.15f, 11, 1, false};
static const struct grid dense_4 = {NULL, 0.55f, 0.0125f, 48, 0, true};
static const struct grid feedback_4 = {ratios_4, 0, 0, 9, 0, false};
static const struct grid feedback_2 = {NULL, 0.95f, 0.3f, 4, 2, false};

/* One set of scales under trial, one a token. */
struct trial {
	float ratio[TOKENS]; /* scale over base */
	float scale[TOKENS];
	float inverse[TOKENS]; /* 0 where the scale is 0 */
	float error[TOKENS];
};

/* The search's state: what ratio 1 means, and the best so far. */
struct search {
	float base[TOKENS];
	float ratio[TOKENS];
	float scale[TOKENS];
	float error[TOKENS];
	uint8_t better[TOKENS]; /* 0xff where the last trial won */
};

/* The scales that ratio 1 stands for. */
static void base_scales(const struct qmk_cpu_plane *plane, bool by_largest, float base[TOKENS])
{
	float largest[TOKENS] = {0}, squares[TOKENS] = {0};

	for (uint32_t i = 0; i < plane->dim; i++) {
		const float *row = plane->targets + (size_t)i * TOKENS;

		for (unsigned t = 0; t < TOKENS; t++) {
			float magnitude = fabsf(row[t]);

			largest[t] = magnitude > largest[t] ? magnitude : largest[t];
			squares[t] += row[t] * row[t];
		}
	}
	for (unsigned t = 0; t < TOKENS; t++)
		base[t] = by_largest ? largest[t] / ((float)(1u << (plane->bits - 1)) - 0.5f)
				     : sqrtf(squares[t] / (float)plane->dim);
}

/* Codes are chosen with the scale as it is stored, so it is rounded to fp16 first. */
static void begin_trial(const struct search *search, struct trial *trial)
{
	for (unsigned t = 0; t < TOKENS; t++) {
		float wanted = search->base[t] * trial->ratio[t];
		float bounded = wanted < QMK_FP16_MAX ? wanted : QMK_FP16_MAX;
		float scale = qmk_fp16_to_float(qmk_float_to_fp16(bounded));

		trial->scale[t] = scale;
		trial->inverse[t] = scale > 0 ? 1 / scale : 0;
		trial->error[t] = 0;
	}
}

/* Takes over scales and codes of the tokens for which the trial left less error. */
static void keep_better(const struct qmk_cpu_plane *plane, const struct trial *trial,
			struct search *search)
{
	const uint8_t *restrict better = search->better;

	for (unsigned t = 0; t < TOKENS; t++) {
		bool won = trial->error[t] < search->error[t];

		search->ratio[t] = won ? trial->ratio[t] : search->ratio[t];
		search->scale[t] = won ? trial->scale[t] : search->scale[t];
		search->error[t] = won ? trial->error[t] : search->error[t];
		search->better[t] = won ? 0xff : 0;
	}
	for (uint32_t i = 0; i < plane->dim; i++) {
		const uint8_t *restrict draft = plane->draft + (size_t)i * TOKENS;
		uint8_t *restrict codes = plane->codes + (size_t)i * TOKENS;

		for (unsigned t = 0; t < TOKENS; t++)
			codes[t] = (uint8_t)((draft[t] & better[t]) | (codes[t] & ~better[t]));
	}
}

/* Rounds one coordinate of 64 tokens: codes, errors against the value itself, judged error. */
QMK_INLINE void round_row(const struct qmk_cpu_plane *plane, uint32_t i,
			  const float *restrict target, struct trial *restrict trial)
{
	const float *restrict value = plane->values + (size_t)i * TOKENS;
	float *restrict error = plane->errors + (size_t)i * TOKENS;
	uint8_t *restrict codes = plane->draft + (size_t)i * TOKENS;
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

static void round_plain(const struct qmk_cpu_plane *plane, struct trial *trial)
{
	for (uint32_t i = 0; i < plane->dim; i++)
		round_row(plane, i, plane->targets + (size_t)i * TOKENS, trial);
}

/* What is added to rows of 64 tokens: rows of a matrix times errors [known][64]. */
struct product {
	const float *matrix; /* first of the rows */
	size_t stride;
	const float *errors;
	uint32_t known;
};

/*
 * to = from + product for ROWS rows, SPAN vectors of tokens at a time, so that the sums
 * stay in registers.
 */
QMK_INLINE void add_product(const struct product *product, const float *from, float *to)
{
	const size_t stride = product->stride;

	for (unsigned token = 0; token < TOKENS; token += SPAN * QMK_LANES) {
		const float *row = product->matrix, *stop = row + product->known;
		const float *errors = product->errors + token;
		qmk_vector sum[ROWS][SPAN], error[SPAN];

		for (unsigned r = 0; r < ROWS; r++)
			for (unsigned v = 0; v < SPAN; v++)
				qmk_vector_load(&sum[r][v],
						from + r * TOKENS + token + v * QMK_LANES);
		for (; row < stop; row++, errors += TOKENS) {
			for (unsigned v = 0; v < SPAN; v++)
				qmk_vector_load(&error[v], errors + v * QMK_LANES);
			for (unsigned r = 0; r < ROWS; r++)
				for (unsigned v = 0; v < SPAN; v++)
					sum[r][v] += row[r * stride] * error[v];
		}
		for (unsigned r = 0; r < ROWS; r++)
			for (unsigned v = 0; v < SPAN; v++)
				qmk_vector_store(to + r * TOKENS + token + v * QMK_LANES,
						 &sum[r][v]);
	}
}

/* Targets of ROWS coordinates as far as the first `known` coordinates' errors go. */
static void targets_of_rows(const struct qmk_cpu_plane *plane, uint32_t first, uint32_t known,
			    float *target)
{
	const struct product product = {plane->feedback + (size_t)first * plane->dim, plane->dim,
					plane->errors, known};

	add_product(&product, plane->targets + (size_t)first * TOKENS, target);
}

static void round_feedback(const struct qmk_cpu_plane *plane, struct trial *trial)
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

static void try_ratios(const struct qmk_cpu_plane *plane, struct trial *trial,
		       struct search *search)
{
	begin_trial(search, trial);
	if (plane->feedback)
		round_feedback(plane, trial);
	else
		round_plain(plane, trial);
	keep_better(plane, trial, search);
}

/* The error is rough in the scale: trials beside the best one pay. */
static void try_beside(const struct qmk_cpu_plane *plane, float distance, struct search *search)
{
	float center[TOKENS];
	struct trial trial;

	memcpy(center, search->ratio, sizeof(center));
	for (unsigned side = 0; side < 2; side++) {
		for (unsigned t = 0; t < TOKENS; t++)
			trial.ratio[t] = center[t] + (side == 0 ? -distance : distance);
		try_ratios(plane, &trial, search);
	}
}

static void search_grid(const struct qmk_cpu_plane *plane, const struct grid *grid,
			struct search *search)
{
	float distance = grid->step;
	struct trial trial;

	for (unsigned n = 0; n < grid->count; n++) {
		float ratio = grid->ratios ? grid->ratios[n] : grid->first + grid->step * (float)n;

		for (unsigned t = 0; t < TOKENS; t++)
			trial.ratio[t] = ratio;
		try_ratios(plane, &trial, search);
	}
	for (unsigned n = 0; n < grid->halvings; n++) {
		distance /= 2;
		try_beside(plane, distance, search);
	}
}

static const struct grid *choose_grid(const struct qmk_cpu_plane *plane)
{
	if (plane->bits == 2)
		return plane->feedback ? &feedback_2 : &plain_2;
	if (!plane->feedback)
		return &plain_4;
	return plane->dense ? &dense_4 : &feedback_4;
}

void qmk_cpu_quantise(const struct qmk_cpu_plane *plane)
{
	const struct grid *grid = choose_grid(plane);
	struct search search;

	/* What stays if no trial's error is a number (absurd constants): zeros. */
	memset(plane->codes, 1 << (plane->bits - 1), (size_t)plane->dim * TOKENS);
	for (unsigned t = 0; t < TOKENS; t++) {
		search.error[t] = FLT_MAX;
		search.ratio[t] = search.scale[t] = 0;
	}
	base_scales(plane, grid->largest, search.base);
	search_grid(plane, grid, &search);
	for (unsigned t = 0; t < TOKENS; t++)
		plane->scales[t] = qmk_float_to_fp16(search.scale[t]);
}

void qmk_cpu_quantise_errors(const struct qmk_cpu_plane *plane, float *errors)
{
	float half = (float)(1u << (plane->bits - 1));

	for (uint32_t i = 0; i < plane->dim; i++)
		for (unsigned t = 0; t < TOKENS; t++) {
			size_t at = (size_t)i * TOKENS + t;
			float scale = qmk_fp16_to_float(plane->scales[t]);

			errors[at] = plane->values[at] -
				     ((float)plane->codes[at] + (0.5f - half)) * scale;
		}
}

void qmk_cpu_quantise_offset(const struct qmk_cpu_plane *plane, const float *matrix,
			     const float *errors, uint32_t count, float *targets)
{
	for (uint32_t i = 0; i < plane->dim; i += ROWS) {
		const struct product product = {matrix + (size_t)i * count, count, errors, count};

		add_product(&product, plane->values + (size_t)i * TOKENS,
			    targets + (size_t)i * TOKENS);
	}
}
