/* SPDX-License-Identifier: Apache-2.0 */
/** @file An error analysis as tables for a person. */
#ifndef QMW_ANALYZE_TABLE_H
#define QMW_ANALYZE_TABLE_H

#include "client/calibrate/analysis.h"

/** Prints to standard output. */
void qmw_analyze_print(const struct qmw_analysis *analysis);

#endif /* QMW_ANALYZE_TABLE_H */
