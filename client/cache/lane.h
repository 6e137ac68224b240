/* SPDX-License-Identifier: Apache-2.0 */
/** @file One connection that works on a transfer; see transfer.h. */
#ifndef QML_LANE_H
#define QML_LANE_H

#include "client/cache/transfer.h"

/** @p transfer is a struct qml_transfer; returns when no piece is left for this lane. */
void qml_lane_run(void *transfer);

#endif /* QML_LANE_H */
