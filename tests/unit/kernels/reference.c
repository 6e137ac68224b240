/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/dispatch.h"

const struct qmk_ops *ref_ops = &qmk_cpu_ops;

int ref_run_variants(int (*run)(const char *name))
{
	const struct qmk_cpu_table *table;
	int failed = 0;

	/* The best one under its public name, the others under their own. */
	failed += run(ref_ops->name);
	for (unsigned i = 1; (table = qmk_cpu_variant(i)); i++) {
		ref_ops = &table->ops;
		failed += run(ref_ops->name);
	}
	return failed;
}

#define GUARD_BYTES 256u
#define GUARD_VALUE 0xA5u

uint64_t ref_random_next(struct ref_random *random)
{
	uint64_t z = random->state += 0x9E3779B97F4A7C15u;

	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
	z = (z ^ z >> 27) * 0x94D049BB133111EBu;
	return z ^ z >> 31;
}

uint32_t ref_random_below(struct ref_random *random, uint32_t limit)
{
	return (uint32_t)(ref_random_next(random) % limit);
}

double ref_random_normal(struct ref_random *random)
{
	double u = ((double)(ref_random_next(random) >> 11) + 1) * 0x1p-53;
	double v = (double)(ref_random_next(random) >> 11) * 0x1p-53;

	return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* [size][guard][memory][guard]; the size stands a whole guard before the memory. */
void *ref_alloc(size_t bytes, uint8_t fill)
{
	size_t whole = (bytes + 2 * GUARD_BYTES + 127) / 128 * 128;
	uint8_t *base = aligned_alloc(128, whole + 128);

	assert_non_null(base);
	memset(base, GUARD_VALUE, whole + 128);
	memcpy(base, &bytes, sizeof(bytes));
	memset(base + GUARD_BYTES, fill, bytes);
	return base + GUARD_BYTES;
}

void ref_free(void *memory)
{
	uint8_t *base;
	size_t bytes;

	if (!memory)
		return;
	base = (uint8_t *)memory - GUARD_BYTES;
	memcpy(&bytes, base, sizeof(bytes));
	for (size_t i = sizeof(bytes); i < GUARD_BYTES; i++)
		assert_int_equal(base[i], GUARD_VALUE);
	for (size_t i = 0; i < GUARD_BYTES; i++)
		assert_int_equal(base[GUARD_BYTES + bytes + i], GUARD_VALUE);
	free(base);
}

double ref_half(uint16_t bits)
{
	int exponent = bits >> 10 & 31, mantissa = bits & 1023;
	double magnitude;

	if (exponent == 31)
		magnitude = mantissa ? NAN : INFINITY;
	else if (exponent == 0)
		magnitude = ldexp(mantissa, -24);
	else
		magnitude = ldexp(1024 + mantissa, exponent - 25);
	return bits >> 15 ? -magnitude : magnitude;
}

double ref_bfloat(uint16_t bits)
{
	int exponent = bits >> 7 & 255, mantissa = bits & 127;
	double magnitude;

	if (exponent == 255)
		magnitude = mantissa ? NAN : INFINITY;
	else if (exponent == 0)
		magnitude = ldexp(mantissa, -133);
	else
		magnitude = ldexp(128 + mantissa, exponent - 134);
	return bits >> 15 ? -magnitude : magnitude;
}

/*
 * Nearest by search: the finite values of either format, as magnitudes, are
 * ordered like their bit patterns; at a tie the even pattern is taken.
 */
static uint16_t nearest(double value, double (*decode)(uint16_t), uint16_t infinity)
{
	uint16_t sign = signbit(value) ? 0x8000u : 0, low = 0, high = infinity;
	double magnitude = fabs(value);
	double top = decode((uint16_t)(infinity - 1)), below = decode((uint16_t)(infinity - 2));

	if (isnan(value))
		return infinity | 0x200u;
	/* What infinity would be if the exponent went on decides the last tie. */
	if (magnitude >= top + (top - below) / 2)
		return sign | infinity;
	while (high - low > 1) {
		uint16_t middle = (uint16_t)((low + high) / 2);

		if (decode(middle) <= magnitude)
			low = middle;
		else
			high = middle;
	}
	if (high < infinity) {
		double down = magnitude - decode(low), up = decode(high) - magnitude;

		if (up < down || (up == down && (low & 1)))
			low = high;
	}
	return sign | low;
}

uint16_t ref_to_half(double value)
{
	return nearest(value, ref_half, 0x7c00u);
}

uint16_t ref_to_bfloat(double value)
{
	return nearest(value, ref_bfloat, 0x7f80u);
}

unsigned ref_code(const uint8_t *plane, uint32_t dim, uint32_t bits, uint32_t t, uint32_t k)
{
	uint32_t per_byte = 8 / bits, row_bytes = dim / per_byte, chunks = row_bytes / 16;
	uint32_t byte = k / per_byte, chunk = byte / 16, power = 1;
	uint32_t twist = (t % 2) * 4 + (t / 2 % 2) * 2 + t / 4 % 2;

	while (chunks % (2 * power) == 0)
		power *= 2;
	chunk ^= twist % power;
	return (unsigned)plane[t * row_bytes + chunk * 16 + byte % 16] >> (k % per_byte * bits) &
	       ((1u << bits) - 1);
}

static uint16_t load16(const uint8_t *at)
{
	return (uint16_t)(at[0] | at[1] << 8);
}

static double load_float(const uint8_t *at)
{
	uint32_t bits =
		at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
	float value;

	memcpy(&value, &bits, sizeof(value));
	return (double)value;
}

static void paper_token(const struct qmk_layout *layout, const uint8_t *page, uint32_t t,
			double *content, double *rope)
{
	uint32_t groups = layout->content_dim / 64, rope_groups = layout->rope_dim == 128 ? 2 : 1;
	const uint8_t *rope_plane = page + 64 * layout->content_dim / 2;
	const uint8_t *record = rope_plane + 64 * layout->rope_dim / 2 +
				t * ((3 * groups + 5 * rope_groups + 31) / 32 * 32);
	const uint8_t *zeros = record + 2 * groups + 4 * rope_groups;

	for (uint32_t k = 0; k < layout->content_dim; k++)
		content[k] = ref_bfloat(load16(record + k / 64 * 2)) *
			     ((double)ref_code(page, layout->content_dim, 4, t, k) - zeros[k / 64]);
	for (uint32_t k = 0; k < layout->rope_dim; k++)
		rope[k] = load_float(record + 2 * groups + k / 64 * 4) *
			  ((double)ref_code(rope_plane, layout->rope_dim, 4, t, k) -
			   zeros[groups + k / 64]);
}

void ref_page_token(const struct qmk_layout *layout, const uint8_t *page, uint32_t t,
		    double *content, double *rope)
{
	uint32_t bits = layout->format == QMK_FORMAT_C2R4 ? 2 : 4;
	const uint8_t *rope_plane = page + 64 * layout->content_dim * bits / 8;
	const uint8_t *scales = rope_plane + 64 * layout->rope_dim / 2;

	if (layout->format == QMK_FORMAT_PAPER_C4R4) {
		paper_token(layout, page, t, content, rope);
		return;
	}
	for (uint32_t k = 0; k < layout->content_dim; k++)
		content[k] = ref_half(load16(scales + 2 * t)) *
			     ((double)ref_code(page, layout->content_dim, bits, t, k) -
			      (bits == 4 ? 7.5 : 1.5));
	for (uint32_t k = 0; k < layout->rope_dim; k++)
		rope[k] = ref_half(load16(scales + 128 + 2 * t)) *
			  ((double)ref_code(rope_plane, layout->rope_dim, 4, t, k) - 7.5);
}

void ref_page_random(const struct qmk_layout *layout, struct ref_random *random, uint8_t *page)
{
	uint32_t codes = 64 * (layout->content_row_bytes + layout->rope_row_bytes);

	for (uint32_t i = 0; i < layout->page_bytes; i++)
		page[i] = (uint8_t)ref_random_next(random);
	if (layout->format != QMK_FORMAT_PAPER_C4R4) {
		for (uint32_t i = 0; i < 128; i++) {
			uint16_t scale = ref_to_half(0.05 + 0.001 * ref_random_below(random, 400));

			page[codes + 2 * i] = (uint8_t)scale;
			page[codes + 2 * i + 1] = (uint8_t)(scale >> 8);
		}
		return;
	}
	for (uint32_t t = 0; t < 64; t++) {
		uint32_t groups = layout->content_dim / 64;
		uint32_t rope_groups = layout->rope_dim == 128 ? 2 : 1;
		uint8_t *record = page + codes + t * layout->record_bytes;

		for (uint32_t g = 0; g < groups; g++) {
			uint16_t scale =
				ref_to_bfloat(0.05 + 0.001 * ref_random_below(random, 400));

			record[2 * g] = (uint8_t)scale;
			record[2 * g + 1] = (uint8_t)(scale >> 8);
		}
		for (uint32_t g = 0; g < rope_groups; g++) {
			float scale = 0.05f + 0.001f * (float)ref_random_below(random, 400);

			memcpy(record + 2 * groups + 4 * g, &scale, 4);
		}
		for (uint32_t g = 0; g < groups + rope_groups; g++)
			record[2 * groups + 4 * rope_groups + g] %= 16;
	}
}

/* Key of one position in natural order, mean of the RoPE part added and rotated. */
static void sequence_key(const struct qmk_attend_args *args, const struct qmk_sequence *sequence,
			 uint32_t position, double *content, double *rope)
{
	const struct qmk_layout *layout = args->layout;
	uint32_t width = layout->content_dim + layout->rope_dim, pairs = layout->rope_dim / 2;
	const uint16_t *row = NULL;

	if (position < sequence->sink)
		row = sequence->sink_rows + (size_t)position * width;
	else if (position >= sequence->packed_end)
		row = sequence->recent_rows + (size_t)(position - sequence->packed_end) * width;
	if (row) {
		for (uint32_t k = 0; k < layout->content_dim; k++)
			content[k] = ref_bfloat(row[k]);
		for (uint32_t k = 0; k < layout->rope_dim; k++)
			rope[k] = ref_bfloat(row[layout->content_dim + k]);
	} else {
		uint32_t slot = args->block_table[sequence->table_start + position / 64];
		const uint8_t *page = (const uint8_t *)args->pool.base + slot * args->pool.stride +
				      layout->header_bytes +
				      (size_t)args->layer * layout->page_bytes;

		ref_page_token(layout, page, position % 64, content, rope);
	}
	if (layout->format == QMK_FORMAT_PAPER_C4R4)
		return;
	if (args->constants && args->constants->rope_mean)
		for (uint32_t k = 0; k < layout->rope_dim; k++)
			rope[k] += (double)args->constants->rope_mean[k];
	for (uint32_t j = 0; j < pairs; j++) {
		bool half = args->rope->pairing == QMK_HALF_SPLIT;
		double *x = &rope[half ? j : 2 * j], *y = &rope[half ? j + pairs : 2 * j + 1];
		double angle = position * (double)args->rope->inv_freq[j], first = *x, second = *y;
		double c = cos(angle) * (double)args->rope->amplitude;
		double s = sin(angle) * (double)args->rope->amplitude;

		*x = first * c - second * s;
		*y = first * s + second * c;
	}
}

static double query_at(const void *array, enum qmk_dtype dtype, size_t index)
{
	return dtype == QMK_F32 ? (double)((const float *)array)[index]
				: ref_bfloat(((const uint16_t *)array)[index]);
}

/* One query row and head over keys [begin, end) given as [n][d_c + d_r]. */
static double attend_one(const struct qmk_attend_args *args, size_t row, const double *keys,
			 uint32_t count, double *output)
{
	const struct qmk_layout *layout = args->layout;
	uint32_t content = layout->content_dim, width = content + layout->rope_dim;
	double *score = malloc((count + 1 + width) * sizeof(double)), *query = score + count + 1;
	double peak = -INFINITY, sum = 0;
	bool mean = layout->format != QMK_FORMAT_PAPER_C4R4 && args->constants &&
		    args->constants->content_mean;

	assert_non_null(score);
	for (uint32_t k = 0; k < content; k++)
		query[k] = query_at(args->query_content, args->query_dtype, row * content + k);
	for (uint32_t k = 0; k < layout->rope_dim; k++)
		query[content + k] =
			query_at(args->query_rope, args->query_dtype, row * layout->rope_dim + k);
	for (uint32_t n = 0; n < count; n++) {
		score[n] = 0;
		for (uint32_t k = 0; k < width; k++)
			score[n] += query[k] * keys[(size_t)n * width + k];
		score[n] *= (double)args->scale;
		peak = fmax(peak, score[n]);
	}
	memset(output, 0, content * sizeof(double));
	for (uint32_t n = 0; n < count; n++)
		sum += exp(score[n] - peak);
	for (uint32_t n = 0; n < count; n++) {
		double weight = exp(score[n] - peak) / sum;

		for (uint32_t k = 0; k < content; k++)
			output[k] += weight * keys[(size_t)n * width + k];
	}
	for (uint32_t k = 0; count > 0 && mean && k < content; k++)
		output[k] += (double)args->constants->content_mean[k];
	free(score);
	return count > 0 ? (peak + log(sum)) / log(2) : -INFINITY;
}

void ref_attend(const struct qmk_attend_args *args, double *output, double *lse)
{
	const struct qmk_layout *layout = args->layout;
	size_t width = layout->content_dim + layout->rope_dim;

	for (uint32_t b = 0; b < args->batch; b++) {
		const struct qmk_sequence *sequence = &args->sequences[b];
		uint32_t stop = sequence->key_end ? sequence->key_end : sequence->total;
		double *keys = malloc((sequence->total + 1) * width * sizeof(double));

		assert_non_null(keys);
		for (uint32_t p = sequence->key_begin; p < stop; p++)
			sequence_key(args, sequence, p, keys + p * width,
				     keys + p * width + layout->content_dim);
		for (uint32_t i = 0; i < sequence->queries; i++) {
			uint32_t end = sequence->total - sequence->queries + i + 1;

			end = end < stop ? end : stop;
			for (uint32_t h = 0; h < args->heads; h++) {
				size_t row = ((size_t)sequence->query_row + i) * args->heads + h;

				lse[row] = attend_one(
					args, row, keys + sequence->key_begin * width,
					end > sequence->key_begin ? end - sequence->key_begin : 0,
					output + row * layout->content_dim);
			}
		}
		free(keys);
	}
}
