/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Dense square problems in double, row-major: what calibration needs of LAPACK
 * (from OpenBLAS), on the calling thread. Pure; any thread.
 */
#ifndef QMW_CALIBRATE_LINEAR_H
#define QMW_CALIBRATE_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

/** LU factors of a square matrix. */
struct qmw_lu;

/** Factors @p matrix [n][n]. QMLA_ERR_NO_MEMORY, QMLA_ERR_INTERNAL (singular). */
qmla_status_t qmw_lu_create(const double *matrix, uint32_t n, struct qmw_lu **lu);
void qmw_lu_destroy(struct qmw_lu *lu); /**< accepts NULL */

/**
 * Solves M X = B (or M^T X = B with @p transposed) in place for @p columns right sides:
 * @p b [columns][n], every right side contiguous, so row c of @p b is column c of B.
 */
void qmw_lu_solve(const struct qmw_lu *lu, bool transposed, uint32_t columns, double *b);

/**
 * Eigenvalues ascending and orthonormal eigenvectors of a symmetric @p matrix [n][n]:
 * row i of @p vectors [n][n] belongs to @p values [i]. The sign of a vector is fixed: its
 * largest component is positive. QMLA_ERR_NO_MEMORY, QMLA_ERR_INTERNAL (no convergence).
 */
qmla_status_t qmw_symmetric_eigen(const double *matrix, uint32_t n, double *values,
				  double *vectors);

/** C = op(A) op(B), all [n][n]; C is neither A nor B. */
void qmw_square_product(uint32_t n, bool transpose_a, const double *a, bool transpose_b,
			const double *b, double *c);

/** Largest |M^T M - I|: how far @p matrix [n][n] is from orthogonal. -1 without memory. */
double qmw_orthogonality(const double *matrix, uint32_t n);

/**
 * A fixed orthogonal matrix [n][n] that spreads every coordinate over all: Hadamard
 * (Sylvester) of the largest power of two in n, Kronecker a cosine basis of the odd rest,
 * normalised. Symmetric when n is a power of two.
 */
void qmw_spreading_rotation(uint32_t n, double *matrix);

#endif /* QMW_CALIBRATE_LINEAR_H */
