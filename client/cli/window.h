/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Two caches of the same weights read one text; what each would have said next is
 * compared at some positions of it. One thread; blocks.
 */
#ifndef QMW_WINDOW_H
#define QMW_WINDOW_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/model.h"

struct qmw_window {
	uint32_t offset;    /**< first byte that is predicted, >= 1 */
	uint32_t positions; /**< bytes predicted, from offset on */
};

struct qmw_window_score {
	uint32_t positions;
	uint32_t same;        /**< greedy bytes equal to the reference's */
	double kl;            /**< mean KL(reference || model), nats */
	double bits_per_byte; /**< of the text's own bytes */
	double reference_bits;
};

/**
 * Scores @p model against @p reference (NULL: only bits_per_byte). The text's
 * bytes before the window are read, not scored. QMLA_ERR_INVALID_ARGUMENT: the
 * window does not lie within the text.
 */
qmla_status_t qmw_window_run(const struct qmw_model *model, const struct qmw_model *reference,
			     const uint8_t *text, size_t bytes, const struct qmw_window *window,
			     struct qmw_window_score *score);

#endif /* QMW_WINDOW_H */
