/* SPDX-License-Identifier: Apache-2.0 */
/** @file What a study's sequence adds to the forward call (study.h). */
#ifndef QMW_STUDY_INTERNAL_H
#define QMW_STUDY_INTERNAL_H

#include <pthread.h>

#include "client/model/forward.h"
#include "client/model/study.h"

struct qmw_study {
	struct qmw_study_settings settings;
	struct qmk_layout layout;       /**< of the far rows, with the default quantiser */
	pthread_mutex_t lock;           /**< for errors: spans run on several threads */
	struct qmw_study_error *errors; /**< [layers] */
};

/** Frees a sequence's study. Accepts NULL. */
void qmw_study_free(struct qmw_study *study);

/** Rows of @p layer, near or far: [max_tokens][width], keys rotated once the span is quantised. */
float *qmw_study_rows(const struct qmw_sequence *sequence, uint32_t layer, bool far);

/** From the span's raw rows, stored near, makes both versions. QMLA_ERR_NO_MEMORY, and as pack. */
qmla_status_t qmw_study_quantise(struct qmw_context *context, struct qmw_lane *lane,
				 const struct qmw_span *span);

/** Attention under the study's rule: @p heads [span->count][H][d_v]. A comparing sequence gets what
 * near keys give; what the rule gives is worked out as well, and what differs is added up. */
qmla_status_t qmw_study_attend(struct qmw_context *context, struct qmw_lane *lane,
			       const struct qmw_span *span, float *heads);

#endif /* QMW_STUDY_INTERNAL_H */
