/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Experts at work. A call's rows go through a mixture in bands: each row finds its
 * experts, each expert takes all of the band's rows that chose it as one product, and
 * each row sums its experts' outputs in the order of their numbers. So neither the band
 * nor the other rows of a call change a row's result.
 */
#ifndef QMW_MIXTURE_H
#define QMW_MIXTURE_H

#include "client/model/internal.h"

#define QMW_BAND_ROWS 512u

/** Scratch for calls of @p max_tokens rows; nothing for a model without experts. */
qmla_status_t qmw_mixture_init(const struct qmw_config *config, uint32_t max_tokens,
			       struct qmw_mixture *mixture);
void qmw_mixture_fini(struct qmw_mixture *mixture); /**< accepts a zeroed one */

/** The normalised inputs of row @p row, which is in the band. */
float *qmw_mixture_input(const struct qmw_context *context, uint32_t row);

/** Finds the experts of the band's rows [@p first, @p first + @p count) from their inputs. */
void qmw_mixture_route(struct qmw_context *context, struct qmw_lane *lane, uint32_t first,
		       uint32_t count);

/** Runs the experts that the band's rows chose, divided over the team. */
void qmw_mixture_run(struct qmw_context *context);

/** @p sum [count][hidden]: the weighted outputs of the rows' experts. */
void qmw_mixture_sum(const struct qmw_context *context, uint32_t first, uint32_t count, float *sum);

#endif /* QMW_MIXTURE_H */
