/* SPDX-License-Identifier: Apache-2.0 */
/** @file Doubles that are to agree; include behind cmocka.h. */
#ifndef QMW_TEST_NEAR_H
#define QMW_TEST_NEAR_H

#include <math.h>

/** Fails, and shows both, when |@p a - @p b| is over @p bound or not a number. */
#define assert_near(a, b, bound)                                                                   \
	do {                                                                                       \
		double near_a_ = (a), near_b_ = (b);                                               \
		if (!(fabs(near_a_ - near_b_) <= (bound)))                                         \
			fail_msg("%s: %.17g is not %s: %.17g", #a, near_a_, #b, near_b_);          \
	} while (0)

#endif /* QMW_TEST_NEAR_H */
