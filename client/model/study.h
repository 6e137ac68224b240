/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A cache for measuring, not for serving: float32 rows in two versions, "near" as an
 * unquantised cache holds them and "far" as they come back from a quantiser. Which one a
 * query sees of a key is the protection rule. A model opened with QMW_CACHE_STUDY runs
 * sequences under any settings, so that one set of weights serves all comparisons.
 */
#ifndef QMW_STUDY_H
#define QMW_STUDY_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/constants.h"
#include "client/model/model.h"

enum qmw_protect {
	QMW_PROTECT_NONE,   /**< every key is far, the query's own too */
	QMW_PROTECT_BLOCK,  /**< the product's rule: keys of the query's own block are near */
	QMW_PROTECT_WINDOW, /**< the paper's: the first 4 keys and the last 128 are near */
};

/** "none", "block", "sink4+recent128". QMLA_ERR_INVALID_ARGUMENT otherwise. */
qmla_status_t qmw_protect_parse(const char *text, enum qmw_protect *protect);
const char *qmw_protect_name(enum qmw_protect protect);

struct qmw_study_settings {
	bool exact;             /**< nothing quantised: all keys near */
	bool float32;           /**< near rows are not rounded to BF16 */
	enum qmk_format format; /**< of the far rows; for the paper's quantiser its bits only */
	enum qmw_quantiser quantiser;
	enum qmw_protect protect;
	/** The text is read with near keys; beside each sub-layer's output the one under the
	 * rule is computed and compared (qmw_study_errors). */
	bool compare;
};

/** Of one cache layer, sums over everything that a comparing sequence read. */
struct qmw_study_error {
	double output_error, output_energy; /**< |Y' - Y|^2 and |Y|^2, after o_proj */
	double position_error,
		position_energy;              /**< the same of q_rope . k_rope, causal, all heads */
	double content_error, content_energy; /**< of the cached latents, mean taken */
	double rope_error, rope_energy;       /**< of the cached keys, mean taken */
};

/** An empty sequence of at most @p max_tokens tokens; @p model was opened with QMW_CACHE_STUDY.
 * QMLA_ERR_INVALID_ARGUMENT: another cache, a format that it has no pages of. */
qmla_status_t qmw_study_sequence(const struct qmw_model *model,
				 const struct qmw_study_settings *settings, uint32_t max_tokens,
				 struct qmw_sequence **sequence);

/** @p errors [layers of the model's cache]: adds the sequence's sums. */
void qmw_study_errors(const struct qmw_sequence *sequence, struct qmw_study_error *errors);

/** The paper's quantiser (docs/format.md, 3) at 2 or 4 bits: @p values [n], groups of 64 (the last
 * may be shorter), scales rounded to BF16 or kept, are replaced by what is read back. Pure. */
void qmw_study_paper_round(float *values, uint32_t n, uint32_t bits, bool scale_bf16);

#endif /* QMW_STUDY_H */
