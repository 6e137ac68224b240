/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/variant.h"

/*
 * Absorbed MLA attention over pages. Query rows (tokens times heads) are taken in
 * groups that fit a core's cache; for each group the sequence's keys go by once, a
 * tile at a time: each page is turned into floats once for all the group's rows.
 * Tiles begin at the same positions whatever the request, so a token's result
 * depends neither on the batch nor on the chunking.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attend_keys.h"
#include "kernels/cpu/attend_math.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/page.h"
#include "kernels/numeric.h"

#define GROUP_ROWS 128u /* query rows that share one pass over the keys */
#define LOG2_E     1.44269504088896340736f

struct attention {
	const struct qmk_attend_args *args;
	struct qmk_cpu_keys keys;
	struct qmk_cpu_rows rows;
	float *staging; /* one row in natural order */
};

static uint32_t group_queries(uint32_t heads)
{
	return heads >= GROUP_ROWS ? 1 : GROUP_ROWS / heads;
}

/* Most rows of a group, with padding. */
static size_t group_rows(const struct qmk_attend_args *args)
{
	uint32_t queries = group_queries(args->heads);
	size_t rows = (size_t)(queries < args->rows ? queries : args->rows) * args->heads;

	return (rows + QMK_ATTEND_ROWS - 1) / QMK_ATTEND_ROWS * QMK_ATTEND_ROWS;
}

/* Floats of each part are multiples of a cache line's. */
static size_t line_floats(size_t floats)
{
	return qmk_cpu_lines(floats * sizeof(float)) / sizeof(float);
}

size_t qmk_cpu_attend_workspace(const struct qmk_attend_args *args)
{
	size_t rows, width, floats;

	if (!args || !args->layout || args->heads == 0)
		return 0;
	rows = group_rows(args);
	width = args->layout->content_dim + args->layout->rope_dim;
	floats = line_floats(qmk_cpu_keys_scratch(args->layout)) + rows * width +
		 rows * args->layout->content_dim + rows * QMK_TILE + 4 * line_floats(rows) +
		 line_floats(width);
	return floats * sizeof(float) + QMK_CPU_LINE;
}

static void place(struct attention *self, const struct qmk_attend_args *args)
{
	float *at = (float *)qmk_cpu_lines((uintptr_t)args->workspace);
	size_t rows = group_rows(args);

	self->args = args;
	self->rows.values = args->layout->content_dim;
	self->rows.width = args->layout->content_dim + args->layout->rope_dim;
	qmk_cpu_keys_init(&self->keys, args, at);
	at += line_floats(qmk_cpu_keys_scratch(args->layout));
	self->rows.query = at;
	at += rows * self->rows.width;
	self->rows.output = at;
	at += rows * self->rows.values;
	self->rows.score = at;
	at += rows * QMK_TILE;
	self->rows.peak = at;
	at += line_floats(rows);
	self->rows.sum = at;
	at += line_floats(rows);
	self->rows.shrink = at;
	at += line_floats(rows);
	self->rows.end = (uint32_t *)at;
	at += line_floats(rows);
	self->staging = at;
}

static const float *widen(const void *array, size_t at, uint32_t count, enum qmk_dtype dtype,
			  float *staging)
{
	if (dtype == QMK_F32)
		return (const float *)array + at;
	for (uint32_t i = 0; i < count; i++)
		staging[i] = qmk_bf16_to_float(((const uint16_t *)array)[at + i]);
	return staging;
}

/* Queries in the keys' order, with the softmax scale for base 2 multiplied in. */
static void load_queries(struct attention *self, size_t first_row, size_t count)
{
	const struct qmk_attend_args *args = self->args;
	const struct qmk_layout *layout = args->layout;
	float factor = args->scale * LOG2_E;

	for (size_t r = 0; r < count; r++) {
		float *query = self->rows.query + r * self->rows.width;
		const float *from =
			widen(args->query_content, (first_row + r) * layout->content_dim,
			      layout->content_dim, args->query_dtype, self->staging);

		qmk_cpu_slice(from, layout->content_dim, 8 / layout->content_bits, factor, query);
		from = widen(args->query_rope, (first_row + r) * layout->rope_dim, layout->rope_dim,
			     args->query_dtype, self->staging);
		qmk_cpu_keys_pair(from, layout->rope_dim, self->keys.half_split, factor,
				  query + layout->content_dim);
	}
	memset(self->rows.query + count * self->rows.width, 0,
	       (self->rows.rows - count) * self->rows.width * sizeof(float));
}

