/* SPDX-License-Identifier: Apache-2.0 */
/** @file A layer's figures as JSON, for quantmla.json and for --json. */
#ifndef QMW_CALIBRATE_FIGURES_H
#define QMW_CALIBRATE_FIGURES_H

#include <jansson.h>

#include "client/calibrate/method.h"

/** An object of the figures that @p method has; a new reference, NULL without memory. */
json_t *qmw_figures_json(enum qmw_method method, const struct qmw_layer_figures *figures);

/** An array of @p count of them. */
json_t *qmw_figures_array(enum qmw_method method, const struct qmw_layer_figures *figures,
			  uint32_t count);

#endif /* QMW_CALIBRATE_FIGURES_H */
