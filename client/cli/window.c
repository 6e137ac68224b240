/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/window.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/runner.h"

/* One model reading along. */
struct reader {
	struct qmw_runner *runner;
	const float *logits; /* [count][vocab] of the last chunk */
};

struct totals {
	double bits, reference_bits, kl;
};

static uint32_t greedy(const float *logits, uint32_t vocab)
{
	uint32_t best = 0;

	for (uint32_t v = 1; v < vocab; v++) {
		if (logits[v] > logits[best])
			best = v;
	}
	return best;
}

/* log(sum(exp(logits))) */
static double log_total(const float *logits, uint32_t vocab)
{
	double most = logits[greedy(logits, vocab)];
	double sum = 0;

	for (uint32_t v = 0; v < vocab; v++)
		sum += exp(logits[v] - most);
	return most + log(sum);
}

static double divergence(const float *p, const float *q, uint32_t vocab)
{
	double log_p = log_total(p, vocab), log_q = log_total(q, vocab);
	double kl = 0;

	for (uint32_t v = 0; v < vocab; v++) {
		double lp = p[v] - log_p;

		kl += exp(lp) * (lp - (q[v] - log_q));
	}
	return kl;
}

static double bits(const float *logits, uint32_t vocab, uint32_t byte)
{
	return (log_total(logits, vocab) - logits[byte]) / log(2.0);
}

static void score_position(const float *model, const float *reference, uint32_t vocab,
			   uint32_t byte, struct totals *totals, struct qmw_window_score *score)
{
	score->positions++;
	totals->bits += bits(model, vocab, byte);
	if (!reference)
		return;
	totals->reference_bits += bits(reference, vocab, byte);
	totals->kl += divergence(reference, model, vocab);
	score->same += greedy(model, vocab) == greedy(reference, vocab);
}

static qmla_status_t feed(struct reader *reader, const uint8_t *text, uint32_t count)
{
	uint32_t tokens[QMW_RUNNER_CHUNK];

	if (!reader->runner)
		return QMLA_OK;
	for (uint32_t i = 0; i < count; i++)
		tokens[i] = text[i];
	return qmw_runner_feed(reader->runner, tokens, count, &reader->logits);
}

static qmla_status_t run(struct reader readers[2], uint32_t vocab, const uint8_t *text,
			 const struct qmw_window *window, struct qmw_window_score *score)
{
	uint32_t end = window->offset + window->positions - 1; /* the last byte is not read */
	struct totals totals = {0};

	memset(score, 0, sizeof(*score));
	for (uint32_t at = 0; at < end;) {
		uint32_t count = end - at < QMW_RUNNER_CHUNK ? end - at : QMW_RUNNER_CHUNK;
		qmla_status_t status = feed(&readers[0], text + at, count);

		if (status == QMLA_OK)
			status = feed(&readers[1], text + at, count);
		if (status != QMLA_OK)
			return status;
		for (uint32_t i = 0; i < count; i++) {
			if (at + i + 1 < window->offset)
				continue;
			score_position(readers[0].logits + (size_t)i * vocab,
				       readers[1].runner ? readers[1].logits + (size_t)i * vocab
							 : NULL,
				       vocab, text[at + i + 1], &totals, score);
		}
		at += count;
	}
	score->bits_per_byte = totals.bits / score->positions;
	score->reference_bits = totals.reference_bits / score->positions;
	score->kl = totals.kl / score->positions;
	return QMLA_OK;
}

qmla_status_t qmw_window_run(const struct qmw_model *model, const struct qmw_model *reference,
			     const uint8_t *text, size_t bytes, const struct qmw_window *window,
			     struct qmw_window_score *score)
{
	struct reader readers[2] = {0};
	qmla_status_t status;

	if (window->offset == 0 || window->positions == 0 || window->offset > bytes ||
	    window->positions > bytes - window->offset)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qmw_runner_create(model, window->offset + window->positions, &readers[0].runner);
	if (status == QMLA_OK && reference)
		status = qmw_runner_create(reference, window->offset + window->positions,
					   &readers[1].runner);
	if (status == QMLA_OK)
		status = run(readers, qmw_model_info(model)->vocab, text, window, score);
	qmw_runner_destroy(readers[0].runner);
	qmw_runner_destroy(readers[1].runner);
	return status;
}