static void clear_rows(const struct qmk_cpu_rows *rows)
{
	memset(rows->output, 0, (size_t)rows->rows * rows->values * sizeof(float));
	memset(rows->sum, 0, rows->rows * sizeof(float));
	for (uint32_t r = 0; r < rows->rows; r++)
		rows->peak[r] = -INFINITY;
}

static void store_output(const struct attention *self, size_t row, const float *values)
{
	const struct qmk_attend_args *args = self->args;
	uint32_t dim = args->layout->content_dim;

	if (args->output_dtype == QMK_F32) {
		memcpy((float *)args->output + row * dim, values, dim * sizeof(float));
		return;
	}
	for (uint32_t i = 0; i < dim; i++)
		((uint16_t *)args->output)[row * dim + i] = qmk_float_to_bf16(values[i]);
}

static void finish_rows(const struct attention *self, size_t first_row, size_t count)
{
	const struct qmk_attend_args *args = self->args;
	const struct qmk_layout *layout = args->layout;
	const float *mean = qmk_check_constants(layout, args->constants)->content_mean;

	for (size_t r = 0; r < count; r++) {
		float *output = self->rows.output + r * self->rows.values;
		float sum = self->rows.sum[r], share = sum == 0 ? 0 : 1 / sum;

		for (uint32_t i = 0; i < layout->content_dim; i++)
			output[i] *= share;
		qmk_cpu_unslice(output, layout->content_dim, 8 / layout->content_bits,
				self->staging);
		if (mean && sum != 0)
			for (uint32_t i = 0; i < layout->content_dim; i++)
				self->staging[i] += mean[i];
		store_output(self, first_row + r, self->staging);
		if (args->lse)
			args->lse[first_row + r] =
				sum == 0 ? -INFINITY : self->rows.peak[r] + log2f(sum);
	}
}

/* Where each row stops seeing in the tile that starts at @p base. */
static void set_ends(const struct attention *self, const struct qmk_sequence *sequence,
		     uint32_t first, uint32_t queries, uint32_t stop, uint32_t base)
{
	uint32_t before = sequence->total - sequence->queries + first;

	for (uint32_t r = 0; r < self->rows.rows; r++) {
		uint32_t query = r / self->args->heads;
		uint32_t end = before + 1 + (query < queries ? query : queries - 1);

		end = end < stop ? end : stop;
		end = end > base ? end - base : 0;
		self->rows.end[r] = end < QMK_TILE ? end : QMK_TILE;
	}
}

/* Queries first … first + queries - 1 of a sequence, all heads. */
static void attend_group(struct attention *self, const struct qmk_sequence *sequence,
			 uint32_t first, uint32_t queries)
{
	uint32_t heads = self->args->heads, count = queries * heads;
	uint32_t stop = sequence->key_end ? sequence->key_end : sequence->total;
	uint32_t seen = sequence->total - sequence->queries + first + queries;
	uint32_t last = seen < stop ? seen : stop, begin = sequence->key_begin;
	size_t row = ((size_t)sequence->query_row + first) * heads;

	self->rows.rows = (count + QMK_ATTEND_ROWS - 1) / QMK_ATTEND_ROWS * QMK_ATTEND_ROWS;
	load_queries(self, row, count);
	clear_rows(&self->rows);
	qmk_cpu_keys_begin(&self->keys, sequence, begin);
	while (begin < last) {
		uint32_t base = begin / QMK_TILE * QMK_TILE;
		uint32_t end = last - base < QMK_TILE ? last : base + QMK_TILE;

		set_ends(self, sequence, first, queries, stop, base);
		qmk_cpu_keys_load(&self->keys, begin, end);
		qmk_cpu_attend_score(&self->rows, self->keys.rows, begin - base, end - base);
		qmk_cpu_attend_softmax(&self->rows, begin - base);
		qmk_cpu_attend_accumulate(&self->rows, self->keys.rows, begin - base, end - base);
		begin = end;
	}
	finish_rows(self, row, count);
}

