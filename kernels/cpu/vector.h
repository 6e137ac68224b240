/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Sixteen floats as one value (GCC and clang vector extension): one AVX-512
 * register, two of AVX, four of SSE. Passed by pointer, so that no calling
 * convention depends on the target.
 */
#ifndef QMK_CPU_VECTOR_H
#define QMK_CPU_VECTOR_H

#include <stdint.h>
#include <string.h>

#define QMK_LANES 16u

#define QMK_INLINE static inline __attribute__((always_inline))

typedef float qmk_vector __attribute__((vector_size(64)));
typedef int32_t qmk_integers __attribute__((vector_size(64)));
typedef uint32_t qmk_words __attribute__((vector_size(64)));
typedef uint16_t qmk_halves __attribute__((vector_size(32)));
typedef uint8_t qmk_octets __attribute__((vector_size(16)));

QMK_INLINE void qmk_vector_load(qmk_vector *vector, const float *from)
{
	memcpy(vector, from, sizeof(*vector));
}

QMK_INLINE void qmk_vector_store(float *to, const qmk_vector *vector)
{
	memcpy(to, vector, sizeof(*vector));
}

/** Sixteen BF16 values. */
QMK_INLINE void qmk_vector_load_bf16(qmk_vector *vector, const uint16_t *from)
{
	qmk_halves halves;
	qmk_words words;

	memcpy(&halves, from, sizeof(halves));
	words = __builtin_convertvector(halves, qmk_words) << 16;
	memcpy(vector, &words, sizeof(*vector));
}

/** Sixteen pairs of BF16 values apart: a word's low half is the even one. */
QMK_INLINE void qmk_vector_load_bf16_pairs(qmk_vector *even, qmk_vector *odd, const uint16_t *from)
{
	qmk_words words, low;

	memcpy(&words, from, sizeof(words));
	low = words << 16;
	words &= 0xffff0000u;
	memcpy(even, &low, sizeof(*even));
	memcpy(odd, &words, sizeof(*odd));
}

#endif /* QMK_CPU_VECTOR_H */
