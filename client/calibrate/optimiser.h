/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * AdamW over one array of parameters, with the paper's schedule: linear warm-up over the
 * first tenth of the steps, cosine to zero, gradients clipped to a norm.
 */
#ifndef QMW_CALIBRATE_OPTIMISER_H
#define QMW_CALIBRATE_OPTIMISER_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

struct qmw_optimiser_options {
	uint32_t steps;   /**< of the whole schedule, at least 1 */
	double warm_up;   /**< share of the steps, 0.1 */
	double beta1;     /**< 0.9 */
	double beta2;     /**< 0.999 */
	double epsilon;   /**< 1e-8 */
	double decay;     /**< decoupled weight decay; the paper uses none */
	double clip_norm; /**< largest norm of the whole gradient; 0: not clipped */
};

/** The paper's settings for @p steps steps. */
struct qmw_optimiser_options qmw_optimiser_defaults(uint32_t steps);

struct qmw_optimiser;

/** For @p count parameters; @p rates [count] are copied: each one's own learning rate. */
qmla_status_t qmw_optimiser_create(const struct qmw_optimiser_options *options, size_t count,
				   const double *rates, struct qmw_optimiser **optimiser);
void qmw_optimiser_destroy(struct qmw_optimiser *optimiser); /**< accepts NULL */

/** What the rates are multiplied with at @p step, 0 … steps - 1. Pure. */
double qmw_optimiser_schedule(const struct qmw_optimiser_options *options, uint32_t step);

/**
 * One step: @p gradient [count] is clipped in place, @p parameters [count] move. Returns
 * the gradient's norm before clipping.
 */
double qmw_optimiser_step(struct qmw_optimiser *optimiser, double *gradient, double *parameters);

#endif /* QMW_CALIBRATE_OPTIMISER_H */
