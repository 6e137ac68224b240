/* SPDX-License-Identifier: Apache-2.0 */
/** @file qmla_status_t as the wire's Code (proto/qmla/v1/cache.proto) and back. */
#ifndef QMP_CODE_H
#define QMP_CODE_H

#include <qmla/status.h>

#include "qmla/v1/cache.pb-c.h"

/** Code of @p status; a value outside the enum becomes CODE_INTERNAL. Any thread. */
Qmla__V1__Code qmp_code_from_status(qmla_status_t status);

/** Status of a Code off the wire; an unknown one becomes QMLA_ERR_INTERNAL. Any thread. */
qmla_status_t qmp_status_from_code(Qmla__V1__Code code);

#endif /* QMP_CODE_H */
