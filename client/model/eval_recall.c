/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/eval.h"
#include "client/model/numeric.h"
#include "client/model/runner.h"
#include "common/log.h"

#define COMPONENT "eval"

struct recall {
	struct qmw_runner *runner; /* of the reader at work */
	const struct qmw_eval_options *options;
	uint32_t vocab;
	uint32_t *tokens; /* [options->length] */
	uint32_t *greedy; /* [options->length] */
	uint32_t done, of;
};

/* Greedy token after each position of a prompt. */
static qmla_status_t read_greedy(struct recall *r, const char *text, uint32_t length)
{
	qmla_status_t status = qmw_runner_reset(r->runner);

	for (uint32_t i = 0; i < length; i++)
		r->tokens[i] = (uint8_t)text[i];
	for (uint32_t i = 0; i < length && !status; i += QMW_RUNNER_CHUNK) {
		uint32_t count = length - i < QMW_RUNNER_CHUNK ? length - i : QMW_RUNNER_CHUNK;
		const float *logits;

		status = qmw_runner_feed(r->runner, r->tokens + i, count, &logits);
		for (uint32_t t = 0; t < count && !status; t++)
			r->greedy[i + t] = qmw_argmax(logits + (size_t)t * r->vocab, r->vocab);
	}
	return status;
}

/* One [start, end) pair against the greedy tokens; false when it is no span of the text. */
static bool judge(const json_t *span, const char *text, size_t length, const uint32_t *greedy,
		  struct qmw_eval_recall *result)
{
	json_int_t start = json_integer_value(json_array_get(span, 0));
	json_int_t end = json_integer_value(json_array_get(span, 1));
	bool right = true;

	if (json_array_size(span) != 2 || start < 1 || end <= start || (size_t)end > length)
		return false;
	for (json_int_t i = start; i < end; i++)
		right &= greedy[i - 1] == (uint8_t)text[i];
	result->answers++;
	result->right += right;
	return true;
}

static qmla_status_t read_prompt(struct recall *r, const json_t *prompt,
				 struct qmw_eval_recall *result)
{
	const json_t *text = json_object_get(prompt, "text");
	const json_t *answers = json_object_get(prompt, "answers");
	size_t length = json_string_length(text);
	qmla_status_t status;
	const json_t *span;
	size_t i;

	if (!json_is_string(text) || !json_is_array(answers) || length == 0)
		return QMLA_ERR_FORMAT;
	if (length > r->options->length)
		return QMLA_OK;
	status = read_greedy(r, json_string_value(text), (uint32_t)length);
	if (status)
		return status;
	json_array_foreach(answers, i, span) if (!judge(span, json_string_value(text), length,
							r->greedy, result)) return QMLA_ERR_FORMAT;
	result->prompts++;
	return QMLA_OK;
}

static qmla_status_t read_line(struct recall *r, const char *line, size_t bytes, uint32_t number,
			       struct qmw_eval_recall *result)
{
	json_error_t error;
	json_t *prompt = json_loadb(line, bytes, JSON_ALLOW_NUL, &error);
	qmla_status_t status = prompt ? read_prompt(r, prompt, result) : QMLA_ERR_FORMAT;

	if (status == QMLA_ERR_FORMAT)
		qmc_error(COMPONENT, "prompt on line %" PRIu32 ": %s", number,
			  prompt ? "needs \"text\" and \"answers\" of [start, end) inside it"
				 : error.text);
	json_decref(prompt);
	return status;
}

static uint32_t count_lines(const char *lines, size_t bytes)
{
	uint32_t count = bytes > 0 && lines[bytes - 1] != '\n';

	for (size_t i = 0; i < bytes; i++)
		count += lines[i] == '\n';
	return count;
}

static bool go_on(struct recall *r)
{
	const struct qmw_eval_options *options = r->options;

	r->done++;
	return !options->progress || options->progress(options->user, r->done, r->of);
}

static qmla_status_t read_lines(struct recall *r, const char *lines, size_t bytes,
				struct qmw_eval_recall *result)
{
	const char *end = lines + bytes;
	uint32_t number = 0;

	while (lines < end) {
		const char *stop = memchr(lines, '\n', (size_t)(end - lines));
		size_t length = (size_t)((stop ? stop : end) - lines);
		qmla_status_t status = QMLA_OK;

		number++;
		if (length > 0)
			status = read_line(r, lines, length, number, result);
		if (status)
			return status;
		if (!go_on(r))
			return QMLA_ERR_CANCELLED;
		if (r->options->max_sequences && result->prompts >= r->options->max_sequences)
			break;
		lines += length + 1;
	}
	return QMLA_OK;
}

static qmla_status_t read_all(struct recall *r, const struct qmw_eval_reader *reader,
			      const char *lines, size_t bytes, struct qmw_eval_recall *result)
{
	struct qmw_eval_recall counted = {0};
	qmla_status_t status;

	r->vocab = qmw_model_info(reader->model)->vocab;
	status = reader->study ? qmw_runner_create_study(reader->model, reader->study,
							 r->options->length, &r->runner)
			       : qmw_runner_create(reader->model, r->options->length, &r->runner);
	if (status)
		return status;
	status = read_lines(r, lines, bytes, &counted);
	qmw_runner_destroy(r->runner);
	if (status)
		return status;
	if (counted.answers)
		counted.recall = (double)counted.right / counted.answers;
	*result = counted;
	return QMLA_OK;
}

qmla_status_t qmw_eval_recalls(const struct qmw_eval_reader *readers, uint32_t count,
			       const char *lines, size_t bytes,
			       const struct qmw_eval_options *options,
			       struct qmw_eval_recall *results)
{
	struct recall r = {.options = options, .of = count * count_lines(lines, bytes)};
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (options->length == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	r.tokens = calloc(options->length, sizeof(*r.tokens));
	r.greedy = calloc(options->length, sizeof(*r.greedy));
	if (r.tokens && r.greedy)
		status = QMLA_OK;
	for (uint32_t i = 0; i < count && !status; i++)
		status = read_all(&r, &readers[i], lines, bytes, &results[i]);
	free(r.tokens);
	free(r.greedy);
	return status;
}

qmla_status_t qmw_eval_recall(const struct qmw_model *model, const char *lines, size_t bytes,
			      const struct qmw_eval_options *options,
			      struct qmw_eval_recall *result)
{
	const struct qmw_eval_reader reader = {model, NULL};

	return qmw_eval_recalls(&reader, 1, lines, bytes, options, result);
}
