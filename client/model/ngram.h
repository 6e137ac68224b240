/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * LongCat-Flash-Lite's embeddings: to a token's own vector are added vectors of the
 * n-grams that end in it, looked up by a rolling hash (modeling_longcat_ngram.py). With
 * V the vocabulary, N neighbours and K tables for each n = 2 … N, table i has
 * M_i = floor(ratio V + 2 i + 1) rows of hidden / (K (N - 1)), and
 *
 *   id_i = (t_0 + sum over d = 1 … n-1 of t_d (V^d mod M_i)) mod M_i
 *   x    = (embedding[t_0] + sum over i of P_i table_i[id_i]) / (1 + K (N - 1))
 *
 * where t_d is the token d places before, or 0 when the text or an end token between
 * begins later. Tables are tens of gigabytes and a token needs some bytes of each: rows
 * are read from the open checkpoint.
 */
#ifndef QMW_NGRAM_H
#define QMW_NGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/checkpoint.h"
#include "client/model/config.h"
#include "client/model/matrix.h"

struct qmw_ngram {
	uint32_t tables; /**< 0: the model has none */
	uint32_t width;  /**< of a table's rows */
	const struct qmw_checkpoint *checkpoint;
	struct qmw_matrix *projection; /**< [tables]: width → hidden */
};

/** Checks the tensors without reading. Errors as qmw_checkpoint_read. */
qmla_status_t qmw_ngram_check(const struct qmw_checkpoint *checkpoint,
			      const struct qmw_config *config);

/** Reads the projections; @p checkpoint must stay open. A model without n-grams gives an empty one.
 */
qmla_status_t qmw_ngram_read(const struct qmw_checkpoint *checkpoint,
			     const struct qmw_config *config, uint64_t *parameters,
			     struct qmw_ngram *ngram);
void qmw_ngram_free(struct qmw_ngram *ngram); /**< accepts a zeroed one */

/**
 * Rows of every table for a token: @p recent [count], the token and those before it,
 * newest first, count at least 1, and N where the text is long enough. @p ids [tables]. Pure.
 */
void qmw_ngram_ids(const struct qmw_config *config, const uint32_t *recent, uint32_t count,
		   uint64_t *ids);

/**
 * Completes @p hidden [count][hidden], the tokens' own embeddings, count <= 64; @p ids
 * [count][tables], @p rows [count][width] and @p sum [count][hidden] are scratch. Any
 * thread. Errors as qmw_checkpoint_read.
 */
qmla_status_t qmw_ngram_add(const struct qmw_ngram *ngram, const struct qmw_config *config,
			    const uint64_t *ids, uint32_t count, bool round, float *rows,
			    float *sum, float *hidden);

#endif /* QMW_NGRAM_H */
