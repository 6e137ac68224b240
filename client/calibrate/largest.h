/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The 99.9th percentile of each channel's magnitude over all calibration tokens, exactly,
 * without keeping them: the largest 0.1 % are enough.
 */
#ifndef QMW_CALIBRATE_LARGEST_H
#define QMW_CALIBRATE_LARGEST_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#define QMW_LARGEST_QUANTILE 0.999

struct qmw_largest;

/** For @p channels channels that get @p samples values each in all. QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_largest_create(uint32_t channels, uint64_t samples, struct qmw_largest **largest);
void qmw_largest_destroy(struct qmw_largest *largest); /**< accepts NULL */

/** Takes |value| of @p channel. The order of the calls does not matter to the result. */
void qmw_largest_add(struct qmw_largest *largest, uint32_t channel, float value);

/**
 * Percentile of @p channel, interpolated between order statistics as NumPy does; 0 when
 * there were no values. Once all of the samples were added.
 */
double qmw_largest_percentile(const struct qmw_largest *largest, uint32_t channel);

#endif /* QMW_CALIBRATE_LARGEST_H */
