/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

qmc_time_t qmc_clock_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (qmc_time_t)ts.tv_sec * QMC_NS_PER_S + ts.tv_nsec;
}

qmc_time_t qmc_clock_after(int64_t ns)
{
	qmc_time_t now = qmc_clock_now();

	if (ns < 0)
		ns = 0;
	return ns > QMC_TIME_NEVER - now ? QMC_TIME_NEVER : now + ns;
}

int64_t qmc_clock_left(qmc_time_t deadline)
{
	qmc_time_t now;

	if (deadline == QMC_TIME_NEVER)
		return INT64_MAX;
	now = qmc_clock_now();
	return deadline > now ? deadline - now : 0;
}

int qmc_clock_left_ms(qmc_time_t deadline)
{
	int64_t ns;

	if (deadline == QMC_TIME_NEVER)
		return -1;
	ns = qmc_clock_left(deadline);
	if (ns / QMC_NS_PER_MS >= INT_MAX)
		return INT_MAX;
	return (int)((ns + QMC_NS_PER_MS - 1) / QMC_NS_PER_MS);
}

void qmc_clock_sleep_until(qmc_time_t deadline)
{
	struct timespec ts = {
		.tv_sec = deadline / QMC_NS_PER_S,
		.tv_nsec = deadline % QMC_NS_PER_S,
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		continue;
}
