/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Monotonic time. Every deadline in the project is a qmc_time_t: nanoseconds on
 * this process's CLOCK_MONOTONIC. No clock is ever compared between machines;
 * what travels is a remaining duration.
 */
#ifndef QMC_CLOCK_H
#define QMC_CLOCK_H

#include <stdint.h>

typedef int64_t qmc_time_t; /**< nanoseconds on CLOCK_MONOTONIC */

#define QMC_TIME_NEVER INT64_MAX
#define QMC_NS_PER_US  INT64_C(1000)
#define QMC_NS_PER_MS  INT64_C(1000000)
#define QMC_NS_PER_S   INT64_C(1000000000)

/** Now. Any thread; does not block. */
qmc_time_t qmc_clock_now(void);

/** Now plus @p ns, saturating at QMC_TIME_NEVER; negative @p ns counts as zero. */
qmc_time_t qmc_clock_after(int64_t ns);

/** Nanoseconds until @p deadline: zero when it has passed, INT64_MAX for never. */
int64_t qmc_clock_left(qmc_time_t deadline);

/** Milliseconds until @p deadline for poll(2), rounded up; -1 for never. */
int qmc_clock_left_ms(qmc_time_t deadline);

/** Sleeps until @p deadline, through signals. */
void qmc_clock_sleep_until(qmc_time_t deadline);

#endif /* QMC_CLOCK_H */
