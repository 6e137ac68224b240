/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/rotation_flow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/feedback_model.h"
#include "client/calibrate/linear.h"

struct qmw_rotation_flow qmw_rotation_flow_defaults(uint32_t content_bits)
{
	return (struct qmw_rotation_flow){.iterations = 200,
					  .rate = 0.3,
					  .momentum = 0.9,
					  .noise = content_bits == 2 ? 0.14 : 0.0115};
}

/* H, Sigma and R on their way, all in the coordinates of the moment. */
struct state {
	uint32_t n;
	size_t square;
	struct qmw_feedback_model model;
	double *h, *sigma, *r, *best; /* [n][n], the first of one allocation */
	double *to_h, *pull, *drift, *step, *work;
	double *variance, *tau2, *to_variance; /* [n] */
};

static void state_fini(struct state *s)
{
	qmw_feedback_model_fini(&s->model);
	free(s->h);
}

static qmla_status_t state_init(struct state *s, uint32_t n)
{
	size_t square = (size_t)n * n;
	qmla_status_t status;
	double **const squares[] = {&s->sigma, &s->r,     &s->best, &s->to_h,
				    &s->pull,  &s->drift, &s->step, &s->work};
	double *at;

	memset(s, 0, sizeof(*s));
	s->n = n;
	s->square = square;
	status = qmw_feedback_model_init(&s->model, n);
	if (status != QMLA_OK)
		return status;
	s->h = calloc(9 * square + 3 * (size_t)n, sizeof(double));
	if (!s->h) {
		state_fini(s);
		return QMLA_ERR_NO_MEMORY;
	}
	at = s->h + square;
	for (size_t i = 0; i < sizeof(squares) / sizeof(squares[0]); i++, at += square)
		*squares[i] = at;
	s->variance = at;
	s->tau2 = at + n;
	s->to_variance = at + 2 * (size_t)n;
	return QMLA_OK;
}

/* matrix = Q^T matrix Q, kept symmetric. */
static void turn(struct state *s, const double *q, double *matrix)
{
	uint32_t n = s->n;

	qmw_square_product(n, true, q, false, matrix, s->work);
	qmw_square_product(n, false, s->work, false, q, matrix);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < i; j++)
			matrix[(size_t)i * n + j] = matrix[(size_t)j * n + i] =
				(matrix[(size_t)i * n + j] + matrix[(size_t)j * n + i]) / 2;
}

static qmla_status_t evaluate(struct state *s, double noise, double *loss)
{
	qmla_status_t status = qmw_feedback_model_set(&s->model, s->h);

	for (uint32_t i = 0; i < s->n; i++)
		s->variance[i] = s->sigma[(size_t)i * s->n + i];
	if (status == QMLA_OK)
		*loss = qmw_feedback_scaled(&s->model, noise, s->variance, s->tau2);
	return status;
}

/*
 * The pull W: J changes by <K, W> when R becomes R (I + K), K skew. With G the gradient to
 * H and L = diag(the one to the variances), W = (H G - G H) + (Sigma L - L Sigma).
 */
static void find_pull(struct state *s, double noise)
{
	uint32_t n = s->n;

	qmw_feedback_scaled_gradient(&s->model, noise, s->tau2, s->to_h, s->to_variance);
	qmw_square_product(n, false, s->h, false, s->to_h, s->work);
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < n; j++) {
			size_t at = (size_t)i * n + j;

			s->pull[at] = s->work[at] - s->work[(size_t)j * n + i] +
				      s->sigma[at] * (s->to_variance[j] - s->to_variance[i]);
		}
	}
}

