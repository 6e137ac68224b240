/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/prompt.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTE_VOCABULARY 256u

qmla_status_t qmw_refuse(struct qmw_detail *detail, qmla_status_t status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(detail->text, sizeof(detail->text), format, arguments);
	va_end(arguments);
	return status;
}

qmla_status_t qmw_tokens_check(const struct qmw_model_info *info, const uint32_t *tokens,
			       size_t count, struct qmw_detail *detail)
{
	for (size_t i = 0; i < count; i++) {
		if (tokens[i] >= info->vocab)
			return qmw_refuse(detail, QMLA_ERR_INVALID_ARGUMENT,
					  "token %zu of the prompt is %u, the vocabulary has %u", i,
					  tokens[i], info->vocab);
	}
	return QMLA_OK;
}

qmla_status_t qmw_namespace_check(const char *name_space, struct qmw_detail *detail)
{
	if (strlen(name_space) > QMW_NAMESPACE_MAX)
		return qmw_refuse(detail, QMLA_ERR_INVALID_ARGUMENT,
				  "cache_namespace is longer than %d bytes", QMW_NAMESPACE_MAX);
	return QMLA_OK;
}

qmla_status_t qmw_prompt_check(const Qmla__V1__GenerateRequest *request, struct qmw_detail *detail)
{
	if (request->max_tokens == 0)
		return qmw_refuse(detail, QMLA_ERR_INVALID_ARGUMENT,
				  "max_tokens is 0: ask for at least one");
	if (!isfinite(request->temperature) || request->temperature < 0)
		return qmw_refuse(detail, QMLA_ERR_INVALID_ARGUMENT,
				  "temperature must be 0 (greedy) or a positive number");
	if (!(request->top_p >= 0 && request->top_p <= 1))
		return qmw_refuse(detail, QMLA_ERR_INVALID_ARGUMENT,
				  "top_p must be between 0 (off) and 1");
	return qmw_namespace_check(request->cache_namespace, detail);
}

static qmla_status_t check_size(const struct qmw_model_info *info, size_t prompt,
				uint32_t max_tokens, struct qmw_detail *detail)
{
	if (prompt == 0)
		return qmw_refuse(detail, QMLA_ERR_INVALID_ARGUMENT,
				  "the prompt is empty: give prompt or tokens");
	if (prompt > info->max_position || max_tokens > info->max_position - prompt)
		return qmw_refuse(detail, QMLA_ERR_TOO_LARGE,
				  "a prompt of %zu tokens and max_tokens %u exceed the model's %u "
				  "positions: shorten one of them",
				  prompt, max_tokens, info->max_position);
	return QMLA_OK;
}

static qmla_status_t check_form(const struct qmw_model_info *info,
				const Qmla__V1__GenerateRequest *request, struct qmw_detail *detail)
{
	if (request->prompt.len > 0 && request->n_tokens > 0)
		return qmw_refuse(detail, QMLA_ERR_INVALID_ARGUMENT,
				  "both prompt and tokens are given: give one");
	if (request->prompt.len > 0 && info->vocab != BYTE_VOCABULARY)
		return qmw_refuse(detail, QMLA_ERR_UNSUPPORTED,
				  "this model's vocabulary (%u) is not bytes and the worker has no "
				  "tokeniser: send tokens instead of prompt",
				  info->vocab);
	return QMLA_OK;
}

qmla_status_t qmw_prompt_tokens(const struct qmw_model_info *info,
				const Qmla__V1__GenerateRequest *request, uint32_t **tokens,
				uint32_t *count, struct qmw_detail *detail)
{
	bool text = request->prompt.len > 0;
	size_t length = text ? request->prompt.len : request->n_tokens;
	uint32_t *list;
	qmla_status_t status = check_form(info, request, detail);

	if (status == QMLA_OK)
		status = check_size(info, length, request->max_tokens, detail);
	if (status == QMLA_OK && !text)
		status = qmw_tokens_check(info, request->tokens, length, detail);
	if (status != QMLA_OK)
		return status;
	list = malloc(length * sizeof(*list));
	if (!list)
		return qmw_refuse(detail, QMLA_ERR_NO_MEMORY, "no memory for the prompt");
	for (size_t i = 0; i < length; i++)
		list[i] = text ? request->prompt.data[i] : request->tokens[i];
	*tokens = list;
	*count = (uint32_t)length;
	return QMLA_OK;
}
