/* SPDX-License-Identifier: Apache-2.0 */
/** @file What `qmla eval` compares: caches, their protection, and the models opened for them. */
#ifndef QMW_EVAL_CASES_H
#define QMW_EVAL_CASES_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/eval.h"

#define QMW_EVAL_CASES_MAX 32u

/** What was asked for; texts may be NULL, lists are separated by commas. */
struct qmw_eval_request {
	const char *model;      /**< checkpoint directory */
	const char *reference;  /**< another checkpoint for the reference; NULL: the same */
	const char *caches;     /**< NULL: what the model was calibrated for */
	const char *protects;   /**< NULL: the packed cache itself, not a study */
	const char *quantiser;  /**< "default", "paper"; NULL: the one the model was learned for */
	const char *against;    /**< the reference's cache; "none": no reference */
	const char *arithmetic; /**< "f32", "bf16" */
	bool ignore_calibration, layers;
	uint32_t threads;
};

/** One line of the result. */
struct qmw_eval_case {
	char cache[16];
	char protect[20]; /**< "packed": the product's own cache */
	const char *quantiser;
	struct qmw_study_settings study;
	struct qmw_eval_reader reader;
};

struct qmw_eval_cases;

/** Parses, opens the models. Says under @p program's name what is wrong: QMLA_ERR_INVALID_ARGUMENT,
 * and as qmw_model_open. */
qmla_status_t qmw_eval_cases_open(const char *program, const struct qmw_eval_request *request,
				  struct qmw_eval_cases **cases);
void qmw_eval_cases_close(struct qmw_eval_cases *cases); /**< accepts NULL */

uint32_t qmw_eval_cases_count(const struct qmw_eval_cases *cases);
const struct qmw_eval_case *qmw_eval_cases_at(const struct qmw_eval_cases *cases, uint32_t index);

/** The arithmetic that was asked for, NULL: float32. */
const char *qmw_eval_cases_arithmetic(const struct qmw_eval_cases *cases);

/** What the cases are held against, NULL: nothing. */
const struct qmw_eval_case *qmw_eval_cases_reference(const struct qmw_eval_cases *cases);

#endif /* QMW_EVAL_CASES_H */
