/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Attention over float32 rows with plain matrix products, for many queries at a time: the
 * exact cache, and the study's, whose keys have two versions.
 */
#ifndef QMW_ATTENTION_FLOAT_H
#define QMW_ATTENTION_FLOAT_H

#include <stdint.h>

#include "client/model/forward.h"
#include "client/model/study.h"

/** The keys of one layer of a sequence: rows [total][d_c + d_r], keys rotated. */
struct qmw_float_keys {
	const float *near;
	const float *far;         /**< NULL: all keys are near */
	enum qmw_protect protect; /**< which of the two a query sees */
};

/** Keys before this position are near for everybody. */
uint32_t qmw_float_sink(enum qmw_protect protect);

/** From this position on keys are near for a query at @p position (its own included). */
uint32_t qmw_float_far_end(enum qmw_protect protect, uint32_t position);

/** From the lane's query_content and query_rope to its mixed, for all rows of the span.
 * QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_attention_float_keys(const struct qmw_context *context, struct qmw_lane *lane,
				       const struct qmw_span *span,
				       const struct qmw_float_keys *keys);

#endif /* QMW_ATTENTION_FLOAT_H */
