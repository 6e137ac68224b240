/* SPDX-License-Identifier: Apache-2.0 */
/** @file What the cache costs a sub-layer on the held-out sequences, path by path. */
#ifndef QMW_CALIBRATE_HELD_OUT_H
#define QMW_CALIBRATE_HELD_OUT_H

#include <qmla/status.h>

#include "client/calibrate/samples.h"
#include "client/calibrate/stored.h"

/** Normalised squared errors: sum of squares of the error over that of the exact value. */
struct qmw_held_out {
	double content; /**< of the output, content quantised and RoPE keys exact */
	double rope;    /**< of the output, RoPE keys quantised and content exact */
	double both;    /**< of the output */
	double score;   /**< of the positional scores */
};

/**
 * Measures @p count storages at once (the exact output is computed once a sequence):
 * @p errors [count]. Every query reads stored rows, its own token's too.
 */
qmla_status_t qmw_held_out_measure(const struct qmw_samples *samples,
				   const struct qmw_stored *const *stored, uint32_t count,
				   struct qmw_held_out *errors);

#endif /* QMW_CALIBRATE_HELD_OUT_H */
