/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Codes between a page's rows (nibbles or bit pairs, 16-byte chunks permuted) and
 * plain arrays. "Sliced order" is the order in which a row unpacks without
 * shuffling: within each chunk of 16 bytes the first field (lowest bits) of all
 * 16 bytes, then the second field, and so on. Coordinate k, with p = 8 / bits
 * fields a byte, stands at (k / 16p) 16p + (k % p) 16 + (k % 16p) / p.
 * Pure; any thread.
 */
#ifndef QMK_CPU_CODES_H
#define QMK_CPU_CODES_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"

#define QMK_CHUNK_BYTES 16u

/** Place of coordinate @p k in sliced order, @p fields codes a byte. */
static inline uint32_t qmk_sliced_place(uint32_t k, uint32_t fields)
{
	uint32_t span = QMK_CHUNK_BYTES * fields;
	uint32_t within = k % span;

	return k - within + within % fields * QMK_CHUNK_BYTES + within / fields;
}

/** Writes 64 rows of codes from @p codes [dim][64]; @p bytes is scratch [row_bytes][64]. */
void qmk_cpu_codes_pack(const uint8_t *codes, uint32_t dim, uint32_t bits, uint8_t *bytes,
			uint8_t *rows);

/** A plane's rows of codes and where their values go. */
struct qmk_cpu_codes {
	const uint8_t *rows; /**< the plane: row of token 0 */
	uint32_t row_bytes;
	uint32_t bits;      /**< 4 or 2 */
	float *out;         /**< values of token `begin` of qmk_cpu_codes_unpack */
	size_t stride;      /**< floats between tokens */
	const float *scale; /**< [64], by token; NULL: ones */
	float middle;
};

/** Values of tokens [begin, end) in sliced order: (code - middle) scale[token]. */
void qmk_cpu_codes_unpack(const struct qmk_cpu_codes *codes, uint32_t begin, uint32_t end);

#endif /* QMK_CPU_CODES_H */
