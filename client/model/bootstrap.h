/* SPDX-License-Identifier: Apache-2.0 */
/** @file Percentile bootstrap: how much a mean would move with other sequences of the same kind. */
#ifndef QMW_BOOTSTRAP_H
#define QMW_BOOTSTRAP_H

#include <stdint.h>

#include <qmla/status.h>

/** The middle 95 % of the resampled means; both NaN with fewer than two samples. */
struct qmw_interval {
	double low, high;
};

/**
 * Interval of sum(numerator) / sum(denominator) over @p n samples drawn with replacement,
 * 2,000 times. A seed gives the same result everywhere. @p denominator NULL: ones.
 * QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmw_bootstrap(const double *numerator, const double *denominator, uint32_t n,
			    uint64_t seed, struct qmw_interval *interval);

#endif /* QMW_BOOTSTRAP_H */
