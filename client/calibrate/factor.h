/* SPDX-License-Identifier: Apache-2.0 */
/** @file The rounding matrices of a sensitivity: LDL with the unit factor on the other side. */
#ifndef QMW_CALIBRATE_FACTOR_H
#define QMW_CALIBRATE_FACTOR_H

#include <stdint.h>

#include <qmla/status.h>

/** What is added to the diagonal, as a share of its mean. */
#define QMW_FACTOR_DAMPING 1e-3

/**
 * Factors a sensitivity H [n][n] (symmetric up to rounding, positive semidefinite):
 *
 *   H / mean(diag H) + damping I = A^T D A
 *
 * with @p feedback A [n][n] unit lower triangular and @p weight D [n] positive. Only ratios
 * matter to rounding, so the mean diagonal becomes 1. Feedback rounding then minimises
 * e^T H e: with e_i the errors, e^T A^T D A e = sum_i D_i (e_i + sum_{j<i} A_ij e_j)^2.
 * @p condition gets max D / min D. QMLA_ERR_INVALID_ARGUMENT: H has no positive trace or
 * is not positive semidefinite beyond rounding. QMLA_ERR_NO_MEMORY. Pure; any thread.
 */
qmla_status_t qmw_factor(const double *sensitivity, uint32_t n, double damping, double *feedback,
			 double *weight, double *condition);

/** As qmw_factor, of @p h [n][n] itself: no scaling, no damping. Its lower triangle is read. */
qmla_status_t qmw_factor_exact(const double *h, uint32_t n, double *feedback, double *weight);

#endif /* QMW_CALIBRATE_FACTOR_H */
