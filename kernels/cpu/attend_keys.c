/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/attend_keys.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/page.h"
#include "kernels/cpu/target.h"
#include "kernels/numeric.h"

#define TOKENS QMK_PAGE_TOKENS

size_t qmk_cpu_keys_scratch(const struct qmk_layout *layout)
{
	size_t width = layout->content_dim + layout->rope_dim;

	return TOKENS * width              /* rows */
	       + layout->rope_dim          /* mean */
	       + TOKENS * layout->rope_dim /* step_cos, step_sin */
	       + 4 * layout->rope_dim;     /* jump, turn: doubles */
}

/* Members of pair j: (2j, 2j + 1), or (j, j + d_r / 2). */
QMK_CLONES
void qmk_cpu_keys_pair(const float *natural, uint32_t dim, bool half_split, float factor,
		       float *out);

QMK_CLONES
void qmk_cpu_keys_pair(const float *natural, uint32_t dim, bool half_split, float factor,
		       float *out)
{
	if (half_split) {
		for (uint32_t i = 0; i < dim; i++)
			out[i] = natural[i] * factor;
		return;
	}
	for (uint32_t j = 0; j < dim / 2; j++) {
		out[j] = natural[2 * j] * factor;
		out[dim / 2 + j] = natural[2 * j + 1] * factor;
	}
}

/*
 * Powers of the one-position rotation by repeated multiplication in double: after
 * 64 steps the error is some 1e-14, and it costs no call of sin per token.
 */
static void build_steps(struct qmk_cpu_keys *keys, const struct qmk_rope *rope, uint32_t pairs)
{
	for (uint32_t j = 0; j < pairs; j++) {
		double angle = (double)rope->inv_freq[j];
		double one_cos = cos(angle), one_sin = sin(angle), c = 1, s = 0;

		for (uint32_t t = 0; t < TOKENS; t++) {
			double next = c * one_cos - s * one_sin;

			keys->step_cos[t * pairs + j] = (float)(c * (double)rope->amplitude);
			keys->step_sin[t * pairs + j] = (float)(s * (double)rope->amplitude);
			s = s * one_cos + c * one_sin;
			c = next;
		}
		keys->jump[j] = cos(angle * TOKENS);
		keys->jump[pairs + j] = sin(angle * TOKENS);
	}
}

void qmk_cpu_keys_init(struct qmk_cpu_keys *keys, const struct qmk_attend_args *args,
		       float *scratch)
{
	const struct qmk_layout *layout = args->layout;
	const struct qmk_constants *constants = qmk_cpu_constants(layout, args->constants);
	uint32_t dim = layout->rope_dim;

	*keys = (struct qmk_cpu_keys){.args = args};
	keys->half_split = layout->rope_rotated || args->rope->pairing == QMK_HALF_SPLIT;
	keys->rows = scratch;
	keys->mean = keys->rows + (size_t)TOKENS * (layout->content_dim + dim);
	keys->step_cos = keys->mean + dim;
	keys->step_sin = keys->step_cos + (size_t)TOKENS * dim / 2;
	keys->jump = (double *)(keys->step_sin + (size_t)TOKENS * dim / 2);
	keys->turn = keys->jump + dim;
	memset(keys->mean, 0, dim * sizeof(float));
	if (constants->rope_mean)
		qmk_cpu_keys_pair(constants->rope_mean, dim, keys->half_split, 1, keys->mean);
	if (!layout->rope_rotated)
		build_steps(keys, args->rope, dim / 2);
}

void qmk_cpu_keys_begin(struct qmk_cpu_keys *keys, const struct qmk_sequence *sequence,
			uint32_t block)
{
	uint32_t pairs = keys->args->layout->rope_dim / 2;

	keys->sequence = sequence;
	if (keys->args->layout->rope_rotated)
		return;
	for (uint32_t j = 0; j < pairs; j++) {
		double angle = (double)keys->args->rope->inv_freq[j] * TOKENS * block;

		keys->turn[j] = block == 0 ? 1 : cos(angle);
		keys->turn[pairs + j] = block == 0 ? 0 : sin(angle);
	}
}

static void next_block(struct qmk_cpu_keys *keys)
{
	uint32_t pairs = keys->args->layout->rope_dim / 2;

	for (uint32_t j = 0; j < pairs; j++) {
		double c = keys->turn[j], s = keys->turn[pairs + j];

		keys->turn[j] = c * keys->jump[j] - s * keys->jump[pairs + j];
		keys->turn[pairs + j] = s * keys->jump[j] + c * keys->jump[pairs + j];
	}
}

