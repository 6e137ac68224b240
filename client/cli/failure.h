/* SPDX-License-Identifier: Apache-2.0 */
/** @file How a command says that it failed: a line for people, an object for programs. */
#ifndef QMW_FAILURE_H
#define QMW_FAILURE_H

#include <stdbool.h>

#include <qmla/status.h>

/**
 * Prints "PROGRAM: TEXT (status)" to standard error and with @p json also
 * {"error":"TEXT","status":"status"} to standard output, after what is there already.
 */
void qmw_failure_print(const char *program, bool json, qmla_status_t status, const char *format,
		       ...) __attribute__((format(printf, 4, 5)));

/**
 * Writes out what standard output holds. QMLA_ERR_IO: it cannot; said under @p
 * program's name with the reason, and what was held is thrown away.
 */
qmla_status_t qmw_output_flush(const char *program);

#endif /* QMW_FAILURE_H */
