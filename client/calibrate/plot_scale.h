/* SPDX-License-Identifier: Apache-2.0 */
/** @file Values to pixels, and where an axis has its ticks. Pure; any thread. */
#ifndef QMW_PLOT_SCALE_H
#define QMW_PLOT_SCALE_H

#include <stdbool.h>
#include <stddef.h>

#define QMW_SCALE_TICKS 24

struct qmw_scale {
	double low, high;   /**< values at the ends */
	double start, stop; /**< pixels at the ends */
	bool logarithmic;
};

/** A scale that shows [low, high] with a margin; equal ends are spread. */
void qmw_scale_fit(struct qmw_scale *scale, double low, double high, bool logarithmic);

double qmw_scale_pixel(const struct qmw_scale *scale, double value);

/**
 * Between 2 and QMW_SCALE_TICKS values within the scale, at 1, 2 or 5 times a power of
 * ten: about @p wanted of them. Returns how many; @p whole keeps whole numbers.
 */
size_t qmw_scale_ticks(const struct qmw_scale *scale, unsigned wanted, bool whole,
		       double ticks[QMW_SCALE_TICKS]);

/** "0.01", "20", "2×10⁻⁵". */
void qmw_scale_label(double value, char text[32]);

#endif /* QMW_PLOT_SCALE_H */
