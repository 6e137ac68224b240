/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/moe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void name_of(uint32_t layer, const char *what, char name[QMW_TENSOR_NAME_BYTES])
{
	snprintf(name, QMW_TENSOR_NAME_BYTES, "model.layers.%" PRIu32 ".mlp.%s", layer, what);
}

static void expert_name(uint32_t layer, uint32_t expert, char name[QMW_TENSOR_NAME_BYTES])
{
	snprintf(name, QMW_TENSOR_NAME_BYTES, "model.layers.%" PRIu32 ".mlp.experts.%" PRIu32,
		 layer, expert);
}

qmla_status_t qmw_moe_check(const struct qmw_checkpoint *checkpoint,
			    const struct qmw_config *config, uint32_t layer)
{
	const struct qmw_moe_config *moe = &config->moe;
	uint32_t all = moe->experts + moe->zero_experts;
	char name[QMW_TENSOR_NAME_BYTES];
	qmla_status_t status;

	name_of(layer, config->moe.gate_name, name);
	status = qmw_checkpoint_check(checkpoint, name, all, config->hidden);
	if (!status && moe->correction_name) {
		name_of(layer, config->moe.correction_name, name);
		status = qmw_checkpoint_check(checkpoint, name, all, 0);
	}
	for (uint32_t e = 0; e < moe->experts && !status; e++) {
		expert_name(layer, e, name);
		status = qmw_mlp_check(checkpoint, name, config->hidden, moe->width, false);
	}
	if (!status && moe->shared_width) {
		name_of(layer, "shared_experts", name);
		status = qmw_mlp_check(checkpoint, name, config->hidden, moe->shared_width,
				       config->mlp_bias);
	}
	return status;
}

static qmla_status_t read_gate(const struct qmw_checkpoint *checkpoint,
			       const struct qmw_config *config, uint32_t layer,
			       uint64_t *parameters, struct qmw_moe *moe)
{
	uint32_t all = config->moe.experts + config->moe.zero_experts;
	char name[QMW_TENSOR_NAME_BYTES];
	float *weights;
	qmla_status_t status;

	name_of(layer, config->moe.gate_name, name);
	status = qmw_checkpoint_read(checkpoint, name, all, config->hidden, &weights);
	if (status)
		return status;
	status = qmw_matrix_init(&moe->gate, all, config->hidden, weights, config->hidden, NULL);
	free(weights);
	*parameters += (uint64_t)all * config->hidden;
	if (status || !config->moe.correction_name)
		return status;
	name_of(layer, config->moe.correction_name, name);
	*parameters += all;
	return qmw_checkpoint_read(checkpoint, name, all, 0, &moe->correction);
}

static qmla_status_t read_experts(const struct qmw_checkpoint *checkpoint,
				  const struct qmw_config *config, uint32_t layer,
				  uint64_t *parameters, struct qmw_moe *moe)
{
	char name[QMW_TENSOR_NAME_BYTES];
	qmla_status_t status = QMLA_OK;

	moe->expert = calloc(config->moe.experts, sizeof(*moe->expert));
	if (!moe->expert)
		return QMLA_ERR_NO_MEMORY;
	moe->count = config->moe.experts;
	for (uint32_t e = 0; e < moe->count && !status; e++) {
		expert_name(layer, e, name);
		status = qmw_mlp_read(checkpoint, name, config->hidden, config->moe.width, false,
				      parameters, &moe->expert[e]);
	}
	if (status || !config->moe.shared_width)
		return status;
	name_of(layer, "shared_experts", name);
	return qmw_mlp_read(checkpoint, name, config->hidden, config->moe.shared_width,
			    config->mlp_bias, parameters, &moe->shared);
}

qmla_status_t qmw_moe_read(const struct qmw_checkpoint *checkpoint, const struct qmw_config *config,
			   uint32_t layer, uint64_t *parameters, struct qmw_moe *moe)
{
	struct qmw_moe self = {0};
	qmla_status_t status = read_gate(checkpoint, config, layer, parameters, &self);

	if (!status)
		status = read_experts(checkpoint, config, layer, parameters, &self);
	if (status) {
		qmw_moe_free(&self);
		return status;
	}
	*moe = self;
	return QMLA_OK;
}

void qmw_moe_free(struct qmw_moe *moe)
{
	for (uint32_t e = 0; e < moe->count; e++)
		qmw_mlp_free(&moe->expert[e]);
	free(moe->expert);
	free(moe->correction);
	qmw_matrix_fini(&moe->gate);
	qmw_mlp_free(&moe->shared);
	*moe = (struct qmw_moe){0};
}
