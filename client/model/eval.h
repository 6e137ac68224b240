/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * How good a cache is: the model reads texts (teacher forcing) and is scored on
 * what it would have said. Byte-level models: a token is a byte.
 *
 * Several readers read the same text side by side, each with a cache of its own, and are
 * held against one reference that reads it once for all.
 */
#ifndef QMW_EVAL_H
#define QMW_EVAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/bootstrap.h"
#include "client/model/model.h"
#include "client/model/study.h"

/** A model and how its cache is kept. */
struct qmw_eval_reader {
	const struct qmw_model *model;
	const struct qmw_study_settings *study; /**< of a model with QMW_CACHE_STUDY, else NULL */
};

/** Scores of a text, cut from its start into whole sequences. */
struct qmw_eval_text {
	uint32_t sequences;
	uint64_t positions;    /**< scored: length - 1 a sequence */
	double bits_per_byte;  /**< mean over sequences of the mean loss of bytes 1 … length-1 */
	bool compared;         /**< with a reference model */
	double reference_bits; /**< the same of the reference */
	double kl;             /**< mean KL(reference || model) in nats, every position */
	double top1;           /**< share of positions with the same greedy byte */
	/** Of bits_per_byte - reference_bits, kl and top1, by bootstrap over sequences. */
	struct qmw_interval bits_change_interval, kl_interval, top1_interval;
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
	uint64_t seed;          /**< of the bootstrap */
	/** Called after each sequence or prompt, may be NULL; false ends the run
	 * (QMLA_ERR_CANCELLED). */
	bool (*progress)(void *user, uint32_t done, uint32_t of);
	void *user;
};

/**
 * Scores each of @p readers on @p text into @p results [count]; with @p reference (the
 * same weights, another cache, or the weights before fusing) also how far apart they are.
 * Blocks. QMLA_ERR_INVALID_ARGUMENT: text shorter than a sequence, bytes outside the
 * vocabulary, other vocabularies.
 */
qmla_status_t qmw_eval_texts(const struct qmw_eval_reader *readers, uint32_t count,
			     const struct qmw_eval_reader *reference, const uint8_t *text,
			     size_t bytes, const struct qmw_eval_options *options,
			     struct qmw_eval_text *results);

/** One reader with its model's own cache; @p reference may be NULL. */
qmla_status_t qmw_eval_text(const struct qmw_model *model, const struct qmw_model *reference,
			    const uint8_t *text, size_t bytes,
			    const struct qmw_eval_options *options, struct qmw_eval_text *result);

/**
 * Reads @p text with a comparing reader (study.h) and adds up what differs in each layer:
 * @p errors [cache layers]. Errors as qmw_eval_texts.
 */
qmla_status_t qmw_eval_layers(const struct qmw_eval_reader *reader, const uint8_t *text,
			      size_t bytes, const struct qmw_eval_options *options,
			      struct qmw_study_error *errors);

/**
 * Scores each reader on prompts, one JSON object a line: {"text": …, "answers":
 * [[start, end), …]} in bytes. An answer is right when the greedy next byte is
 * right at each of its bytes given the true ones before. Prompts longer than
 * options->length are left out. QMLA_ERR_FORMAT names the line.
 */
qmla_status_t qmw_eval_recalls(const struct qmw_eval_reader *readers, uint32_t count,
			       const char *lines, size_t bytes,
			       const struct qmw_eval_options *options,
			       struct qmw_eval_recall *results);

/** One reader with its model's own cache. */
qmla_status_t qmw_eval_recall(const struct qmw_model *model, const char *lines, size_t bytes,
			      const struct qmw_eval_options *options,
			      struct qmw_eval_recall *result);

#endif /* QMW_EVAL_H */
