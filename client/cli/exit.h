/* SPDX-License-Identifier: Apache-2.0 */
/** @file Exit statuses of qmla; every --help names them. */
#ifndef QMW_EXIT_H
#define QMW_EXIT_H

#include <qmla/status.h>

enum qmw_exit {
	QMW_EXIT_OK = 0,
	QMW_EXIT_FAILED = 1, /**< it was tried and did not work, or the key is not there */
	QMW_EXIT_USAGE = 2,
	QMW_EXIT_UNREACHABLE = 3, /**< a node did not answer */
};

#define QMW_EXIT_HELP                                                                              \
	"Exit status: 0 done, 1 failed or not there, 2 wrong usage, 3 a node did not answer."

/** The exit status that tells @p status. */
int qmw_exit_of(qmla_status_t status);

/** The graver of two: unreachable, failed, ok. */
int qmw_exit_join(int a, int b);

#endif /* QMW_EXIT_H */
