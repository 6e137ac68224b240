/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Rotations as R = R0 Q(a), Q = (I - X)^-1 (I + X) (Cayley) with X = K / 2 and K the
 * skew-symmetric matrix whose strict upper triangle is a, row by row. a = 0 is R0. Exact
 * for every a: R is orthogonal to rounding, no drift however many steps are taken.
 */
#ifndef QMW_CALIBRATE_CAYLEY_H
#define QMW_CALIBRATE_CAYLEY_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

struct qmw_cayley;

/** Of order @p n from @p base R0 [n][n] (copied), NULL: the identity. QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_cayley_create(uint32_t n, const double *base, struct qmw_cayley **cayley);
void qmw_cayley_destroy(struct qmw_cayley *cayley); /**< accepts NULL */

/** Number of parameters, n (n - 1) / 2. */
static inline size_t qmw_cayley_parameters(uint32_t n)
{
	return (size_t)n * (n - 1) / 2;
}

/** R [n][n] of @p parameters; also what qmw_cayley_gradient is taken at. QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_cayley_rotation(struct qmw_cayley *cayley, const double *parameters,
				  double *rotation);

/** From dL/dR [n][n] to dL/da, at the last qmw_cayley_rotation. QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_cayley_gradient(struct qmw_cayley *cayley, const double *rotation_gradient,
				  double *gradient);

#endif /* QMW_CALIBRATE_CAYLEY_H */
