/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What a reader of the cache gets for a sub-layer's rows: transform, quantise, dequantise,
 * back again, in the coordinates of attention.h. The default quantiser is the product's
 * own writer and reader (kernels/ops.h); the paper's works on rotated keys.
 */
#ifndef QMW_CALIBRATE_STORED_H
#define QMW_CALIBRATE_STORED_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/attention.h"
#include "client/calibrate/transform.h"
#include "client/model/constants.h"

/** How rows are stored. */
struct qmw_storage {
	enum qmw_quantiser quantiser;
	uint32_t content_bits; /**< 2 or 4; RoPE keys always have 4 */
};

struct qmw_stored;

/**
 * Prepares @p transform (dimensions set, arrays may be NULL; may be freed after) and
 * @p storage for passages of @p config and @p rope. QMLA_ERR_INVALID_ARGUMENT: a geometry
 * that no page holds. Immutable after: any number of threads may use it.
 */
qmla_status_t qmw_stored_create(const struct qmw_config *config, const struct qmw_rope *rope,
				const struct qmw_transform *transform,
				const struct qmw_storage *storage, struct qmw_stored **stored);
void qmw_stored_destroy(struct qmw_stored *stored); /**< accepts NULL */

/**
 * What is read back of the passage's rows: @p content [n][d_c] and @p key [n][d_r] (before
 * the rotation). Either may be NULL: that path is exact, and the other does not take back
 * its errors. QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmw_stored_rows(const struct qmw_stored *stored, const struct qmw_passage *passage,
			      float *content, float *key);

#endif /* QMW_CALIBRATE_STORED_H */
