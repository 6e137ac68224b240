/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/feedback_model.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/factor.h"
#include "client/calibrate/linear.h"

qmla_status_t qmw_feedback_model_init(struct qmw_feedback_model *model, uint32_t n)
{
	size_t square = (size_t)n * n;

	*model = (struct qmw_feedback_model){.n = n};
	model->a = calloc(5 * square + n, sizeof(double));
	if (!model->a)
		return QMLA_ERR_NO_MEMORY;
	model->b = model->a + square;
	model->work = model->b + square;
	model->d = model->work + 3 * square;
	return QMLA_OK;
}

void qmw_feedback_model_fini(struct qmw_feedback_model *model)
{
	free(model->a);
	memset(model, 0, sizeof(*model));
}

qmla_status_t qmw_feedback_model_set(struct qmw_feedback_model *model, const double *h)
{
	uint32_t n = model->n;
	blasint size = (blasint)n;
	qmla_status_t status = qmw_factor_exact(h, n, model->a, model->d);

	if (status != QMLA_OK)
		return status;
	memset(model->b, 0, (size_t)n * n * sizeof(double));
	for (uint32_t i = 0; i < n; i++)
		model->b[(size_t)i * n + i] = 1;
	cblas_dtrsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasUnit, size, size, 1,
		    model->a, size, model->b, size);
	return QMLA_OK;
}

double qmw_feedback_scaled(const struct qmw_feedback_model *model, double k, const double *variance,
			   double *tau2)
{
	uint32_t n = model->n;
	double loss = 0;

	for (uint32_t i = 0; i < n; i++) {
		const double *b = model->b + (size_t)i * n;

		tau2[i] = variance[i];
		for (uint32_t j = 0; j < i; j++)
			tau2[i] += k * b[j] * b[j] * tau2[j];
		loss += model->d[i] * tau2[i];
	}
	return loss;
}

/*
 * From gradients to D and to B (in work[0], strictly lower) to the one to H.
 * dD = diag(B^T dH B) and dA B = D^-1 lower(B^T dH B), dB = -B (dA B):
 * dL/dH = B (diag(to_d) - Y) B^T, symmetrised, with Y = D^-1 lower(B^T to_b).
 */
static void gradient_to_h(const struct qmw_feedback_model *model, const double *to_d, double *to_h)
{
	uint32_t n = model->n;
	blasint size = (blasint)n;
	size_t square = (size_t)n * n;
	double *y = model->work + square, *half = model->work + 2 * square;

	memcpy(y, model->work, square * sizeof(double));
	cblas_dtrmm(CblasRowMajor, CblasLeft, CblasLower, CblasTrans, CblasUnit, size, size, 1,
		    model->b, size, y, size);
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < n; j++) {
			double *at = &y[(size_t)i * n + j];

			*at = j < i ? -*at / model->d[i] : i == j ? to_d[i] : 0;
		}
	}
	memcpy(half, y, square * sizeof(double));
	cblas_dtrmm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasUnit, size, size, 1,
		    model->b, size, half, size);
	cblas_dtrmm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasUnit, size, size, 1,
		    model->b, size, half, size);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < n; j++)
			to_h[(size_t)i * n + j] =
				(half[(size_t)i * n + j] + half[(size_t)j * n + i]) / 2;
}

void qmw_feedback_scaled_gradient(const struct qmw_feedback_model *model, double k,
				  const double *tau2, double *to_h, double *to_variance)
{
	uint32_t n = model->n;
	double *to_b = model->work;

	/* The adjoint of the forward substitution, from the last coordinate up. */
	memcpy(to_variance, model->d, n * sizeof(double));
	for (uint32_t i = n; i-- > 0;) {
		const double *b = model->b + (size_t)i * n;

		for (uint32_t j = 0; j < i; j++)
			to_variance[j] += k * b[j] * b[j] * to_variance[i];
	}
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < n; j++) {
			size_t at = (size_t)i * n + j;

			to_b[at] = j < i ? 2 * k * to_variance[i] * tau2[j] * model->b[at] : 0;
		}
	}
	gradient_to_h(model, tau2, to_h);
}

static double cubic_mean(const double *v, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += v[i] * v[i] * v[i] / n;
	return cbrt(sum);
}

double qmw_feedback_common_width(const struct qmw_feedback_model *model, double k,
				 const double *variance)
{
	double total = 0;

	for (uint32_t i = 0; i < model->n; i++)
		total += model->d[i];
	return exp(qmw_feedback_common(model, k, variance, NULL, NULL)) / total;
}

/* Scratch of the common-scale model: [3][n] in a row of work. */
struct widths {
	double *noise, *v, *to_d;
};

double qmw_feedback_common(const struct qmw_feedback_model *model, double k, const double *variance,
			   double *to_h, double *to_variance)
{
	uint32_t n = model->n;
	size_t square = (size_t)n * n;
	double *to_b = model->work;
	struct widths w = {.noise = model->work + 2 * square};
	double v0 = cubic_mean(variance, n), v, total = 0, shared = 0;

	w.v = w.noise + n;
	w.to_d = w.v + n;
	for (uint32_t i = 0; i < n; i++) {
		const double *b = model->b + (size_t)i * n;

		w.noise[i] = 0;
		for (uint32_t j = 0; j < i; j++)
			w.noise[i] += b[j] * b[j];
		w.v[i] = variance[i] + k * v0 * w.noise[i];
		total += model->d[i];
	}
	v = cubic_mean(w.v, n);
	if (!to_h)
		return log(v) + log(total);
	for (uint32_t i = 0; i < n; i++)
		shared += w.v[i] * w.v[i] * k * w.noise[i] / n;
	for (uint32_t i = 0; i < n; i++) {
		double to_v = w.v[i] * w.v[i] / (n * v * v * v);

		to_variance[i] =
			to_v + shared * variance[i] * variance[i] / (n * v0 * v0 * v * v * v);
		for (uint32_t j = 0; j < n; j++) {
			size_t at = (size_t)i * n + j;

			to_b[at] = j < i ? 2 * k * v0 * to_v * model->b[at] : 0;
		}
	}
	/* work[2] is overwritten by gradient_to_h only after it has read to_d. */
	for (uint32_t i = 0; i < n; i++)
		w.to_d[i] = 1 / total;
	gradient_to_h(model, w.to_d, to_h);
	return log(v) + log(total);
}
