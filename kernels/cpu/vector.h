/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * QMK_LANES floats as one value, a register of the instruction set in use (vector
 * extension of GCC and clang). Passed by pointer, so that no calling convention
 * depends on it.
 */
#ifndef QMK_CPU_VECTOR_H
#define QMK_CPU_VECTOR_H

#include <stdint.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define QMK_LANES 16u
#elif defined(__AVX2__)
#define QMK_LANES 8u
#else
#define QMK_LANES 4u
#endif

#define QMK_INLINE static inline __attribute__((always_inline))

typedef float qmk_vector __attribute__((vector_size(QMK_LANES * 4)));
typedef int32_t qmk_integers __attribute__((vector_size(QMK_LANES * 4)));
typedef uint32_t qmk_words __attribute__((vector_size(QMK_LANES * 4)));
typedef uint16_t qmk_halves __attribute__((vector_size(QMK_LANES * 2)));
typedef uint8_t qmk_octets __attribute__((vector_size(QMK_LANES)));

/*
 * The same at any address. Not memcpy: GCC 12 copies 32 bytes in two halves, through
 * memory where the target is an array element, and the reload then waits for both.
 */
typedef qmk_vector qmk_vector_anywhere __attribute__((aligned(4), may_alias));
typedef qmk_words qmk_words_anywhere __attribute__((aligned(2), may_alias));
typedef qmk_halves qmk_halves_anywhere __attribute__((aligned(2), may_alias));
typedef qmk_octets qmk_octets_anywhere __attribute__((aligned(1), may_alias));

/** QMK_LANES floats from any address. */
QMK_INLINE void qmk_vector_load(qmk_vector *vector, const float *from)
{
	*vector = *(const qmk_vector_anywhere *)from;
}

/** QMK_LANES floats to any address. */
QMK_INLINE void qmk_vector_store(float *to, const qmk_vector *vector)
{
	*(qmk_vector_anywhere *)to = *vector;
}

/** BF16 values. */
QMK_INLINE void qmk_vector_load_bf16(qmk_vector *vector, const uint16_t *from)
{
	const qmk_halves halves = *(const qmk_halves_anywhere *)from;

	*vector = (qmk_vector)(__builtin_convertvector(halves, qmk_words) << 16);
}

/** Pairs of BF16 values apart: a word's low half is the even one. */
QMK_INLINE void qmk_vector_load_bf16_pairs(qmk_vector *even, qmk_vector *odd, const uint16_t *from)
{
	const qmk_words words = *(const qmk_words_anywhere *)from;

	*even = (qmk_vector)(words << 16);
	*odd = (qmk_vector)(words & 0xffff0000u);
}

#endif /* QMK_CPU_VECTOR_H */
