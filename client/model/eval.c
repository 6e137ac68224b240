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

/* Of one sequence and reader. */
struct tally {
	double loss; /* nats, all positions but the last */
	double kl;   /* nats, all positions */
	uint32_t same;
};

/* Texts at work: the tokens of one sequence and everybody's run over it. */
struct reading {
	uint32_t count;
	struct qmw_runner **runners; /* [count] */
	struct qmw_runner *reference;
	uint32_t *tokens;
	uint32_t length, vocab;
};

static void reading_close(struct reading *r)
{
	for (uint32_t i = 0; r->runners && i < r->count; i++)
		qmw_runner_destroy(r->runners[i]);
	qmw_runner_destroy(r->reference);
	free(r->runners);
	free(r->tokens);
}

static qmla_status_t open_runner(const struct qmw_eval_reader *reader, uint32_t length,
				 struct qmw_runner **runner)
{
	if (reader->study)
		return qmw_runner_create_study(reader->model, reader->study, length, runner);
	return qmw_runner_create(reader->model, length, runner);
}

static qmla_status_t reading_open(const struct qmw_eval_reader *readers, uint32_t count,
				  const struct qmw_eval_reader *reference, uint32_t length,
				  struct reading *r)
{
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	*r = (struct reading){
		.count = count, .length = length, .vocab = qmw_model_info(readers[0].model)->vocab};
	r->tokens = calloc(length, sizeof(*r->tokens));
	r->runners = calloc(count, sizeof(*r->runners));
	if (r->tokens && r->runners)
		status = QMLA_OK;
	for (uint32_t i = 0; i < count && !status; i++)
		status = open_runner(&readers[i], length, &r->runners[i]);
	if (!status && reference)
		status = open_runner(reference, length, &r->reference);
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
		double p = (double)reference[i] - a;

		sum += exp(p) * (p - ((double)model[i] - b));
	}
	return sum;
}

/* Adds the positions of a chunk from @p first on; @p reference may be NULL. */
static void score(const struct reading *r, uint32_t first, uint32_t count, const float *logits,
		  const float *reference, struct tally *tally)
{
	for (uint32_t t = 0; t < count; t++) {
		const float *row = logits + (size_t)t * r->vocab;
		const float *other = reference ? reference + (size_t)t * r->vocab : NULL;

		if (first + t + 1 < r->length)
			tally->loss += qmw_log_sum_exp(row, r->vocab) -
				       (double)row[r->tokens[first + t + 1]];
		if (!other)
			continue;
		tally->kl += divergence(other, row, r->vocab);
		tally->same += qmw_argmax(row, r->vocab) == qmw_argmax(other, r->vocab);
	}
}

static qmla_status_t reset(const struct reading *r)
{
	qmla_status_t status = r->reference ? qmw_runner_reset(r->reference) : QMLA_OK;

	for (uint32_t i = 0; i < r->count && !status; i++)
		status = qmw_runner_reset(r->runners[i]);
	return status;
}

static qmla_status_t read_chunk(const struct reading *r, uint32_t first, uint32_t count,
				struct tally *tallies, struct tally *own)
{
	const float *logits, *reference = NULL;
	qmla_status_t status = QMLA_OK;

	if (r->reference)
		status = qmw_runner_feed(r->reference, r->tokens + first, count, &reference);
	if (!status && reference)
		score(r, first, count, reference, NULL, own);
	for (uint32_t i = 0; i < r->count && !status; i++) {
		status = qmw_runner_feed(r->runners[i], r->tokens + first, count, &logits);
		if (!status)
			score(r, first, count, logits, reference, &tallies[i]);
	}
	return status;
}

/* @p own: of the reference. */
static qmla_status_t read_sequence(const struct reading *r, const uint8_t *text,
				   struct tally *tallies, struct tally *own)
{
	qmla_status_t status = reset(r);

	for (uint32_t i = 0; i < r->length; i++)
		r->tokens[i] = text[i];
	for (uint32_t i = 0; i < r->length && !status; i += QMW_RUNNER_CHUNK) {
		uint32_t left = r->length - i;

		status = read_chunk(r, i, left < QMW_RUNNER_CHUNK ? left : QMW_RUNNER_CHUNK,
				    tallies, own);
	}
	return status;
}

static bool go_on(const struct qmw_eval_options *options, uint32_t done, uint32_t of)
{
	return !options->progress || options->progress(options->user, done, of);
}

static double mean(const double *values, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += values[i];
	return sum / n;
}

