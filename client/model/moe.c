/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/moe.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/model/team.h"

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

/* Experts are read by several threads: expanding and packing them takes longer than the disk. */
struct reading {
	const struct qmw_checkpoint *checkpoint;
	const struct qmw_config *config;
	uint32_t layer;
	struct qmw_moe *moe;
	_Atomic int status; /**< the first failure */
};

static void read_expert(void *argument, uint32_t index, uint32_t thread)
{
	struct reading *r = argument;
	uint64_t parameters = 0;
	int none = QMLA_OK, status;
	char name[QMW_TENSOR_NAME_BYTES];

	(void)thread;
	/* Relaxed here and below: read after the team's round has ended, which orders it. */
	if (atomic_load_explicit(&r->status, memory_order_relaxed) != QMLA_OK)
		return;
	expert_name(r->layer, index, name);
	status = (int)qmw_mlp_read(r->checkpoint, name, r->config->hidden, r->config->moe.width,
				   false, &parameters, &r->moe->expert[index]);
	if (status != QMLA_OK)
		atomic_compare_exchange_strong_explicit(&r->status, &none, status,
							memory_order_relaxed, memory_order_relaxed);
}

static qmla_status_t read_experts(const struct qmw_checkpoint *checkpoint,
				  const struct qmw_config *config, uint32_t layer, uint32_t threads,
				  uint64_t *parameters, struct qmw_moe *moe)
{
	struct reading r = {.checkpoint = checkpoint, .config = config, .layer = layer, .moe = moe};
	struct qmw_team *team;
	qmla_status_t status;
	char name[QMW_TENSOR_NAME_BYTES];

	moe->expert = calloc(config->moe.experts, sizeof(*moe->expert));
	if (!moe->expert)
		return QMLA_ERR_NO_MEMORY;
	moe->count = config->moe.experts;
	status = qmw_team_create(threads ? threads : qmw_team_processors(), &team);
	if (status)
		return status;
	qmw_team_run(team, moe->count, read_expert, &r);
	qmw_team_destroy(team);
	*parameters += 3 * (uint64_t)moe->count * config->hidden * config->moe.width;
	status = (qmla_status_t)atomic_load_explicit(&r.status, memory_order_relaxed);
	if (status || !config->moe.shared_width)
		return status;
	name_of(layer, "shared_experts", name);
	return qmw_mlp_read(checkpoint, name, config->hidden, config->moe.shared_width,
			    config->mlp_bias, parameters, &moe->shared);
}

qmla_status_t qmw_moe_read(const struct qmw_checkpoint *checkpoint, const struct qmw_config *config,
			   uint32_t layer, uint32_t threads, uint64_t *parameters,
			   struct qmw_moe *moe)
{
	struct qmw_moe self = {0};
	qmla_status_t status = read_gate(checkpoint, config, layer, parameters, &self);

	if (!status)
		status = read_experts(checkpoint, config, layer, threads, parameters, &self);
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
