/* SPDX-License-Identifier: Apache-2.0 */
/** @file The public layout as kernels/layout.h knows it. Pure; any thread. */
#ifndef QML_LAYOUT_H
#define QML_LAYOUT_H

#include <qmla/cache.h>

#include "kernels/layout.h"

/** QMLA_ERR_INVALID_ARGUMENT for a format or geometry outside the limits. */
qmla_status_t qml_layout_init(const qmla_layout_t *layout, struct qmk_layout *bytes);

#endif /* QML_LAYOUT_H */
