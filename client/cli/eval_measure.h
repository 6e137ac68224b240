/* SPDX-License-Identifier: Apache-2.0 */
/** @file The measurements of `qmla eval` as JSON objects, and how they are printed. */
#ifndef QMW_EVAL_MEASURE_H
#define QMW_EVAL_MEASURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/cli/eval_cases.h"
#include "client/cli/text.h"

struct qmw_eval_inputs {
	const struct qmw_text *text, *recall; /**< either may be NULL */
	bool layers;
	struct qmw_eval_options options;
};

/** Measures all cases: @p rows [count] gets an object each, the caller's, also of a run that fails
 * midway. @p model names the checkpoint. Errors as qmw_eval_texts and qmw_eval_recalls. */
qmla_status_t qmw_eval_measure(const char *model, const struct qmw_eval_cases *cases,
			       const struct qmw_eval_inputs *inputs, json_t **rows);

/** One object a line with @p json, else "key value" lines, a blank line between cases. */
void qmw_eval_print(json_t *const *rows, uint32_t count, bool json);

#endif /* QMW_EVAL_MEASURE_H */
