/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/variant.h"

#include "kernels/cpu/attend_keys.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/page.h"
#include "kernels/cpu/vector.h"

#define TOKENS QMK_PAGE_TOKENS

size_t qmk_cpu_keys_scratch(const struct qmk_layout *layout)
{
	size_t width = layout->content_dim + layout->rope_dim;

	/* rows; sliced, mean, step_cos and _sin, turn_cos and _sin, turn and jump (doubles) */
	return QMK_TILE * width + (QMK_TILE + 1 + TOKENS + 1 + 4) * (size_t)layout->rope_dim;
}

void qmk_cpu_keys_pair(const float *natural, uint32_t dim, bool half_split, float factor,
		       float *out)
{
	for (uint32_t j = 0; j < dim / 2; j++) {
		out[j] = natural[half_split ? j : 2 * j] * factor;
		out[dim / 2 + j] = natural[half_split ? dim / 2 + j : 2 * j + 1] * factor;
	}
}

/*
 * Powers of the one-position rotation (in `jump` on entry) by repeated
 * multiplication in double: after 64 steps the error is some 1e-14, and it costs no
 * call of sin per token. `turn` holds the running power.
 */
static void fill_steps(const struct qmk_cpu_keys *keys, float amplitude, uint32_t pairs)
{
	const double *restrict one = keys->jump;
	double *restrict power = keys->turn;

	for (uint32_t j = 0; j < pairs; j++) {
		power[j] = 1;
		power[pairs + j] = 0;
	}
	for (uint32_t t = 0; t < TOKENS; t++) {
		float *restrict step_cos = keys->step_cos + (size_t)t * pairs;
		float *restrict step_sin = keys->step_sin + (size_t)t * pairs;

		for (uint32_t j = 0; j < pairs; j++) {
			double c = power[j], s = power[pairs + j];

			step_cos[j] = (float)c * amplitude;
			step_sin[j] = (float)s * amplitude;
			power[j] = c * one[j] - s * one[pairs + j];
			power[pairs + j] = s * one[j] + c * one[pairs + j];
		}
	}
}

static void build_steps(struct qmk_cpu_keys *keys, const struct qmk_rope *rope, uint32_t pairs)
{
	for (uint32_t j = 0; j < pairs; j++) {
		keys->jump[j] = cos((double)rope->inv_freq[j]);
		keys->jump[pairs + j] = sin((double)rope->inv_freq[j]);
	}
	fill_steps(keys, rope->amplitude, pairs);
	/* The running power is that of 64 positions now: one block. */
	memcpy(keys->jump, keys->turn, 2 * (size_t)pairs * sizeof(double));
}

void qmk_cpu_keys_init(struct qmk_cpu_keys *keys, const struct qmk_attend_args *args,
		       float *scratch)
{
	const struct qmk_layout *layout = args->layout;
	const struct qmk_constants *constants = qmk_check_constants(layout, args->constants);
	size_t dim = layout->rope_dim;

	*keys = (struct qmk_cpu_keys){.args = args};
	keys->half_split = layout->rope_rotated || args->rope->pairing == QMK_HALF_SPLIT;
	keys->rows = scratch;
	keys->sliced = keys->rows + QMK_TILE * (layout->content_dim + dim);
	keys->mean = keys->sliced + QMK_TILE * dim;
	keys->step_cos = keys->mean + dim;
	keys->step_sin = keys->step_cos + TOKENS * dim / 2;
	keys->turn_cos = keys->step_sin + TOKENS * dim / 2;
	keys->turn_sin = keys->turn_cos + dim / 2;
	keys->turn = (double *)(keys->turn_sin + dim / 2);
	keys->jump = keys->turn + dim;
	memset(keys->mean, 0, dim * sizeof(float));
	if (constants->rope_mean)
		qmk_cpu_keys_pair(constants->rope_mean, layout->rope_dim, keys->half_split, 1,
				  keys->mean);
	if (!layout->rope_rotated)
		build_steps(keys, args->rope, layout->rope_dim / 2);
}

