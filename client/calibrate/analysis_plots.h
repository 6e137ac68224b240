/* SPDX-License-Identifier: Apache-2.0 */
/** @file Internal to analysis*.c: the plots of an analysis, a file each. */
#ifndef QMW_ANALYSIS_PLOTS_H
#define QMW_ANALYSIS_PLOTS_H

#include "client/calibrate/analysis.h"

/** Writes the five plots into @p directory. QMLA_ERR_IO, QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_analysis_plots(const struct qmw_analysis *analysis, const char *directory);

#endif /* QMW_ANALYSIS_PLOTS_H */
