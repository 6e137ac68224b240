/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The training run that both paths of the paper's method have in common: alpha chosen
 * held-out, AdamW on batches, an anchor, the best held-out parameters kept (paper.md,
 * "Calibration"). A path brings its loss. Parameters are the path's own (a rotation's,
 * angles), then log-scales.
 */
#ifndef QMW_CALIBRATE_TRAINER_H
#define QMW_CALIBRATE_TRAINER_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/learn.h"
#include "client/calibrate/samples.h"

/** One path, as the trainer sees it. */
struct qmw_trainee {
	const char *name; /**< for progress */
	uint64_t order;   /**< number of its order of batches: each path has its own */
	size_t own;       /**< parameters before the log-scales; they begin at 0 */
	uint32_t scales;
	double own_rate;
	void *user;
	/** Mean loss of the sequences @p indices, and @p gradient [own + scales] unless NULL. */
	qmla_status_t (*loss)(void *user, const uint32_t *indices, uint32_t count,
			      const double *parameters, double *loss, double *gradient);
};

/**
 * Trains. @p amplitude [scales] gives the initial scales; @p best [own + scales] receives
 * the parameters with the least held-out loss. Both outputs are defined on success only.
 */
qmla_status_t qmw_train(const struct qmw_samples *samples, const struct qmw_learn_options *options,
			const struct qmw_trainee *trainee, const double *amplitude, double *best,
			struct qmw_learn_result *result);

#endif /* QMW_CALIBRATE_TRAINER_H */
