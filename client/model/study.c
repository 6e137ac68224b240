/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/study.h"

#include <stdlib.h>
#include <string.h>

#include "client/model/attention_float.h"
#include "client/model/study_internal.h"
#include "common/log.h"

#define COMPONENT "model"

static const char *const protects[] = {"none", "block", "sink4+recent128"};

qmla_status_t qmw_protect_parse(const char *text, enum qmw_protect *protect)
{
	for (int i = 0; i < 3; i++) {
		if (strcmp(text, protects[i]) == 0) {
			*protect = (enum qmw_protect)i;
			return QMLA_OK;
		}
	}
	return QMLA_ERR_INVALID_ARGUMENT;
}

const char *qmw_protect_name(enum qmw_protect protect)
{
	return protects[protect];
}

static qmla_status_t init_study(const struct qmw_model *model,
				const struct qmw_study_settings *settings, struct qmw_study *study)
{
	const struct qmw_config *c = &model->config;
	enum qmk_format format = settings->format ? settings->format : QMK_FORMAT_C4R4;

	study->settings = *settings;
	study->settings.format = format;
	if (settings->exact || settings->quantiser == QMW_QUANTISER_PAPER)
		return QMLA_OK;
	if (format == QMK_FORMAT_PAPER_C4R4) {
		qmc_error(COMPONENT, "paper-c4r4 is a format of the paper's quantiser");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return qmk_layout_init(format, c->layers, c->content_dim, c->rope_dim, &study->layout);
}

static qmla_status_t create_study(const struct qmw_model *model,
				  const struct qmw_study_settings *settings,
				  struct qmw_study **study)
{
	struct qmw_study *self = calloc(1, sizeof(*self));
	qmla_status_t status;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	status = init_study(model, settings, self);
	if (!status) {
		self->errors = calloc(model->config.layers, sizeof(*self->errors));
		status = self->errors ? QMLA_OK : QMLA_ERR_NO_MEMORY;
	}
	if (status || pthread_mutex_init(&self->lock, NULL) != 0) {
		free(self->errors);
		free(self);
		return status ? status : QMLA_ERR_NO_MEMORY;
	}
	*study = self;
	return QMLA_OK;
}

void qmw_study_free(struct qmw_study *study)
{
	if (!study)
		return;
	pthread_mutex_destroy(&study->lock);
	free(study->errors);
	free(study);
}

qmla_status_t qmw_study_sequence(const struct qmw_model *model,
				 const struct qmw_study_settings *settings, uint32_t max_tokens,
				 struct qmw_sequence **sequence)
{
	struct qmw_sequence *self;
	qmla_status_t status;

	if (model->options.cache != QMW_CACHE_STUDY) {
		qmc_error(COMPONENT, "a study needs a model opened with the study's cache");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	status = qmw_sequence_create(model, max_tokens, &self);
	if (status)
		return status;
	status = create_study(model, settings, &self->study);
	if (status) {
		qmw_sequence_destroy(self);
		return status;
	}
	*sequence = self;
	return QMLA_OK;
}

float *qmw_study_rows(const struct qmw_sequence *sequence, uint32_t layer, bool far)
{
	size_t layers = sequence->model->config.layers;

	return qmw_sequence_float_rows(sequence, 0) + ((far ? layers : 0) + layer) *
							      sequence->max_tokens *
							      qmw_model_width(sequence->model);
}

void qmw_study_errors(const struct qmw_sequence *sequence, struct qmw_study_error *errors)
{
	for (uint32_t i = 0; sequence->study && i < sequence->model->config.layers; i++) {
		const struct qmw_study_error *from = &sequence->study->errors[i];

		errors[i].output_error += from->output_error;
		errors[i].output_energy += from->output_energy;
		errors[i].position_error += from->position_error;
		errors[i].position_energy += from->position_energy;
		errors[i].content_error += from->content_error;
		errors[i].content_energy += from->content_energy;
		errors[i].rope_error += from->rope_error;
		errors[i].rope_energy += from->rope_energy;
	}
}

/* Keys under the rule, or all near. */
static struct qmw_float_keys keys_of(const struct qmw_context *context, const struct qmw_span *span,
				     bool near)
{
	const struct qmw_study_settings *settings = &span->sequence->study->settings;
	struct qmw_float_keys keys = qmw_float_keys(context, span->sequence);

	keys.protect = settings->protect;
	if (near || settings->exact)
		keys.far = (struct qmw_float_version){NULL, NULL};
	return keys;
}

static void add_squares(const float *a, const float *b, size_t count, double *error, double *energy)
{
	double e = 0, all = 0;

	for (size_t i = 0; i < count; i++) {
		double d = (double)b[i] - (double)a[i];

		e += d * d;
		all += (double)a[i] * (double)a[i];
	}
	*error += e;
	*energy += all;
}

/* Positional scores of one head of one query, both versions, over the keys it sees. */
static void score_positions(const float *query, const float *near, const float *far, uint32_t count,
			    uint32_t dim, uint32_t stride, struct qmw_study_error *sum)
{
	for (uint32_t t = 0; t < count; t++) {
		float a = 0, b = 0;

		for (uint32_t k = 0; k < dim; k++) {
			a += query[k] * near[(size_t)t * stride + k];
			b += query[k] * far[(size_t)t * stride + k];
		}
		sum->position_error += ((double)b - (double)a) * ((double)b - (double)a);
		sum->position_energy += (double)a * (double)a;
	}
}

/* The full causal matrix, every key far: what the paper's RoPE objective measures. */
static void compare_positions(const struct qmw_context *context, const struct qmw_span *span,
			      struct qmw_study_error *sum)
{
	const struct qmw_config *c = &context->model->config;
	uint32_t width = qmw_model_width(context->model), head = c->nope_dim + c->rope_dim;
	const float *near = qmw_study_rows(span->sequence, context->layer, false);
	const float *far = qmw_study_rows(span->sequence, context->layer, true);

	for (uint32_t r = 0; r < span->count; r++)
		for (uint32_t h = 0; h < c->heads; h++)
			score_positions(context->query +
						((size_t)(span->first_row + r) * c->heads + h) *
							head +
						c->nope_dim,
					near + c->content_dim, far + c->content_dim,
					span->total - span->count + r + 1, c->rope_dim, width, sum);
}

/* Both heads' values through o_proj, and what differs. */
static void compare_outputs(struct qmw_context *context, const struct qmw_span *span,
			    const float *near_heads, const float *far_heads, float *outputs,
			    struct qmw_study_error *sum)
{
	const struct qmw_config *c = &context->model->config;
	const struct qmw_matrix *output = &context->model->weights.layer[context->layer].output;
	size_t heads = (size_t)c->heads * c->value_dim, rows = (size_t)span->count * c->hidden;

	qmw_context_product(context, output, near_heads, heads, span->count, outputs, c->hidden);
	qmw_context_product(context, output, far_heads, heads, span->count, outputs + rows,
			    c->hidden);
	add_squares(outputs, outputs + rows, rows, &sum->output_error, &sum->output_energy);
}

static qmla_status_t compare(struct qmw_context *context, struct qmw_lane *lane,
			     const struct qmw_span *span, const float *heads)
{
	const struct qmw_config *c = &context->model->config;
	struct qmw_study *study = span->sequence->study;
	size_t count = (size_t)span->count * c->heads * c->value_dim;
	struct qmw_float_keys keys = keys_of(context, span, false);
	struct qmw_study_error sum = {0}, *to = &study->errors[context->layer];
	float *far_heads = qmw_buffer_reserve(
		&lane->parts, (count + 2 * (size_t)span->count * c->hidden) * sizeof(*far_heads));
	qmla_status_t status;

	if (!far_heads)
		return QMLA_ERR_NO_MEMORY;
	status = qmw_attention_float_keys(context, lane, span, &keys, far_heads);
	if (status)
		return status;
	compare_outputs(context, span, heads, far_heads, far_heads + count, &sum);
	compare_positions(context, span, &sum);
	pthread_mutex_lock(&study->lock);
	to->output_error += sum.output_error;
	to->output_energy += sum.output_energy;
	to->position_error += sum.position_error;
	to->position_energy += sum.position_energy;
	pthread_mutex_unlock(&study->lock);
	return QMLA_OK;
}

qmla_status_t qmw_study_attend(struct qmw_context *context, struct qmw_lane *lane,
			       const struct qmw_span *span, float *heads)
{
	bool compares = span->sequence->study->settings.compare;
	struct qmw_float_keys keys = keys_of(context, span, compares);
	qmla_status_t status = qmw_attention_float_keys(context, lane, span, &keys, heads);

	return status || !compares ? status : compare(context, lane, span, heads);
}
