/* SPDX-License-Identifier: Apache-2.0 */
/** @file Runs whole texts through a model with a cache of its own, one after another. */
#ifndef QMW_RUNNER_H
#define QMW_RUNNER_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/model.h"
#include "client/model/study.h"

#define QMW_RUNNER_CHUNK 256u

struct qmw_runner;

/** For texts of at most @p max_tokens tokens. */
qmla_status_t qmw_runner_create(const struct qmw_model *model, uint32_t max_tokens,
				struct qmw_runner **runner);

/** The same with a study's cache (study.h); the settings are copied. */
qmla_status_t qmw_runner_create_study(const struct qmw_model *model,
				      const struct qmw_study_settings *settings,
				      uint32_t max_tokens, struct qmw_runner **runner);
void qmw_runner_destroy(struct qmw_runner *runner); /**< accepts NULL */

/** The text so far; until the next reset. */
const struct qmw_sequence *qmw_runner_sequence(const struct qmw_runner *runner);

/** Forgets the text so far. */
qmla_status_t qmw_runner_reset(struct qmw_runner *runner);

/**
 * Appends at most QMW_RUNNER_CHUNK tokens; *logits [count][vocab] stay valid
 * until the next call.
 */
qmla_status_t qmw_runner_feed(struct qmw_runner *runner, const uint32_t *tokens, uint32_t count,
			      const float **logits);

#endif /* QMW_RUNNER_H */
