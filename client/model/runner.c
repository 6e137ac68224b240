/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/runner.h"

#include <stdlib.h>

struct qmw_runner {
	const struct qmw_model *model;
	uint32_t max_tokens;
	struct qmw_context *context;
	struct qmw_sequence *sequence;
	struct qmk_pool pool;
	float *logits;
	bool studies;
	struct qmw_study_settings study;
};

static qmla_status_t create(const struct qmw_model *model,
			    const struct qmw_study_settings *settings, uint32_t max_tokens,
			    struct qmw_runner **runner)
{
	const struct qmk_layout *layout = qmw_model_layout(model);
	struct qmw_runner *self = calloc(1, sizeof(*self));
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->model = model;
	self->max_tokens = max_tokens;
	self->studies = settings != NULL;
	if (settings)
		self->study = *settings;
	self->pool.stride = layout->block_bytes;
	self->pool.base =
		aligned_alloc(QMK_ALIGN, (max_tokens / QMK_PAGE_TOKENS + 1) * layout->block_bytes);
	self->logits = malloc((size_t)QMW_RUNNER_CHUNK * qmw_model_info(model)->vocab *
			      sizeof(*self->logits));
	if (self->pool.base && self->logits)
		status = qmw_context_create(model, QMW_RUNNER_CHUNK, &self->context);
	if (!status)
		status = qmw_runner_reset(self);
	if (status) {
		qmw_runner_destroy(self);
		return status;
	}
	*runner = self;
	return QMLA_OK;
}

qmla_status_t qmw_runner_create(const struct qmw_model *model, uint32_t max_tokens,
				struct qmw_runner **runner)
{
	return create(model, NULL, max_tokens, runner);
}

qmla_status_t qmw_runner_create_study(const struct qmw_model *model,
				      const struct qmw_study_settings *settings,
				      uint32_t max_tokens, struct qmw_runner **runner)
{
	return create(model, settings, max_tokens, runner);
}

const struct qmw_sequence *qmw_runner_sequence(const struct qmw_runner *runner)
{
	return runner->sequence;
}

void qmw_runner_destroy(struct qmw_runner *runner)
{
	if (!runner)
		return;
	qmw_sequence_destroy(runner->sequence);
	qmw_context_destroy(runner->context);
	free(runner->pool.base);
	free(runner->logits);
	free(runner);
}

qmla_status_t qmw_runner_reset(struct qmw_runner *runner)
{
	uint32_t capacity, *slots;
	qmla_status_t status;

	qmw_sequence_destroy(runner->sequence);
	runner->sequence = NULL;
	if (runner->studies)
		status = qmw_study_sequence(runner->model, &runner->study, runner->max_tokens,
					    &runner->sequence);
	else
		status = qmw_sequence_create(runner->model, runner->max_tokens, &runner->sequence);
	if (status)
		return status;
	slots = qmw_sequence_slots(runner->sequence, &capacity);
	for (uint32_t i = 0; i < capacity; i++)
		slots[i] = i;
	return QMLA_OK;
}

qmla_status_t qmw_runner_feed(struct qmw_runner *runner, const uint32_t *tokens, uint32_t count,
			      const float **logits)
{
	struct qmw_forward_item item = {.sequence = runner->sequence,
					.tokens = tokens,
					.count = count,
					.all_logits = true,
					.logits = runner->logits};
	qmla_status_t status;

	if (count > QMW_RUNNER_CHUNK)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qmw_model_forward(runner->model, runner->context, &runner->pool, &item, 1);
	if (!status)
		*logits = runner->logits;
	return status;
}
