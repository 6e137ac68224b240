/* SPDX-License-Identifier: Apache-2.0 */
/** @file "12 of 40" on a terminal's standard error, once something takes over two seconds. */
#ifndef QMW_PROGRESS_H
#define QMW_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/clock.h"

struct qmw_progress {
	qmc_time_t next;
	uint64_t total;
	bool terminal;
	bool shown;
};

/** Begins to count to @p total; prints nothing yet. */
void qmw_progress_start(struct qmw_progress *progress, uint64_t total);

/** Prints @p done of the total, at most a few times a second, on a terminal only. */
void qmw_progress_tell(struct qmw_progress *progress, uint64_t done);
void qmw_progress_end(struct qmw_progress *progress); /**< wipes the line */

#endif /* QMW_PROGRESS_H */
