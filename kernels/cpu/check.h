/* SPDX-License-Identifier: Apache-2.0 */
/** @file Checks of arguments that every variant makes. Any thread. */
#ifndef QMK_CPU_CHECK_H
#define QMK_CPU_CHECK_H

#include <stdbool.h>

#include "kernels/ops.h"

/** Logs that @p call was given @p what; returns QMLA_ERR_INVALID_ARGUMENT. */
qmla_status_t qmk_check_reject(const char *call, const char *what);

/** True when @p pool can hold blocks of @p layout; else logs why, as a fault of @p call. */
bool qmk_check_pool(const char *call, const struct qmk_layout *layout, const struct qmk_pool *pool);

/** The constants that apply: paper-c4r4 knows none. Never NULL. */
const struct qmk_constants *qmk_check_constants(const struct qmk_layout *layout,
						const struct qmk_constants *constants);

#endif /* QMK_CPU_CHECK_H */