/* What the sequences of one reader say; tallies lie @p stride apart. */
static qmla_status_t summarise(const struct reading *r, const struct tally *tallies,
			       uint32_t stride, const struct tally *own, uint32_t sequences,
			       const struct qmw_eval_options *options, struct qmw_eval_text *result)
{
	double bits = 1 / (log(2) * (r->length - 1));
	double *values = malloc(4 * (size_t)sequences * sizeof(*values));
	double *loss = values, *change, *kl, *same;
	qmla_status_t status;

	if (!values)
		return QMLA_ERR_NO_MEMORY;
	change = loss + sequences;
	kl = change + sequences;
	same = kl + sequences;
	for (uint32_t s = 0; s < sequences; s++) {
		const struct tally *t = &tallies[(size_t)s * stride];

		loss[s] = t->loss * bits;
		change[s] = loss[s] - own[s].loss * bits;
		kl[s] = t->kl / r->length;
		same[s] = (double)t->same / r->length;
	}
	*result = (struct qmw_eval_text){.sequences = sequences,
					 .positions = (uint64_t)sequences * (r->length - 1),
					 .bits_per_byte = mean(loss, sequences),
					 .compared = r->reference != NULL};
	result->reference_bits = result->bits_per_byte - mean(change, sequences);
	result->kl = mean(kl, sequences);
	result->top1 = mean(same, sequences);
	status = qmw_bootstrap(change, NULL, sequences, options->seed,
			       &result->bits_change_interval);
	if (!status)
		status = qmw_bootstrap(kl, NULL, sequences, options->seed, &result->kl_interval);
	if (!status)
		status =
			qmw_bootstrap(same, NULL, sequences, options->seed, &result->top1_interval);
	free(values);
	return status;
}

/* Tallies are [sequences][readers + 1], the reference's last. */
static qmla_status_t read_text(const struct reading *r, const uint8_t *text, uint32_t sequences,
			       const struct qmw_eval_options *options,
			       struct qmw_eval_text *results)
{
	uint32_t stride = r->count + 1;
	struct tally *tallies = calloc((size_t)sequences * stride, sizeof(*tallies));
	struct tally *own = calloc(sequences, sizeof(*own));
	qmla_status_t status = tallies && own ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	for (uint32_t s = 0; s < sequences && !status; s++) {
		status = read_sequence(r, text + (size_t)s * r->length,
				       tallies + (size_t)s * stride, &own[s]);
		if (!status && !go_on(options, s + 1, sequences))
			status = QMLA_ERR_CANCELLED;
	}
	for (uint32_t i = 0; i < r->count && !status; i++)
		status = summarise(r, tallies + i, stride, own, sequences, options, &results[i]);
	free(tallies);
	free(own);
	return status;
}

static qmla_status_t check_readers(const struct qmw_eval_reader *readers, uint32_t count,
				   const struct qmw_eval_reader *reference)
{
	uint32_t vocab = qmw_model_info(readers[0].model)->vocab;
	bool same = !reference || qmw_model_info(reference->model)->vocab == vocab;

	for (uint32_t i = 0; i < count; i++)
		same = same && qmw_model_info(readers[i].model)->vocab == vocab;
	if (!same)
		qmc_error(COMPONENT, "the models have different vocabularies");
	return same ? QMLA_OK : QMLA_ERR_INVALID_ARGUMENT;
}

/* Whole sequences that are read of a text; 0 (logged): none. */
static uint32_t count_sequences(size_t bytes, const struct qmw_eval_options *options)
{
	size_t whole = options->length ? bytes / options->length : 0;

	if (options->length < 2 || whole == 0) {
		qmc_error(COMPONENT, "a text of %zu bytes holds no sequence of %" PRIu32, bytes,
			  options->length);
		return 0;
	}
	if (whole > UINT32_MAX)
		whole = UINT32_MAX;
	return options->max_sequences && whole > options->max_sequences ? options->max_sequences
									: (uint32_t)whole;
}

qmla_status_t qmw_eval_texts(const struct qmw_eval_reader *readers, uint32_t count,
			     const struct qmw_eval_reader *reference, const uint8_t *text,
			     size_t bytes, const struct qmw_eval_options *options,
			     struct qmw_eval_text *results)
{
	uint32_t sequences = count_sequences(bytes, options);
	struct reading r;
	qmla_status_t status;

	if (sequences == 0 || count == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = check_readers(readers, count, reference);
	if (!status)
		status = reading_open(readers, count, reference, options->length, &r);
	if (status)
		return status;
	status = read_text(&r, text, sequences, options, results);
	reading_close(&r);
	return status;
}

qmla_status_t qmw_eval_text(const struct qmw_model *model, const struct qmw_model *reference,
			    const uint8_t *text, size_t bytes,
			    const struct qmw_eval_options *options, struct qmw_eval_text *result)
{
	const struct qmw_eval_reader reader = {model, NULL}, other = {reference, NULL};

	return qmw_eval_texts(&reader, 1, reference ? &other : NULL, text, bytes, options, result);
}

qmla_status_t qmw_eval_layers(const struct qmw_eval_reader *reader, const uint8_t *text,
			      size_t bytes, const struct qmw_eval_options *options,
			      struct qmw_study_error *errors)
{
	uint32_t sequences = count_sequences(bytes, options);
	struct tally unused = {0};
	struct reading r;
	qmla_status_t status;

	if (sequences == 0 || !reader->study || !reader->study->compare)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = reading_open(reader, 1, NULL, options->length, &r);
	if (status)
		return status;
	for (uint32_t s = 0; s < sequences && !status; s++) {
		status = read_sequence(&r, text + (size_t)s * r.length, &unused, NULL);
		if (!status)
			qmw_study_errors(qmw_runner_sequence(r.runners[0]), errors);
		if (!status && !go_on(options, s + 1, sequences))
			status = QMLA_ERR_CANCELLED;
	}
	reading_close(&r);
	return status;
}
