/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * How good a cache is: the model reads texts (teacher forcing) and is scored on
 * what it would have said. Byte-level models: a token is a byte.
 */
#ifndef QMW_EVAL_H
#define QMW_EVAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/model.h"

/** Scores of a text, cut from its start into whole sequences. */
struct qmw_eval_text {
	uint32_t sequences;
	uint64_t positions;    /**< scored: length - 1 a sequence */
	double bits_per_byte;  /**< mean over sequences of the mean loss of bytes 1 … length-1 */
	bool compared;         /**< with a reference model */
	double reference_bits; /**< the same of the reference */
	double kl;             /**< mean KL(reference || model) in nats, every position */
	double top1;           /**< share of positions with the same greedy byte */
};

/** Scores of recall prompts. */
struct qmw_eval_recall {
	uint32_t prompts;
	uint32_t answers, right;
	double recall; /**< right / answers */
};

struct qmw_eval_options {
	uint32_t length;        /**< of a sequence, or the longest prompt, in bytes */
	uint32_t max_sequences; /**< 0: all */
	/** Called after each sequence or prompt, may be NULL; false ends the run
	 * (QMLA_ERR_CANCELLED). */
	bool (*progress)(void *user, uint32_t done, uint32_t of);
	void *user;
};

/**
 * Scores @p model on @p text; with @p reference (the same weights, another
 * cache) also how far apart the two are. Blocks. QMLA_ERR_INVALID_ARGUMENT: text
 * shorter than a sequence, bytes outside the vocabulary, other vocabularies.
 */
qmla_status_t qmw_eval_text(const struct qmw_model *model, const struct qmw_model *reference,
			    const uint8_t *text, size_t bytes,
			    const struct qmw_eval_options *options, struct qmw_eval_text *result);

/**
 * Scores @p model on prompts, one JSON object a line: {"text": …, "answers":
 * [[start, end), …]} in bytes. An answer is right when the greedy next byte is
 * right at each of its bytes given the true ones before. Prompts longer than
 * options->length are left out. QMLA_ERR_FORMAT names the line.
 */
qmla_status_t qmw_eval_recall(const struct qmw_model *model, const char *lines, size_t bytes,
			      const struct qmw_eval_options *options,
			      struct qmw_eval_recall *result);

#endif /* QMW_EVAL_H */
