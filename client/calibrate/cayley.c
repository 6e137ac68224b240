/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/cayley.h"

#include <stdlib.h>
#include <string.h>

#include "client/calibrate/linear.h"

struct qmw_cayley {
	uint32_t n;
	double *base;      /* NULL: identity */
	double *q;         /* [n][n], of the last parameters */
	double *work;      /* [2][n][n] */
	struct qmw_lu *lu; /* of I - X */
};

static double *matrix_create(uint32_t n, size_t count)
{
	return malloc((size_t)n * n * count * sizeof(double));
}

qmla_status_t qmw_cayley_create(uint32_t n, const double *base, struct qmw_cayley **cayley)
{
	struct qmw_cayley *self = calloc(1, sizeof(*self));

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->n = n;
	self->q = matrix_create(n, 1);
	self->work = matrix_create(n, 2);
	if (base)
		self->base = matrix_create(n, 1);
	if (!self->q || !self->work || (base && !self->base)) {
		qmw_cayley_destroy(self);
		return QMLA_ERR_NO_MEMORY;
	}
	if (base)
		memcpy(self->base, base, (size_t)n * n * sizeof(double));
	*cayley = self;
	return QMLA_OK;
}

void qmw_cayley_destroy(struct qmw_cayley *cayley)
{
	if (!cayley)
		return;
	qmw_lu_destroy(cayley->lu);
	free(cayley->work);
	free(cayley->q);
	free(cayley->base);
	free(cayley);
}

/* I + sign X */
static void shifted(uint32_t n, const double *parameters, double sign, double *out)
{
	const double *next = parameters;

	for (uint32_t i = 0; i < n; i++) {
		out[(size_t)i * n + i] = 1;
		for (uint32_t j = i + 1; j < n; j++, next++) {
			out[(size_t)i * n + j] = sign * *next / 2;
			out[(size_t)j * n + i] = -sign * *next / 2;
		}
	}
}

static void transpose(uint32_t n, const double *in, double *out)
{
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < n; j++)
			out[(size_t)j * n + i] = in[(size_t)i * n + j];
}

qmla_status_t qmw_cayley_rotation(struct qmw_cayley *cayley, const double *parameters,
				  double *rotation)
{
	uint32_t n = cayley->n;
	struct qmw_lu *lu;
	qmla_status_t status;

	shifted(n, parameters, -1, cayley->work);
	status = qmw_lu_create(cayley->work, n, &lu);
	if (status != QMLA_OK)
		return status;
	qmw_lu_destroy(cayley->lu);
	cayley->lu = lu;
	/* Right sides are stored one a row: the rows of (I + X)^T = I - X, still in work. */
	qmw_lu_solve(lu, false, n, cayley->work);
	transpose(n, cayley->work, cayley->q);
	if (cayley->base)
		qmw_square_product(n, false, cayley->base, false, cayley->q, rotation);
	else
		memcpy(rotation, cayley->q, (size_t)n * n * sizeof(double));
	return QMLA_OK;
}

/*
 * (I - X) dQ = dX (I + Q), so <G, dQ> = <(I - X)^-T G (I + Q)^T, dX>; X is half of K,
 * and a parameter is in K twice, with opposite signs.
 */
qmla_status_t qmw_cayley_gradient(struct qmw_cayley *cayley, const double *rotation_gradient,
				  double *gradient)
{
	uint32_t n = cayley->n;
	size_t count = (size_t)n * n;
	double *a = cayley->work, *b = cayley->work + count, *next = gradient;

	if (cayley->base)
		qmw_square_product(n, true, cayley->base, false, rotation_gradient, a);
	else
		memcpy(a, rotation_gradient, count * sizeof(double));
	transpose(n, a, b);
	qmw_lu_solve(cayley->lu, true, n, b); /* b = ((I - X)^-T G)^T */
	for (uint32_t i = 0; i < n; i++)
		cayley->q[(size_t)i * n + i] += 1;
	qmw_square_product(n, true, b, true, cayley->q, a);
	for (uint32_t i = 0; i < n; i++)
		cayley->q[(size_t)i * n + i] -= 1;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = i + 1; j < n; j++)
			*next++ = (a[(size_t)i * n + j] - a[(size_t)j * n + i]) / 2;
	return QMLA_OK;
}
