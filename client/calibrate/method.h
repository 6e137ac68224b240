/* SPDX-License-Identifier: Apache-2.0 */
/** @file The ways to calibrate one attention sub-layer, and what is known about it after. */
#ifndef QMW_CALIBRATE_METHOD_H
#define QMW_CALIBRATE_METHOD_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/held_out.h"
#include "client/calibrate/learn.h"
#include "client/calibrate/samples.h"
#include "client/calibrate/transform.h"
#include "client/model/constants.h"

enum qmw_method {
	QMW_METHOD_DEFAULT,     /**< means, spreading rotation, feedback rounding; closed form */
	QMW_METHOD_PAPER,       /**< the paper's learned transforms */
	QMW_METHOD_RTN,         /**< no transform */
	QMW_METHOD_SMOOTHQUANT, /**< diagonal scales only, alpha = 0.5 */
	QMW_METHOD_QUAROT,      /**< Hadamard on the content; RoPE as it is */
};

/** "default", "paper", "rtn", "smoothquant", "quarot". QMLA_ERR_INVALID_ARGUMENT otherwise. */
qmla_status_t qmw_method_parse(const char *text, enum qmw_method *method);
const char *qmw_method_name(enum qmw_method method);

/** The quantiser that a method is meant for: the paper's for all but the default. */
enum qmw_quantiser qmw_method_quantiser(enum qmw_method method);

/** One line on what a method does, for quantmla.json's "recipe"; below 96 bytes. */
const char *qmw_method_recipe(enum qmw_method method);

struct qmw_method_options {
	enum qmw_method method;
	uint32_t content_bits; /**< 4 or 2 */
	uint32_t probes;       /**< Rademacher probes a sequence */
	uint32_t steps;        /**< of the paper's method, a path */
	double damping;        /**< default method: times its own; 0: chosen, 1 if that will do */
	/** After each step of the paper's method, may be NULL. */
	void (*progress)(void *user, const char *path, uint32_t done, uint32_t of);
	void *user;
};

/** All numbers: written to disk as they are. */
struct qmw_layer_figures {
	struct qmw_held_out before, after; /**< without any transform, and with */
	double tokens;                     /**< that calibrated it */
	double content_mean_share;         /**< |mean|^2 / E|row|^2, default method */
	double rope_mean_share;
	double content_sensitivity, rope_sensitivity; /**< tr(H) / dimension */
	double content_condition, rope_condition;     /**< max D / min D */
	double damping;                               /**< times the method's own */
	double rotation_before, rotation_after;       /**< the error model's J (rotation_flow.h) */
	struct qmw_learn_result content, rope;        /**< paper's method */
};

/**
 * Learns @p transform (zeroed; freed with qmw_transform_free, also after a failure) and
 * measures it on the held-out sequences. With the paper's method samples->outputs is there.
 */
qmla_status_t qmw_method_learn(const struct qmw_samples *samples,
			       const struct qmw_method_options *options,
			       struct qmw_transform *transform, struct qmw_layer_figures *figures);

#endif /* QMW_CALIBRATE_METHOD_H */
