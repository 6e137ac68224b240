/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page checksums. The chunks of a page are hashed eight at a time: XXH64 keeps
 * four running sums, so eight chunks fill four vectors of eight lanes, which are
 * then transposed so that each chunk's final mixing is one lane.
 * Algorithm: XXH64 as specified in xxHash's doc/xxhash_spec.md.
 */
#define XXH_STATIC_LINKING_ONLY /* for a state on the stack */
#include <xxhash.h>

#include "kernels/block.h"
#include "kernels/cpu/target.h"
#include "kernels/numeric.h"

#define CHUNK_BYTES 128u
#define BATCH       8u

typedef uint64_t lanes4 __attribute__((vector_size(32)));
typedef uint64_t lanes8 __attribute__((vector_size(64)));

#define PRIME_1 0x9E3779B185EBCA87u
#define PRIME_2 0xC2B2AE3D27D4EB4Fu
#define PRIME_3 0x165667B19E3779F9u
#define PRIME_4 0x85EBCA77C2B2AE63u

#define ROTATE(value, bits) ((value) << (bits) | (value) >> (64 - (bits)))
#define ROUND(value)        (ROTATE((value)*PRIME_2, 31) * PRIME_1)

/* Digests of chunks first … first + 7 at @p data. */
QMK_CLONES
void qmk_checksum_batch(const uint8_t *data, uint64_t first, uint64_t digests[BATCH]);

QMK_CLONES
void qmk_checksum_batch(const uint8_t *data, uint64_t first, uint64_t digests[BATCH])
{
	const lanes8 seeds = {PRIME_1 + PRIME_2,     PRIME_2,     0, 0 - PRIME_1,
			      PRIME_1 + PRIME_2 + 1, PRIME_2 + 1, 1, 1 - PRIME_1};
	lanes8 sum[BATCH / 2], value[4], hash;

	for (unsigned pair = 0; pair < BATCH / 2; pair++) {
		const uint8_t *even = data + 2 * pair * CHUNK_BYTES;

		sum[pair] = seeds + (first + 2 * pair);
		for (unsigned stripe = 0; stripe < CHUNK_BYTES / 32; stripe++) {
			lanes4 low, high;

			memcpy(&low, even + 32 * stripe, 32);
			memcpy(&high, even + CHUNK_BYTES + 32 * stripe, 32);
			sum[pair] += __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7) *
				     PRIME_2;
			sum[pair] = ROTATE(sum[pair], 31) * PRIME_1;
		}
	}
	/* value[k], lane c: running sum k of chunk c. */
	for (unsigned half = 0; half < 2; half++) {
		lanes8 low, high;

		if (half == 0) {
			low = __builtin_shufflevector(sum[0], sum[1], 0, 4, 8, 12, 1, 5, 9, 13);
			high = __builtin_shufflevector(sum[2], sum[3], 0, 4, 8, 12, 1, 5, 9, 13);
		} else {
			low = __builtin_shufflevector(sum[0], sum[1], 2, 6, 10, 14, 3, 7, 11, 15);
			high = __builtin_shufflevector(sum[2], sum[3], 2, 6, 10, 14, 3, 7, 11, 15);
		}
		value[2 * half] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11);
		value[2 * half + 1] =
			__builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
	}
	hash = ROTATE(value[0], 1) + ROTATE(value[1], 7) + ROTATE(value[2], 12) +
	       ROTATE(value[3], 18);
	for (unsigned k = 0; k < 4; k++)
		hash = (hash ^ ROUND(value[k])) * PRIME_1 + PRIME_4;
	hash += CHUNK_BYTES;
	hash = (hash ^ hash >> 33) * PRIME_2;
	hash = (hash ^ hash >> 29) * PRIME_3;
	hash ^= hash >> 32;
	memcpy(digests, &hash, sizeof(hash));
}

uint64_t qmk_page_checksum(const void *page, size_t bytes)
{
	const uint8_t *data = page;
	size_t chunks = bytes / CHUNK_BYTES, chunk = 0;
	uint64_t digests[BATCH];
	XXH64_state_t state;

	(void)XXH64_reset(&state, 0);
	for (; chunk + BATCH <= chunks; chunk += BATCH) {
		qmk_checksum_batch(data + chunk * CHUNK_BYTES, chunk, digests);
		(void)XXH64_update(&state, digests, sizeof(digests));
	}
	for (; chunk < chunks; chunk++) {
		uint64_t digest = XXH64(data + chunk * CHUNK_BYTES, CHUNK_BYTES, chunk);

		(void)XXH64_update(&state, &digest, sizeof(digest));
	}
	return XXH64_digest(&state);
}