void qmk_cpu_keys_begin(struct qmk_cpu_keys *keys, const struct qmk_sequence *sequence,
			uint32_t position)
{
	uint32_t pairs = keys->args->layout->rope_dim / 2, block = position / TOKENS;

	keys->sequence = sequence;
	keys->block = block;
	if (keys->args->layout->rope_rotated)
		return;
	for (uint32_t j = 0; j < pairs; j++) {
		double angle = (double)keys->args->rope->inv_freq[j] * TOKENS * block;

		keys->turn[j] = block == 0 ? 1 : cos(angle);
		keys->turn[pairs + j] = block == 0 ? 0 : sin(angle);
	}
}

/* Sliced RoPE values of packed tokens to their rows, in pair order. */
static void pair_packed(const struct qmk_cpu_keys *keys, uint32_t begin, uint32_t end)
{
	uint32_t content = keys->args->layout->content_dim, dim = keys->args->layout->rope_dim;

	for (uint32_t t = begin; t < end; t++) {
		const float *sliced = keys->sliced + (size_t)t * dim;
		float *out = keys->rows + (size_t)t * (content + dim) + content;

		if (keys->half_split) {
			qmk_cpu_unslice(sliced, dim, 2, out);
			continue;
		}
		/* A chunk's first fields are the first members of its pairs already. */
		for (uint32_t j = 0; j < dim / 2; j += QMK_LANES) {
			const float *chunk = sliced + j / 16 * 32 + j % 16;
			qmk_vector first, second;

			qmk_vector_load(&first, chunk);
			qmk_vector_load(&second, chunk + 16);
			qmk_vector_store(out + j, &first);
			qmk_vector_store(out + dim / 2 + j, &second);
		}
	}
}

static void pair_bf16(const struct qmk_cpu_keys *keys, const uint16_t *natural, float *out)
{
	uint32_t pairs = keys->args->layout->rope_dim / 2;

	for (uint32_t j = 0; j < pairs; j += QMK_LANES) {
		qmk_vector first, second;

		if (keys->half_split) {
			qmk_vector_load_bf16(&first, natural + j);
			qmk_vector_load_bf16(&second, natural + pairs + j);
		} else {
			qmk_vector_load_bf16_pairs(&first, &second, natural + 2 * j);
		}
		qmk_vector_store(out + j, &first);
		qmk_vector_store(out + pairs + j, &second);
	}
}

/* QMK_LANES pairs: mean added, rotated by the block's start and the token's step in it. */
QMK_INLINE void rotate_pairs(const struct qmk_cpu_keys *keys, uint32_t token, uint32_t pairs,
			     uint32_t j, float *key)
{
	qmk_vector step_cos, step_sin, turn_cos, turn_sin, x, y, mean, c, s;

	qmk_vector_load(&step_cos, keys->step_cos + (size_t)token * pairs + j);
	qmk_vector_load(&step_sin, keys->step_sin + (size_t)token * pairs + j);
	qmk_vector_load(&turn_cos, keys->turn_cos + j);
	qmk_vector_load(&turn_sin, keys->turn_sin + j);
	c = turn_cos * step_cos - turn_sin * step_sin;
	s = turn_sin * step_cos + turn_cos * step_sin;
	qmk_vector_load(&x, key + j);
	qmk_vector_load(&mean, keys->mean + j);
	x += mean;
	qmk_vector_load(&y, key + pairs + j);
	qmk_vector_load(&mean, keys->mean + pairs + j);
	y += mean;
	step_cos = x * c - y * s;
	step_sin = x * s + y * c;
	qmk_vector_store(key + j, &step_cos);
	qmk_vector_store(key + pairs + j, &step_sin);
}

/* Rows [begin, end); the first is token @p token of its block. */
static void rotate_rows(const struct qmk_cpu_keys *keys, uint32_t begin, uint32_t end,
			uint32_t token)
{
	uint32_t content = keys->args->layout->content_dim;
	uint32_t pairs = keys->args->layout->rope_dim / 2;

	for (uint32_t j = 0; j < pairs; j++) {
		keys->turn_cos[j] = (float)keys->turn[j];
		keys->turn_sin[j] = (float)keys->turn[pairs + j];
	}
	for (uint32_t t = begin; t < end; t++)
		for (uint32_t j = 0; j < pairs; j += QMK_LANES)
			rotate_pairs(keys, token + t - begin, pairs, j,
				     keys->rows + (size_t)t * (content + 2 * pairs) + content);
}

