/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/eval.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/numeric.h"
#include "client/model/runner.h"
#include "common/log.h"

#define COMPONENT "eval"

/* One text at work: tokens of the sequence and both models' runs over it. */
struct reading {
	struct qmw_runner *model, *reference;
	uint32_t *tokens;
	uint32_t length, vocab;
};

struct tally {
	double loss, reference_loss; /* nats, of one sequence */
	double kl;                   /* nats, all sequences */
	uint64_t positions, same;
};

static void reading_close(struct reading *r)
{
	qmw_runner_destroy(r->model);
	qmw_runner_destroy(r->reference);
	free(r->tokens);
}

static qmla_status_t reading_open(const struct qmw_model *model, const struct qmw_model *reference,
				  uint32_t length, struct reading *r)
{
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	*r = (struct reading){.length = length, .vocab = qmw_model_info(model)->vocab};
	r->tokens = calloc(length, sizeof(*r->tokens));
	if (r->tokens)
		status = qmw_runner_create(model, length, &r->model);
	if (!status && reference)
		status = qmw_runner_create(reference, length, &r->reference);
	if (status)
		reading_close(r);
	return status;
}

/* KL(reference || model) of one position, in nats. */
static double divergence(const float *reference, const float *model, uint32_t vocab)
{
	double a = qmw_log_sum_exp(reference, vocab), b = qmw_log_sum_exp(model, vocab);
	double sum = 0;

	for (uint32_t i = 0; i < vocab; i++) {
		double p = reference[i] - a;

		sum += exp(p) * (p - (model[i] - b));
	}
	return sum;
}

static void score(const struct reading *r, uint32_t position, const float *logits,
		  const float *reference, struct tally *tally)
{
	bool last = position + 1 == r->length;
	uint32_t next = last ? 0 : r->tokens[position + 1];

	if (!last)
		tally->loss += qmw_log_sum_exp(logits, r->vocab) - logits[next];
	if (!reference)
		return;
	if (!last)
		tally->reference_loss += qmw_log_sum_exp(reference, r->vocab) - reference[next];
	tally->kl += divergence(reference, logits, r->vocab);
	tally->same += qmw_argmax(logits, r->vocab) == qmw_argmax(reference, r->vocab);
	tally->positions++;
}

static qmla_status_t read_sequence(struct reading *r, struct tally *tally)
{
	qmla_status_t status = qmw_runner_reset(r->model);

	if (!status && r->reference)
		status = qmw_runner_reset(r->reference);
	for (uint32_t i = 0; i < r->length && !status; i += QMW_RUNNER_CHUNK) {
		uint32_t count =
			r->length - i < QMW_RUNNER_CHUNK ? r->length - i : QMW_RUNNER_CHUNK;
		const float *logits, *reference = NULL;

		status = qmw_runner_feed(r->model, r->tokens + i, count, &logits);
		if (!status && r->reference)
			status = qmw_runner_feed(r->reference, r->tokens + i, count, &reference);
		for (uint32_t t = 0; t < count && !status; t++)
			score(r, i + t, logits + (size_t)t * r->vocab,
			      reference ? reference + (size_t)t * r->vocab : NULL, tally);
	}
	return status;
}

static bool go_on(const struct qmw_eval_options *options, uint32_t done, uint32_t of)
{
	return !options->progress || options->progress(options->user, done, of);
}

static qmla_status_t read_text(struct reading *r, const uint8_t *text, uint32_t sequences,
			       const struct qmw_eval_options *options, struct qmw_eval_text *result)
{
	double bits = 1 / (log(2) * (r->length - 1)), own = 0, reference = 0;
	struct tally tally = {0};

	for (uint32_t s = 0; s < sequences; s++) {
		qmla_status_t status;

		for (uint32_t i = 0; i < r->length; i++)
			r->tokens[i] = text[(size_t)s * r->length + i];
		tally.loss = tally.reference_loss = 0;
		status = read_sequence(r, &tally);
		if (status)
			return status;
		own += tally.loss * bits;
		reference += tally.reference_loss * bits;
		if (!go_on(options, s + 1, sequences))
			return QMLA_ERR_CANCELLED;
	}
	*result = (struct qmw_eval_text){.sequences = sequences,
					 .positions = (uint64_t)sequences * (r->length - 1),
					 .bits_per_byte = own / sequences,
					 .compared = r->reference != NULL};
	if (result->compared) {
		result->reference_bits = reference / sequences;
		result->kl = tally.kl / (double)tally.positions;
		result->top1 = (double)tally.same / (double)tally.positions;
	}
	return QMLA_OK;
}

