/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What both paths of the paper's method share: its schedule, initial scales and the order
 * of the training sequences (paper.md, "Calibration").
 */
#ifndef QMW_CALIBRATE_LEARN_H
#define QMW_CALIBRATE_LEARN_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/samples.h"

/** The paper's schedule; qmw_learn_defaults fills it. */
struct qmw_learn_options {
	uint32_t steps;    /**< 300; 0: the initial values, chosen held-out */
	uint32_t batch;    /**< sequences a step, 4 */
	uint32_t validate; /**< steps between held-out losses, 20 */
	uint32_t content_bits;
	double rotation_rate, angle_rate, scale_rate; /**< 3e-3, 1e-3, 1e-3 */
	double anchor; /**< 1e-4: weight of the mean squared distance from the initial values */
	/** After each step, may be NULL. */
	void (*progress)(void *user, const char *path, uint32_t done, uint32_t of);
	void *user;
};

struct qmw_learn_options qmw_learn_defaults(uint32_t steps, uint32_t content_bits);

/** What came out of one path. */
struct qmw_learn_result {
	double plain;     /**< held-out loss without any transform */
	double initial;   /**< with the initial scales */
	double best;      /**< with what was kept */
	double alpha;     /**< of the initial scales */
	uint32_t at_step; /**< after which it was kept, 0: the initial values */
};

/** Largest log-scale, either way. */
#define QMW_LEARN_LOG_SCALE_MAX 2.0

double qmw_learn_clamp(double log_scale); /**< to what is allowed */
/** @p scale [n] = exp(@p log_scale) */
void qmw_learn_scales(const double *log_scale, uint32_t n, double *scale);

/** log s_j = clip(alpha (mean log a - log a_j), -2, 2); @p amplitude [n]. Zeros count as 1e-12. */
void qmw_learn_initial_scales(const double *amplitude, uint32_t n, double alpha, double *log_scale);

/** The paper's choices of alpha. */
#define QMW_LEARN_ALPHAS 6
extern const double qmw_learn_alphas[QMW_LEARN_ALPHAS];

/** Batches of training sequences, reshuffled each time all were used. */
struct qmw_learn_order {
	uint32_t *indices; /**< owned */
	uint32_t count, next;
	uint64_t seed, epoch;
};

qmla_status_t qmw_learn_order_init(struct qmw_learn_order *order, const struct qmw_samples *samples,
				   uint64_t path);
void qmw_learn_order_free(struct qmw_learn_order *order);
/** Fills @p batch [count]. */
void qmw_learn_order_batch(struct qmw_learn_order *order, uint32_t count, uint32_t *batch);

#endif /* QMW_CALIBRATE_LEARN_H */
