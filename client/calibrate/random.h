/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A small generator of our own (splitmix64), so that a seed gives the same bytes with
 * every C library. A stream is fixed by (seed, purpose, index): sequences can be
 * worked on in any order and by any thread. Not for secrets.
 */
#ifndef QMW_CALIBRATE_RANDOM_H
#define QMW_CALIBRATE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

struct qmw_random {
	uint64_t state;
};

/** What a stream is for: different purposes never share numbers. */
enum qmw_purpose { QMW_PURPOSE_PROBE = 1, QMW_PURPOSE_ORDER = 2, QMW_PURPOSE_TEST = 3 };

/** Starts the stream of @p seed, @p purpose and @p index. */
void qmw_random_init(struct qmw_random *random, uint64_t seed, enum qmw_purpose purpose,
		     uint64_t index);

/** 64 uniform bits. */
uint64_t qmw_random_next(struct qmw_random *random);

/** Uniform in 0 … @p n - 1, without bias; @p n > 0. */
uint32_t qmw_random_below(struct qmw_random *random, uint32_t n);

/** Uniform in [-1, 1). */
double qmw_random_real(struct qmw_random *random);

/** Fills @p signs with +1 and -1 (a Rademacher probe). */
void qmw_random_signs(struct qmw_random *random, float *signs, size_t count);

/** Puts @p values [n] in random order (Fisher-Yates). */
void qmw_random_shuffle(struct qmw_random *random, uint32_t *values, uint32_t n);

#endif /* QMW_CALIBRATE_RANDOM_H */
