/* SPDX-License-Identifier: Apache-2.0 */
/** @file What tells one calibration run from another. */
#ifndef QMW_CALIBRATE_FINGERPRINT_H
#define QMW_CALIBRATE_FINGERPRINT_H

#include <qmla/status.h>

/**
 * JSON text of @p run (an object, as text) and of the model's files: names, sizes and
 * times of change (hashing terabytes of weights before each start would take too long), and
 * config.json in full. @p text is malloc'ed; equal texts, equal runs. Logs.
 */
qmla_status_t qmw_fingerprint_text(const char *model, const char *run, char **text);

#endif /* QMW_CALIBRATE_FINGERPRINT_H */
