/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page checksums. With 64-bit vector products the chunks of a page are hashed eight
 * at a time: XXH64 keeps four running sums, so eight chunks fill four vectors of
 * eight lanes, which are then transposed so that each chunk's final mixing is one
 * lane. Algorithm: XXH64 as specified in xxHash's doc/xxhash_spec.md.
 */
#include "kernels/cpu/variant.h"

#define XXH_STATIC_LINKING_ONLY /* for a state on the stack */
#include <string.h>
#include <xxhash.h>

#include "kernels/cpu/cpu.h"

#define CHUNK_BYTES 128u
#define BATCH       8u

#if defined(__AVX512DQ__)

typedef uint64_t lanes4 __attribute__((vector_size(32)));
typedef lanes4 lanes4_anywhere __attribute__((aligned(1), may_alias));
typedef uint64_t lanes8 __attribute__((vector_size(64)));

#define PRIME_1 0x9E3779B185EBCA87u
#define PRIME_2 0xC2B2AE3D27D4EB4Fu
#define PRIME_3 0x165667B19E3779F9u
#define PRIME_4 0x85EBCA77C2B2AE63u

#define ROTATE(value, bits) ((value) << (bits) | (value) >> (64 - (bits)))
#define ROUND(value)        (ROTATE((value)*PRIME_2, 31) * PRIME_1)

/* Digests of chunks first … first + 7 at @p data. */
static void digest_batch(const uint8_t *data, uint64_t first, uint64_t digests[BATCH])
{
	const lanes8 seeds = {PRIME_1 + PRIME_2,     PRIME_2,     0, 0 - PRIME_1,
			      PRIME_1 + PRIME_2 + 1, PRIME_2 + 1, 1, 1 - PRIME_1};
	lanes8 sum[BATCH / 2], value[4], hash;

	for (unsigned pair = 0; pair < BATCH / 2; pair++) {
		const uint8_t *even = data + 2 * pair * CHUNK_BYTES;

		sum[pair] = seeds + (first + 2 * pair);
		for (unsigned stripe = 0; stripe < CHUNK_BYTES / 32; stripe++) {
			lanes4 low, high;

			low = *(const lanes4_anywhere *)(even + 32 * stripe);
			high = *(const lanes4_anywhere *)(even + CHUNK_BYTES + 32 * stripe);
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

#else

/* Digests of chunks first … first + 7 at @p data. */
static void digest_batch(const uint8_t *data, uint64_t first, uint64_t digests[BATCH])
{
	for (unsigned i = 0; i < BATCH; i++)
		digests[i] = XXH64(data + i * CHUNK_BYTES, CHUNK_BYTES, first + i);
}

#endif

uint64_t qmk_cpu_page_checksum(const void *page, size_t bytes)
{
	const uint8_t *data = page;
	size_t chunks = bytes / CHUNK_BYTES, chunk = 0;
	uint64_t digests[BATCH];
	XXH64_state_t state;

	(void)XXH64_reset(&state, 0);
	for (; chunk + BATCH <= chunks; chunk += BATCH) {
		digest_batch(data + chunk * CHUNK_BYTES, chunk, digests);
		(void)XXH64_update(&state, digests, sizeof(digests));
	}
	for (; chunk < chunks; chunk++) {
		uint64_t digest = XXH64(data + chunk * CHUNK_BYTES, CHUNK_BYTES, chunk);

		(void)XXH64_update(&state, &digest, sizeof(digest));
	}
	return XXH64_digest(&state);
}

qmla_status_t qmk_cpu_checksum(const struct qmk_checksum_args *args)
{
	const struct qmk_layout *layout = args ? args->layout : NULL;

	if (!layout || (args->blocks > 0 && (!args->slots || !args->checksums)))
		return qmk_check_reject("checksum", "an argument is missing");
	if (args->blocks == 0)
		return QMLA_OK;
	if (!qmk_check_pool("checksum", layout, &args->pool))
		return QMLA_ERR_INVALID_ARGUMENT;
	for (uint32_t b = 0; b < args->blocks; b++)
		for (uint32_t layer = 0; layer < layout->layers; layer++)
			args->checksums[(size_t)b * layout->layers + layer] = qmk_cpu_page_checksum(
				qmk_cpu_page(layout, &args->pool, args->slots[b], layer),
				layout->page_bytes);
	return QMLA_OK;
}
