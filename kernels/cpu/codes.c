/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/variant.h"

#include "kernels/cpu/codes.h"

#include "kernels/cpu/vector.h"

#define TOKENS QMK_PAGE_TOKENS

/* The fields of each byte of a row, 64 tokens at a time. */
static void join_fields(const uint8_t *codes, uint32_t row_bytes, uint32_t bits, uint8_t *bytes)
{
	uint32_t fields = 8 / bits;

	for (uint32_t j = 0; j < row_bytes; j++) {
		const uint8_t *from = codes + (size_t)j * fields * TOKENS;
		uint8_t *to = bytes + (size_t)j * TOKENS;

		for (unsigned t = 0; t < TOKENS; t++)
			to[t] = from[t];
		for (uint32_t f = 1; f < fields; f++)
			for (unsigned t = 0; t < TOKENS; t++)
				to[t] = (uint8_t)(to[t] | from[f * TOKENS + t] << (bits * f));
	}
}

void qmk_cpu_codes_pack(const uint8_t *codes, uint32_t dim, uint32_t bits, uint8_t *bytes,
			uint8_t *rows)
{
	uint32_t row_bytes = dim * bits / 8, chunks = row_bytes / QMK_CHUNK_BYTES;

	join_fields(codes, row_bytes, bits, bytes);
	for (uint32_t t = 0; t < TOKENS; t++) {
		uint8_t *row = rows + (size_t)t * row_bytes;

		for (uint32_t c = 0; c < chunks; c++) {
			uint8_t *to = row + QMK_CHUNK_BYTES * qmk_layout_chunk(c, t, chunks);
			const uint8_t *from = bytes + (size_t)c * QMK_CHUNK_BYTES * TOKENS + t;

			for (unsigned i = 0; i < QMK_CHUNK_BYTES; i++)
				to[i] = from[i * TOKENS];
		}
	}
}

/*
 * One field of each of a chunk's sixteen bytes. code scale and middle scale are
 * exact in float, so this fused form is (code - middle) scale to the last bit.
 */
QMK_INLINE void unpack_field(const uint8_t *chunk, uint8_t shift, uint8_t mask, float offset,
			     float scale, float *out)
{
	for (unsigned i = 0; i < QMK_CHUNK_BYTES; i += QMK_LANES) {
		qmk_octets fields = *(const qmk_octets_anywhere *)(chunk + i) >> shift & mask;
		qmk_vector values;

		values = __builtin_convertvector(__builtin_convertvector(fields, qmk_integers),
						 qmk_vector);
		values = values * scale - offset;
		qmk_vector_store(out + i, &values);
	}
}

QMK_INLINE void unpack_row(const uint8_t *row, uint32_t chunks, uint32_t bits, uint32_t token,
			   float offset, float scale, float *out)
{
	for (uint32_t c = 0; c < chunks; c++) {
		const uint8_t *chunk = row + QMK_CHUNK_BYTES * qmk_layout_chunk(c, token, chunks);

		if (bits == 4) {
			unpack_field(chunk, 0, 15, offset, scale, out);
			unpack_field(chunk, 4, 15, offset, scale, out + 16);
			out += 32;
		} else {
			unpack_field(chunk, 0, 3, offset, scale, out);
			unpack_field(chunk, 2, 3, offset, scale, out + 16);
			unpack_field(chunk, 4, 3, offset, scale, out + 32);
			unpack_field(chunk, 6, 3, offset, scale, out + 48);
			out += 64;
		}
	}
}

void qmk_cpu_codes_unpack(const struct qmk_cpu_codes *codes, uint32_t begin, uint32_t end)
{
	uint32_t chunks = codes->row_bytes / QMK_CHUNK_BYTES;

	for (uint32_t t = begin; t < end; t++) {
		const uint8_t *row = codes->rows + (size_t)t * codes->row_bytes;
		float *out = codes->out + (t - begin) * codes->stride;
		float scale = codes->scale ? codes->scale[t] : 1;
		float offset = codes->middle * scale;

		if (codes->bits == 4)
			unpack_row(row, chunks, 4, t, offset, scale, out);
		else
			unpack_row(row, chunks, 2, t, offset, scale, out);
	}
}
