/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Sixteen floats as one value (GCC and clang vector extension): one AVX-512
 * register, two of AVX, four of SSE. Passed by pointer, so that no calling
 * convention depends on the target.
 */
#ifndef QMK_CPU_VECTOR_H
#define QMK_CPU_VECTOR_H

#include <string.h>

#define QMK_LANES 16u

typedef float qmk_vector __attribute__((vector_size(64)));

static inline __attribute__((always_inline)) void qmk_vector_load(qmk_vector *vector,
								  const float *from)
{
	memcpy(vector, from, sizeof(*vector));
}

static inline __attribute__((always_inline)) void qmk_vector_store(float *to,
								   const qmk_vector *vector)
{
	memcpy(to, vector, sizeof(*vector));
}

#endif /* QMK_CPU_VECTOR_H */
