/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * XXH64 on the device, for inputs of a multiple of 8 bytes at 8-byte-aligned
 * addresses. Source: xxHash specification 0.1.1, XXH64
 * (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
 */
#ifndef QMK_CUDA_XXH64_CUH
#define QMK_CUDA_XXH64_CUH

#include <stdint.h>

#define QMK_XXH_P1 0x9E3779B185EBCA87ull
#define QMK_XXH_P2 0xC2B2AE3D27D4EB4Full
#define QMK_XXH_P3 0x165667B19E3779F9ull
#define QMK_XXH_P4 0x85EBCA77C2B2AE63ull
#define QMK_XXH_P5 0x27D4EB2F165667C5ull

static __device__ __forceinline__ uint64_t qmk_xxh_rotate(uint64_t x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static __device__ __forceinline__ uint64_t qmk_xxh_round(uint64_t accumulator, uint64_t lane)
{
	return qmk_xxh_rotate(accumulator + lane * QMK_XXH_P2, 31) * QMK_XXH_P1;
}

static __device__ __forceinline__ uint64_t qmk_xxh_join(uint64_t hash, uint64_t accumulator)
{
	return (hash ^ qmk_xxh_round(0, accumulator)) * QMK_XXH_P1 + QMK_XXH_P4;
}

static __device__ __forceinline__ uint64_t qmk_xxh64(const uint64_t *words, uint32_t count,
						     uint64_t seed)
{
	uint64_t hash = seed + QMK_XXH_P5;
	uint32_t i = 0;

	if (count >= 4) {
		uint64_t a = seed + QMK_XXH_P1 + QMK_XXH_P2;
		uint64_t b = seed + QMK_XXH_P2;
		uint64_t c = seed;
		uint64_t d = seed - QMK_XXH_P1;

		for (; i + 4 <= count; i += 4) {
			a = qmk_xxh_round(a, words[i]);
			b = qmk_xxh_round(b, words[i + 1]);
			c = qmk_xxh_round(c, words[i + 2]);
			d = qmk_xxh_round(d, words[i + 3]);
		}
		hash = qmk_xxh_rotate(a, 1) + qmk_xxh_rotate(b, 7) + qmk_xxh_rotate(c, 12) +
		       qmk_xxh_rotate(d, 18);
		hash = qmk_xxh_join(hash, a);
		hash = qmk_xxh_join(hash, b);
		hash = qmk_xxh_join(hash, c);
		hash = qmk_xxh_join(hash, d);
	}
	hash += (uint64_t)count * 8;
	for (; i < count; i++)
		hash = qmk_xxh_rotate(hash ^ qmk_xxh_round(0, words[i]), 27) * QMK_XXH_P1 +
		       QMK_XXH_P4;
	hash = (hash ^ hash >> 33) * QMK_XXH_P2;
	hash = (hash ^ hash >> 29) * QMK_XXH_P3;
	return hash ^ hash >> 32;
}

#endif /* QMK_CUDA_XXH64_CUH */
