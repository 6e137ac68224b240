/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What the straight-through gradient is the derivative of: the paper's quantiser in double,
 * with what rounding added and which codes were clipped frozen at one point.
 */
#ifndef QMW_TEST_SURROGATE_H
#define QMW_TEST_SURROGATE_H

#include <stddef.h>
#include <stdint.h>

struct surrogate {
	uint32_t bits, group;
	size_t groups;
	double *zero;  /**< [groups]: added to the zero point */
	double *code;  /**< [groups][group]: added to the code */
	double *bound; /**< where a clipped code stands, NAN: not clipped */
	uint32_t *low_at, *high_at;
};

/** Freezes at @p x [groups * group]. */
void surrogate_freeze(struct surrogate *surrogate, uint32_t bits, uint32_t group, size_t groups,
		      const double *x);
/** @p y of any @p x near. */
void surrogate_apply(const struct surrogate *surrogate, const double *x, double *y);
void surrogate_free(struct surrogate *surrogate);

#endif /* QMW_TEST_SURROGATE_H */