QMK_CLONES
void qmk_cpu_keys_rotate(const struct qmk_cpu_keys *keys, uint32_t token, uint32_t pairs,
			 float *restrict key);

/* Adds the mean and rotates by the block's start and the token's step in it. */
QMK_CLONES
void qmk_cpu_keys_rotate(const struct qmk_cpu_keys *keys, uint32_t token, uint32_t pairs,
			 float *restrict key)
{
	const float *restrict mean = keys->mean;
	const float *restrict step_cos = keys->step_cos + (size_t)token * pairs;
	const float *restrict step_sin = keys->step_sin + (size_t)token * pairs;
	const double *restrict turn = keys->turn;

	for (uint32_t j = 0; j < pairs; j++) {
		float turn_cos = (float)turn[j], turn_sin = (float)turn[pairs + j];
		float c = turn_cos * step_cos[j] - turn_sin * step_sin[j];
		float s = turn_sin * step_cos[j] + turn_cos * step_sin[j];
		float first = key[j] + mean[j], second = key[pairs + j] + mean[pairs + j];

		key[j] = first * c - second * s;
		key[pairs + j] = first * s + second * c;
	}
}

static void load_packed(const struct qmk_cpu_keys *keys, const uint8_t *page, uint32_t token,
			float *row)
{
	const struct qmk_layout *layout = keys->args->layout;
	float sliced[QMK_MAX_ROPE_DIM], natural[QMK_MAX_ROPE_DIM];

	qmk_cpu_page_content(layout, page, token, row);
	qmk_cpu_page_rope(layout, page, token, sliced);
	qmk_cpu_unslice(sliced, layout->rope_dim, 8 / layout->rope_bits, natural);
	qmk_cpu_keys_pair(natural, layout->rope_dim, keys->half_split, 1,
			  row + layout->content_dim);
}

static void load_bf16(const struct qmk_cpu_keys *keys, const uint16_t *from, float *row)
{
	const struct qmk_layout *layout = keys->args->layout;
	float natural[QMK_MAX_ROPE_DIM];

	qmk_cpu_slice_bf16(from, layout->content_dim, 8 / layout->content_bits, row);
	for (uint32_t i = 0; i < layout->rope_dim; i++)
		natural[i] = qmk_bf16_to_float(from[layout->content_dim + i]);
	qmk_cpu_keys_pair(natural, layout->rope_dim, keys->half_split, 1,
			  row + layout->content_dim);
}

void qmk_cpu_keys_load(struct qmk_cpu_keys *keys, uint32_t block, uint32_t begin, uint32_t end)
{
	const struct qmk_attend_args *args = keys->args;
	const struct qmk_layout *layout = args->layout;
	const struct qmk_sequence *sequence = keys->sequence;
	size_t width = layout->content_dim + layout->rope_dim;
	uint32_t first = begin / 4 * 4, last = (end + 3) / 4 * 4;
	const uint8_t *page = NULL;

	memset(keys->rows + first * width, 0, (begin - first) * width * sizeof(float));
	memset(keys->rows + end * width, 0, (last - end) * width * sizeof(float));
	for (uint32_t t = begin; t < end; t++) {
		uint32_t position = block * TOKENS + t;
		float *row = keys->rows + t * width;

		if (position < sequence->sink) {
			load_bf16(keys, sequence->sink_rows + position * width, row);
		} else if (position < sequence->packed_end) {
			if (!page)
				page = qmk_cpu_page(
					layout, &args->pool,
					args->block_table[sequence->table_start + block],
					args->layer);
			load_packed(keys, page, t, row);
		} else {
			load_bf16(keys,
				  sequence->recent_rows + (position - sequence->packed_end) * width,
				  row);
		}
		if (!layout->rope_rotated)
			qmk_cpu_keys_rotate(keys, t, layout->rope_dim / 2,
					    row + layout->content_dim);
	}
	if (!layout->rope_rotated)
		next_block(keys);
}

void qmk_cpu_keys_order_query(const struct qmk_cpu_keys *keys, const float *query, float factor,
			      float *out)
{
	qmk_cpu_keys_pair(query, keys->args->layout->rope_dim, keys->half_split, factor, out);
}