qmla_status_t qmw_eval_text(const struct qmw_model *model, const struct qmw_model *reference,
			    const uint8_t *text, size_t bytes,
			    const struct qmw_eval_options *options, struct qmw_eval_text *result)
{
	size_t whole = options->length ? bytes / options->length : 0;
	struct reading r;
	qmla_status_t status;

	if (options->length < 2 || whole == 0) {
		qmc_error(COMPONENT, "a text of %zu bytes holds no sequence of %" PRIu32, bytes,
			  options->length);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (reference && qmw_model_info(reference)->vocab != qmw_model_info(model)->vocab) {
		qmc_error(COMPONENT, "the two models have different vocabularies");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (options->max_sequences && whole > options->max_sequences)
		whole = options->max_sequences;
	status = reading_open(model, reference, options->length, &r);
	if (status)
		return status;
	status = read_text(&r, text, (uint32_t)whole, options, result);
	reading_close(&r);
	return status;
}

/* Greedy byte after each position of a prompt. */
static qmla_status_t read_greedy(struct reading *r, const char *text, uint32_t length,
				 uint8_t *greedy)
{
	qmla_status_t status = qmw_runner_reset(r->model);

	for (uint32_t i = 0; i < length; i++)
		r->tokens[i] = (uint8_t)text[i];
	for (uint32_t i = 0; i < length && !status; i += QMW_RUNNER_CHUNK) {
		uint32_t count = length - i < QMW_RUNNER_CHUNK ? length - i : QMW_RUNNER_CHUNK;
		const float *logits;

		status = qmw_runner_feed(r->model, r->tokens + i, count, &logits);
		for (uint32_t t = 0; t < count && !status; t++)
			greedy[i + t] =
				(uint8_t)qmw_argmax(logits + (size_t)t * r->vocab, r->vocab);
	}
	return status;
}

/* One [start, end) pair against the greedy bytes; false when it is no span of the text. */
static bool judge(const json_t *span, const char *text, size_t length, const uint8_t *greedy,
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

static qmla_status_t read_prompt(struct reading *r, const json_t *prompt, uint8_t *greedy,
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
	if (length > r->length)
		return QMLA_OK;
	status = read_greedy(r, json_string_value(text), (uint32_t)length, greedy);
	if (status)
		return status;
	json_array_foreach(answers, i, span) if (!judge(span, json_string_value(text), length,
							greedy, result)) return QMLA_ERR_FORMAT;
	result->prompts++;
	return QMLA_OK;
}

static qmla_status_t read_line(struct reading *r, const char *line, size_t bytes, uint32_t number,
			       uint8_t *greedy, struct qmw_eval_recall *result)
{
	json_error_t error;
	json_t *prompt = json_loadb(line, bytes, JSON_ALLOW_NUL, &error);
	qmla_status_t status = prompt ? read_prompt(r, prompt, greedy, result) : QMLA_ERR_FORMAT;

	if (status == QMLA_ERR_FORMAT)
		qmc_error(COMPONENT, "prompt on line %" PRIu32 ": %s", number,
			  prompt ? "needs \"text\" and \"answers\" of [start, end) inside it"
				 : error.text);
	json_decref(prompt);
	return status;
}

static qmla_status_t read_lines(struct reading *r, const char *lines, size_t bytes,
				const struct qmw_eval_options *options, uint8_t *greedy,
				struct qmw_eval_recall *result)
{
	const char *end = lines + bytes;
	uint32_t number = 0, of = 0;

	for (size_t i = 0; i < bytes; i++)
		of += lines[i] == '\n';
	while (lines < end) {
		const char *stop = memchr(lines, '\n', (size_t)(end - lines));
		size_t length = (size_t)((stop ? stop : end) - lines);
		qmla_status_t status = QMLA_OK;

		number++;
		if (length > 0)
			status = read_line(r, lines, length, number, greedy, result);
		if (status)
			return status;
		if (!go_on(options, number, of > number ? of : number))
			return QMLA_ERR_CANCELLED;
		if (options->max_sequences && result->prompts >= options->max_sequences)
			break;
		lines += length + 1;
	}
	return QMLA_OK;
}

qmla_status_t qmw_eval_recall(const struct qmw_model *model, const char *lines, size_t bytes,
			      const struct qmw_eval_options *options,
			      struct qmw_eval_recall *result)
{
	struct qmw_eval_recall counted = {0};
	struct reading r;
	uint8_t *greedy;
	qmla_status_t status;

	if (options->length == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = reading_open(model, NULL, options->length, &r);
	if (status)
		return status;
	greedy = malloc(options->length);
	status = greedy ? read_lines(&r, lines, bytes, options, greedy, &counted)
			: QMLA_ERR_NO_MEMORY;
	free(greedy);
	reading_close(&r);
	if (status)
		return status;
	if (counted.answers)
		counted.recall = (double)counted.right / counted.answers;
	*result = counted;
	return QMLA_OK;
}
