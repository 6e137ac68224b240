/* SPDX-License-Identifier: Apache-2.0 */
/** @file What qmla calibrate prints: a line on the way, a table or an object at the end. */
#ifndef QMW_CALIBRATE_SHOW_H
#define QMW_CALIBRATE_SHOW_H

#include <stdbool.h>

#include "client/calibrate/calibrate.h"
#include "common/clock.h"

struct qmw_calibrate_show {
	bool quiet;    /**< no lines of finished layers */
	bool terminal; /**< standard error is one: a moving line as well */
	bool shown;    /**< such a line is there */
	qmc_time_t begin, next;
};

/** Begins; @p quiet as in the structure. */
void qmw_calibrate_show_start(struct qmw_calibrate_show *show, bool quiet);
/** Prints one progress report to standard error. */
void qmw_calibrate_show_tell(struct qmw_calibrate_show *show,
			     const struct qmw_calibrate_progress *progress);
/** Wipes the moving line. */
void qmw_calibrate_show_end(struct qmw_calibrate_show *show);

/** Prints the report of a finished run to standard output, as text or as one JSON object. */
void qmw_calibrate_show_report(const struct qmw_calibrate_show *show,
			       const struct qmw_calibrate_job *job,
			       const struct qmw_calibrate_report *report, bool json);

#endif /* QMW_CALIBRATE_SHOW_H */
