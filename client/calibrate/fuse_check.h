/* SPDX-License-Identifier: Apache-2.0 */
/** @file Whether a transform can be fused into a model. */
#ifndef QMW_FUSE_CHECK_H
#define QMW_FUSE_CHECK_H

#include <qmla/status.h>

#include "client/calibrate/transform.h"
#include "client/model/config.h"

/** Checks dimensions, that R is orthogonal to 1e-6, and that scales are positive and all is finite.
 * Logs @p layer: QMLA_ERR_INVALID_ARGUMENT; QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_fuse_check(const struct qmw_config *config, const struct qmw_transform *transform,
			     uint32_t layer);

#endif /* QMW_FUSE_CHECK_H */