static void next_block(struct qmk_cpu_keys *keys)
{
	uint32_t pairs = keys->args->layout->rope_dim / 2;

	for (uint32_t j = 0; j < pairs; j++) {
		double c = keys->turn[j], s = keys->turn[pairs + j];

		keys->turn[j] = c * keys->jump[j] - s * keys->jump[pairs + j];
		keys->turn[pairs + j] = s * keys->jump[j] + c * keys->jump[pairs + j];
	}
	keys->block++;
}

/* The next page's bytes on their way while this one is worked on. */
static void prefetch_next(const struct qmk_cpu_keys *keys, uint32_t block)
{
	const struct qmk_attend_args *args = keys->args;
	const uint8_t *page;

	if ((uint64_t)(block + 1) * TOKENS >= keys->sequence->packed_end)
		return;
	page = qmk_cpu_page(args->layout, &args->pool,
			    args->block_table[keys->sequence->table_start + block + 1],
			    args->layer);
	for (uint32_t at = 0; at < args->layout->page_bytes; at += QMK_CPU_LINE)
		__builtin_prefetch(page + at);
}

/* Positions [begin, end) of one tile from their page. */
static void load_packed(const struct qmk_cpu_keys *keys, uint32_t begin, uint32_t end)
{
	const struct qmk_attend_args *args = keys->args;
	const struct qmk_layout *layout = args->layout;
	size_t width = layout->content_dim + layout->rope_dim;
	uint32_t slot = args->block_table[keys->sequence->table_start + begin / TOKENS];
	const uint8_t *page = qmk_cpu_page(layout, &args->pool, slot, args->layer);
	uint32_t token = begin % TOKENS, row = begin % QMK_TILE, count = end - begin;

	qmk_cpu_page_content(layout, page, token, token + count, keys->rows + row * width, width);
	qmk_cpu_page_rope(layout, page, token, token + count,
			  keys->sliced + (size_t)row * layout->rope_dim, layout->rope_dim);
	pair_packed(keys, row, row + count);
	prefetch_next(keys, begin / TOKENS);
}

static void load_bf16(const struct qmk_cpu_keys *keys, const uint16_t *from, uint32_t begin,
		      uint32_t end)
{
	const struct qmk_layout *layout = keys->args->layout;
	size_t width = layout->content_dim + layout->rope_dim;

	for (uint32_t p = begin; p < end; p++, from += width) {
		float *row = keys->rows + p % QMK_TILE * width;

		qmk_cpu_slice_bf16(from, layout->content_dim, 8 / layout->content_bits, row);
		pair_bf16(keys, from + layout->content_dim, row + layout->content_dim);
	}
}

static uint32_t bounded(uint32_t position, uint32_t begin, uint32_t end)
{
	uint32_t low = position > begin ? position : begin;

	return low < end ? low : end;
}

void qmk_cpu_keys_load(struct qmk_cpu_keys *keys, uint32_t begin, uint32_t end)
{
	const struct qmk_layout *layout = keys->args->layout;
	const struct qmk_sequence *sequence = keys->sequence;
	size_t width = layout->content_dim + layout->rope_dim;
	uint32_t sink = bounded(sequence->sink, begin, end);
	uint32_t packed = bounded(sequence->packed_end, begin, end);

	if (sink > begin)
		load_bf16(keys, sequence->sink_rows + begin * width, begin, sink);
	if (packed > sink)
		load_packed(keys, sink, packed);
	if (end > packed)
		load_bf16(keys, sequence->recent_rows + (packed - sequence->packed_end) * width,
			  packed, end);
	if (layout->rope_rotated)
		return;
	while (keys->block < begin / TOKENS)
		next_block(keys);
	rotate_rows(keys, begin % QMK_TILE, begin % QMK_TILE + end - begin, begin % TOKENS);
}
