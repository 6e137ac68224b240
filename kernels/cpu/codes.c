/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/codes.h"

#include <stddef.h>

#include "kernels/cpu/target.h"

#define TOKENS QMK_PAGE_TOKENS

QMK_CLONES
void qmk_cpu_codes_join(const uint8_t *codes, uint32_t row_bytes, uint32_t bits, uint8_t *bytes);

/* The fields of each byte of a row, 64 tokens at a time. */
QMK_CLONES
void qmk_cpu_codes_join(const uint8_t *codes, uint32_t row_bytes, uint32_t bits, uint8_t *bytes)
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

	qmk_cpu_codes_join(codes, row_bytes, bits, bytes);
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

static inline __attribute__((always_inline)) void unpack_field(const uint8_t *chunk, unsigned shift,
							       unsigned mask, float middle,
							       float scale, float *out)
{
	for (unsigned i = 0; i < QMK_CHUNK_BYTES; i++)
		out[i] = ((float)(int32_t)(chunk[i] >> shift & mask) - middle) * scale;
}

QMK_CLONES
void qmk_cpu_codes_unpack(const uint8_t *row, uint32_t row_bytes, uint32_t bits, uint32_t token,
			  float middle, float scale, float *out)
{
	uint32_t chunks = row_bytes / QMK_CHUNK_BYTES;

	for (uint32_t c = 0; c < chunks; c++) {
		const uint8_t *chunk = row + QMK_CHUNK_BYTES * qmk_layout_chunk(c, token, chunks);

		if (bits == 4) {
			unpack_field(chunk, 0, 15, middle, scale, out);
			unpack_field(chunk, 4, 15, middle, scale, out + 16);
			out += 32;
		} else {
			unpack_field(chunk, 0, 3, middle, scale, out);
			unpack_field(chunk, 2, 3, middle, scale, out + 16);
			unpack_field(chunk, 4, 3, middle, scale, out + 32);
			unpack_field(chunk, 6, 3, middle, scale, out + 48);
			out += 64;
		}
	}
}
