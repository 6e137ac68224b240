/* SPDX-License-Identifier: Apache-2.0 */
/** @file Which pieces of the texts calibrate, and which are held out. Pure. */
#ifndef QMW_CALIBRATE_CORPUS_H
#define QMW_CALIBRATE_CORPUS_H

#include <stdint.h>

#include <qmla/status.h>

/** Sequences of one length cut from a run of tokens. */
struct qmw_corpus {
	const uint32_t *tokens; /**< the caller's */
	uint32_t length;
	uint32_t train, held_out;
	uint64_t *starts; /**< [train + held_out], training first; owned */
};

/**
 * Picks @p train + @p held_out sequences of @p length, spread evenly over @p tokens, the
 * held-out ones spread among them. Fewer when the text has fewer, in the same proportion.
 * QMLA_ERR_INVALID_ARGUMENT: fewer than two sequences, or none wanted of one kind.
 */
qmla_status_t qmw_corpus_init(const uint32_t *tokens, uint64_t count, uint32_t length,
			      uint32_t train, uint32_t held_out, struct qmw_corpus *corpus);
void qmw_corpus_fini(struct qmw_corpus *corpus); /**< accepts a zeroed one */

/** Tokens of sequence @p index: [length]. */
const uint32_t *qmw_corpus_sequence(const struct qmw_corpus *corpus, uint32_t index);

#endif /* QMW_CALIBRATE_CORPUS_H */
