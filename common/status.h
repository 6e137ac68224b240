/* SPDX-License-Identifier: Apache-2.0 */
/** @file Mapping of foreign codes to the project's status, done once per library. */
#ifndef QMC_STATUS_H
#define QMC_STATUS_H

#include <stdbool.h>

#include <qmla/status.h>

/** Status for a positive errno value; 0 gives QMLA_OK. Any thread. */
qmla_status_t qmc_status_from_errno(int error);

/** True for a value of the enum: what may be read off the wire. */
bool qmc_status_is_known(int value);

/** True when the same call may succeed later without any change by the caller. */
bool qmc_status_is_retryable(qmla_status_t status);

#endif /* QMC_STATUS_H */
