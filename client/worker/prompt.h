/* SPDX-License-Identifier: Apache-2.0 */
/** @file From the wire to tokens: checks what a caller asks for. Any thread; nothing blocks. */
#ifndef QMW_PROMPT_H
#define QMW_PROMPT_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/model.h"
#include "qmla/v1/worker.pb-c.h"

#define QMW_DETAIL_MAX    256
#define QMW_NAMESPACE_MAX 256

/** Why something was refused, for the caller. */
struct qmw_detail {
	char text[QMW_DETAIL_MAX];
};

/** Sets the text and returns @p status. */
qmla_status_t qmw_refuse(struct qmw_detail *detail, qmla_status_t status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/**
 * Tokens of a Generate request: its bytes where the vocabulary is bytes, or its
 * tokens. @p tokens is malloc'ed, the caller's. QMLA_ERR_INVALID_ARGUMENT,
 * QMLA_ERR_TOO_LARGE (over the model's positions), QMLA_ERR_UNSUPPORTED (text for
 * a vocabulary of more than bytes); @p detail says what and what to do.
 */
qmla_status_t qmw_prompt_tokens(const struct qmw_model_info *info,
				const Qmla__V1__GenerateRequest *request, uint32_t **tokens,
				uint32_t *count, struct qmw_detail *detail);

/** Checks numbers and the namespace of a Generate request. */
qmla_status_t qmw_prompt_check(const Qmla__V1__GenerateRequest *request, struct qmw_detail *detail);

/** Checks that every token is in the vocabulary. */
qmla_status_t qmw_tokens_check(const struct qmw_model_info *info, const uint32_t *tokens,
			       size_t count, struct qmw_detail *detail);

/** Checks a namespace off the wire. */
qmla_status_t qmw_namespace_check(const char *name_space, struct qmw_detail *detail);

#endif /* QMW_PROMPT_H */