static const char *sequence_fault(const struct qmk_attend_args *args,
				  const struct qmk_sequence *sequence)
{
	uint32_t stop = sequence->key_end ? sequence->key_end : sequence->total;

	if (sequence->queries == 0 || sequence->queries > sequence->total)
		return "a sequence's queries are none or more than its tokens";
	if (sequence->query_row > args->rows ||
	    args->rows - sequence->query_row < sequence->queries)
		return "a sequence's query rows are outside the query array";
	if (sequence->packed_end > sequence->total || sequence->sink > sequence->packed_end)
		return "a sequence's sink, packed and total lengths are out of order";
	if (stop > sequence->total || sequence->key_begin > stop)
		return "a sequence's part of the keys is outside its tokens";
	if (sequence->total > UINT32_MAX - QMK_PAGE_TOKENS)
		return "a sequence is too long";
	if (sequence->sink > 0 && !sequence->sink_rows)
		return "a sequence has sink tokens and no rows for them";
	if (sequence->packed_end > sequence->sink && !args->block_table)
		return "a sequence has packed tokens and there is no block table";
	if (sequence->total > sequence->packed_end && !sequence->recent_rows)
		return "a sequence has recent tokens and no rows for them";
	return NULL;
}

static bool uses_pages(const struct qmk_attend_args *args)
{
	for (uint32_t b = 0; b < args->batch; b++)
		if (args->sequences[b].packed_end > args->sequences[b].sink)
			return true;
	return false;
}

static bool dtype_known(enum qmk_dtype dtype)
{
	return dtype == QMK_F32 || dtype == QMK_BF16;
}

static qmla_status_t check(const struct qmk_attend_args *args)
{
	const struct qmk_layout *layout = args->layout;

	if (!layout || !args->sequences || !args->query_content || !args->query_rope ||
	    !args->output || args->heads == 0)
		return qmk_check_reject("attend", "an argument is missing");
	if (args->layer >= layout->layers)
		return qmk_check_reject("attend", "the layer is outside the layout");
	if (!dtype_known(args->query_dtype) || !dtype_known(args->output_dtype))
		return qmk_check_reject("attend", "unknown element type");
	if (!layout->rope_rotated && (!args->rope || !args->rope->inv_freq))
		return qmk_check_reject("attend", "keys are stored before rotation and no RoPE "
						  "parameters are given");
	if (!args->workspace || args->workspace_bytes < qmk_cpu_attend_workspace(args))
		return qmk_check_reject("attend",
					"the workspace is smaller than attend_workspace()");
	for (uint32_t b = 0; b < args->batch; b++) {
		const char *fault = sequence_fault(args, &args->sequences[b]);

		if (fault)
			return qmk_check_reject("attend", fault);
	}
	if (uses_pages(args) && !qmk_check_pool("attend", layout, &args->pool))
		return QMLA_ERR_INVALID_ARGUMENT;
	return QMLA_OK;
}

qmla_status_t qmk_cpu_attend(const struct qmk_attend_args *args)
{
	struct attention self = {0};
	qmla_status_t status;
	uint32_t step;

	if (!args)
		return qmk_check_reject("attend", "no arguments");
	if (args->batch == 0)
		return QMLA_OK;
	status = check(args);
	if (status != QMLA_OK)
		return status;
	place(&self, args);
	step = group_queries(args->heads);
	for (uint32_t b = 0; b < args->batch; b++) {
		const struct qmk_sequence *sequence = &args->sequences[b];

		for (uint32_t first = 0; first < sequence->queries; first += step) {
			uint32_t left = sequence->queries - first;

			attend_group(&self, sequence, first, left < step ? left : step);
		}
	}
	return QMLA_OK;
}
