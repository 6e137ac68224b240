/* SPDX-License-Identifier: Apache-2.0 */
/** @file Errors of a given shape and size for rows of a cache. Pure; any thread. */
#ifndef QMW_ANALYSIS_ERROR_H
#define QMW_ANALYSIS_ERROR_H

#include <stdint.h>

#include "client/calibrate/analysis.h"
#include "client/calibrate/random.h"

/** Rows [n][dim] of one path. */
struct qmw_cache_rows {
	enum qmw_path path;
	uint32_t n, dim;
	const float *values;
};

/** @p error [n][dim] = the paper's quantiser at @p bits minus the values. */
void qmw_error_quantise(const struct qmw_cache_rows *rows, uint32_t bits, float *error);

/** Independent normal numbers of variance one. */
void qmw_error_gaussian(const struct qmw_cache_rows *rows, struct qmw_random *random, float *error);

/** Copies rows of @p from to @p to in random order; @p order is scratch [n]. */
void qmw_error_permute(const struct qmw_cache_rows *rows, const float *from,
		       struct qmw_random *random, uint32_t *order, float *to);

/** Copies rows of @p from to @p to, each with a random sign. */
void qmw_error_sign(const struct qmw_cache_rows *rows, const float *from, struct qmw_random *random,
		    float *to);

/** Scales @p error so that ||error||^2 = @p nmse ||values||^2; zero stays zero. */
void qmw_error_match(const struct qmw_cache_rows *rows, double nmse, float *error);

/** Sum of squares, in double. */
double qmw_sum_of_squares(const float *values, size_t count);

#endif /* QMW_ANALYSIS_ERROR_H */