/* Q = (I + M / 2)^-1 (I - M / 2) with M the step; drift and momentum are per entry. */
static qmla_status_t find_turn(struct state *s, double rate, double *q)
{
	uint32_t n = s->n;
	struct qmw_lu *lu;
	qmla_status_t status;

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < n; j++) {
			size_t at = (size_t)i * n + j;
			double half = rate * s->drift[at] / 2;

			s->work[at] = (i == j) + half;
			q[at] = (i == j) + half; /* the rows of (I - M / 2)^T */
		}
	}
	status = qmw_lu_create(s->work, n, &lu);
	if (status != QMLA_OK)
		return status;
	qmw_lu_solve(lu, false, n, q);
	qmw_lu_destroy(lu);
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < i; j++) {
			double kept = q[(size_t)i * n + j];

			q[(size_t)i * n + j] = q[(size_t)j * n + i];
			q[(size_t)j * n + i] = kept;
		}
	}
	return QMLA_OK;
}

/* The step's entries have about unit size, so that a rate means an angle. */
static double update_drift(struct state *s, double momentum, double *mean_square, uint32_t done)
{
	double sum = 0, bias = 1 - pow(momentum, done + 1.0);

	for (size_t i = 0; i < s->square; i++)
		sum += s->pull[i] * s->pull[i] / (double)s->square;
	*mean_square = momentum * *mean_square + (1 - momentum) * sum;
	for (size_t i = 0; i < s->square; i++)
		s->drift[i] = momentum * s->drift[i] + (1 - momentum) * s->pull[i];
	return 1 / (bias * sqrt(*mean_square / bias) + 1e-300);
}

static qmla_status_t iterate(const struct qmw_rotation_flow *flow, struct state *s, uint32_t done,
			     double *mean_square)
{
	double norm, rate;
	qmla_status_t status;

	find_pull(s, flow->noise);
	norm = update_drift(s, flow->momentum, mean_square, done);
	rate = flow->rate * 0.5 * (1 + cos(acos(-1.0) * done / flow->iterations));
	status = find_turn(s, rate * norm / sqrt((double)s->n), s->step);
	if (status != QMLA_OK)
		return status;
	turn(s, s->step, s->h);
	turn(s, s->step, s->sigma);
	qmw_square_product(s->n, false, s->r, false, s->step, s->work);
	memcpy(s->r, s->work, s->square * sizeof(double));
	return QMLA_OK;
}

static qmla_status_t run(const struct qmw_rotation_flow *flow, struct state *s, double *before,
			 double *after)
{
	double loss, mean_square = 0;
	qmla_status_t status = evaluate(s, flow->noise, &loss);

	if (status != QMLA_OK)
		return status;
	*before = *after = loss;
	memcpy(s->best, s->r, s->square * sizeof(double));
	for (uint32_t done = 0; done < flow->iterations; done++) {
		status = iterate(flow, s, done, &mean_square);
		if (status == QMLA_OK)
			status = evaluate(s, flow->noise, &loss);
		if (status != QMLA_OK)
			return status;
		if (loss < *after) {
			*after = loss;
			memcpy(s->best, s->r, s->square * sizeof(double));
		}
		if (flow->go_on && !flow->go_on(flow->user))
			return QMLA_ERR_CANCELLED;
	}
	return QMLA_OK;
}

/* One Newton-Schulz step: what hundreds of products lost is made good, to rounding. */
static void polish(struct state *s, double *rotation)
{
	uint32_t n = s->n;

	qmw_square_product(n, true, s->best, false, s->best, s->work);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < n; j++)
			s->work[(size_t)i * n + j] =
				1.5 * (i == j) - 0.5 * s->work[(size_t)i * n + j];
	qmw_square_product(n, false, s->best, false, s->work, rotation);
}

qmla_status_t qmw_rotation_flow_run(const struct qmw_rotation_flow *flow, uint32_t n,
				    const double *h, const double *covariance, double *rotation,
				    double *before, double *after)
{
	struct state s;
	qmla_status_t status = state_init(&s, n);

	if (status != QMLA_OK)
		return status;
	memcpy(s.h, h, s.square * sizeof(double));
	memcpy(s.sigma, covariance, s.square * sizeof(double));
	memcpy(s.r, rotation, s.square * sizeof(double));
	turn(&s, rotation, s.h);
	turn(&s, rotation, s.sigma);
	status = run(flow, &s, before, after);
	if (status == QMLA_OK)
		polish(&s, rotation);
	state_fini(&s);
	return status;
}
