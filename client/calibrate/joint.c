/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/joint.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/linear.h"

double qmw_trace(const double *matrix, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += matrix[(size_t)i * n + i];
	return sum;
}

/* Second moments less the mean's; a trace of the mean variance keeps it positive definite. */
static void covariance(const double *mean, const double *moment, uint32_t n, double *out)
{
	double floor_of;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < n; j++)
			out[(size_t)i * n + j] = moment[(size_t)i * n + j] - mean[i] * mean[j];
	floor_of = 1e-9 * fmax(qmw_trace(out, n), 0) / n;
	for (uint32_t i = 0; i < n; i++)
		out[(size_t)i * n + i] = fmax(out[(size_t)i * n + i], 0) + floor_of;
}

static qmla_status_t alloc(struct qmw_joint *self, uint32_t d_c, uint32_t d_r)
{
	size_t cc = (size_t)d_c * d_c, cr = (size_t)d_c * d_r, rr = (size_t)d_r * d_r;

	*self = (struct qmw_joint){.content_dim = d_c, .rope_dim = d_r};
	self->content = malloc((2 * cc + 2 * cr + 2 * rr) * sizeof(double));
	if (!self->content)
		return QMLA_ERR_NO_MEMORY;
	self->content_covariance = self->content + cc;
	self->cross = self->content_covariance + cc;
	self->response = self->cross + cr;
	self->rope = self->response + cr;
	self->rope_covariance = self->rope + rr;
	return QMLA_OK;
}

/* G = H_u^-1 H_x: the solver takes right sides as rows. */
static qmla_status_t solve_response(struct qmw_joint *self)
{
	uint32_t d_c = self->content_dim, d_r = self->rope_dim;
	double *sides = malloc((size_t)d_r * d_c * sizeof(*sides));
	struct qmw_lu *lu = NULL;
	qmla_status_t status = sides ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (status == QMLA_OK)
		status = qmw_lu_create(self->content, d_c, &lu);
	if (status == QMLA_OK) {
		for (size_t i = 0; i < d_c; i++)
			for (size_t j = 0; j < d_r; j++)
				sides[j * d_c + i] = self->cross[i * d_r + j];
		qmw_lu_solve(lu, false, d_r, sides);
		for (size_t i = 0; i < d_c; i++)
			for (size_t j = 0; j < d_r; j++)
				self->response[i * d_r + j] = sides[j * d_c + i];
	}
	qmw_lu_destroy(lu);
	free(sides);
	return status;
}

/* S_k = H_k - H_x^T G, made symmetric. */
static void complement(struct qmw_joint *self)
{
	uint32_t n = self->rope_dim;
	blasint d_c = (blasint)self->content_dim, d_r = (blasint)n;

	cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, d_r, d_r, d_c, -1, self->cross, d_r,
		    self->response, d_r, 1, self->rope, d_r);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < i; j++)
			self->rope[(size_t)i * n + j] = self->rope[(size_t)j * n + i] =
				(self->rope[(size_t)i * n + j] + self->rope[(size_t)j * n + i]) / 2;
}

qmla_status_t qmw_joint_init(const struct qmw_sensitivity *s, double damping,
			     struct qmw_joint *joint)
{
	uint32_t d_c = s->content_dim, d_r = s->rope_dim;
	double unit = qmw_trace(s->content, d_c) / d_c;
	struct qmw_joint self;
	qmla_status_t status;

	if (!(unit > 0) || !isfinite(unit))
		return QMLA_ERR_INVALID_ARGUMENT;
	status = alloc(&self, d_c, d_r);
	if (status != QMLA_OK)
		return status;
	for (size_t i = 0; i < (size_t)d_c * d_c; i++)
		self.content[i] = s->content[i] / unit + (i % (d_c + 1) == 0 ? damping : 0);
	for (size_t i = 0; i < (size_t)d_c * d_r; i++)
		self.cross[i] = s->cross[i] / unit;
	for (size_t i = 0; i < (size_t)d_r * d_r; i++)
		self.rope[i] = s->rope[i] / unit;
	covariance(s->content_mean, s->content_moment, d_c, self.content_covariance);
	covariance(s->rope_mean, s->rope_moment, d_r, self.rope_covariance);
	status = solve_response(&self);
	if (status != QMLA_OK) {
		qmw_joint_fini(&self);
		return status;
	}
	complement(&self);
	*joint = self;
	return QMLA_OK;
}

void qmw_joint_fini(struct qmw_joint *joint)
{
	free(joint->content); /* the front of the one allocation */
	memset(joint, 0, sizeof(*joint));
}

/* Columns: z = s Rot(phi) k for a pair, and derivatives turn by Rot(phi) / s. */
void qmw_joint_turn_rows(const struct qmw_rope *rope, const double *angle, const double *scale,
			 uint32_t count, double *rows)
{
	uint32_t n = rope->dim, a, b;

	for (uint32_t j = 0; j < n / 2; j++) {
		double c = cos(angle[j]) / scale[j], s = sin(angle[j]) / scale[j];

		qmw_rope_pair(rope, j, &a, &b);
		for (uint32_t i = 0; i < count; i++) {
			double *row = rows + (size_t)i * n, x = row[a], y = row[b];

			row[a] = c * x - s * y;
			row[b] = s * x + c * y;
		}
	}
}
