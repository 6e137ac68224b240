/* SPDX-License-Identifier: Apache-2.0 */
/* Experts, as DeepSeek's configurations name them and those that follow it. */
#include <inttypes.h>
#include <stdio.h>

#include "client/model/config_reader.h"

/* n_routed_experts is null or zero: all layers are dense. */
static bool has_experts(const struct qmw_reader *r)
{
	const json_t *experts = json_object_get(r->root, "n_routed_experts");

	return !(json_is_null(experts) ||
		 (json_is_integer(experts) && json_integer_value(experts) == 0));
}

void qmw_reader_experts(struct qmw_reader *r, const struct qmw_expert_defaults *missing,
			struct qmw_config *c)
{
	struct qmw_moe_config *moe = &c->moe;
	uint32_t first, every;

	if (r->status || !has_experts(r))
		return;
	first = qmw_reader_count(r, "first_k_dense_replace", missing->dense, 0, UINT32_MAX);
	every = qmw_reader_count(r, "moe_layer_freq", 1, 1, QMK_MAX_LAYERS);
	if (r->status || first >= c->layers)
		return;
	qmw_reader_no_null(r, "n_shared_experts");
	qmw_reader_no_null(r, "routed_scaling_factor");
	moe->experts = qmw_reader_count(r, "n_routed_experts", -1, 1, QMW_EXPERTS_MAX);
	moe->top_k = qmw_reader_count(r, "num_experts_per_tok", -1, 1, QMW_TOP_K_MAX);
	moe->width = qmw_reader_count(r, "moe_intermediate_size", -1, 1, QMW_DIM_MAX);
	moe->shared_width =
		moe->width * qmw_reader_count(r, "n_shared_experts", missing->shared, 0, 64);
	moe->scale = (float)qmw_reader_number(r, r->root, "routed_scaling_factor", missing->scale,
					      1e-6, 1e6);
	moe->groups = moe->top_groups = 1;
	moe->gate_name = "gate.weight";
	for (uint32_t i = first; i < c->layers && !r->status; i++)
		if (i % every == 0)
			moe->sparse[i] = true;
}

void qmw_reader_groups(struct qmw_reader *r, const struct qmw_expert_defaults *missing,
		       struct qmw_config *c)
{
	qmw_reader_no_null(r, "n_group");
	qmw_reader_no_null(r, "topk_group");
	c->moe.groups = qmw_reader_count(r, "n_group", missing->groups, 1, QMW_EXPERTS_MAX);
	c->moe.top_groups =
		qmw_reader_count(r, "topk_group", missing->top_groups, 1, QMW_EXPERTS_MAX);
}

void qmw_reader_sigmoid_gate(struct qmw_reader *r, const struct qmw_expert_defaults *missing,
			     struct qmw_config *c)
{
	qmw_reader_only(r, "scoring_func", "sigmoid");
	qmw_reader_only(r, "topk_method", "noaux_tc");
	c->moe.gate = QMW_GATE_SIGMOID;
	c->moe.group_score = QMW_GROUP_TOP2;
	c->moe.correction_name = "gate.e_score_correction_bias";
	c->moe.normalise = qmw_reader_flag(r, "norm_topk_prob", true);
	qmw_reader_groups(r, missing, c);
}

void qmw_reader_check_experts(struct qmw_reader *r, const struct qmw_config *c)
{
	const struct qmw_moe_config *moe = &c->moe;
	uint32_t all = moe->experts + moe->zero_experts;
	char what[160];

	if (r->status || !moe->experts)
		return;
	if (all % moe->groups) {
		snprintf(what, sizeof(what),
			 "is %" PRIu32 ", which does not divide %" PRIu32 " experts", moe->groups,
			 all);
		qmw_reader_fail(r, QMLA_ERR_FORMAT, "n_group", what);
		return;
	}
	if (moe->top_groups > moe->groups)
		qmw_reader_fail(r, QMLA_ERR_FORMAT, "topk_group", "is larger than n_group");
	else if (moe->group_score == QMW_GROUP_TOP2 && moe->groups > 1 && all / moe->groups < 2)
		qmw_reader_fail(r, QMLA_ERR_FORMAT, "n_group", "leaves one expert a group");
	else if (moe->top_k > all / moe->groups * moe->top_groups)
		qmw_reader_fail(r, QMLA_ERR_FORMAT,
				c->sublayers > 1 ? "moe_topk" : "num_experts_per_tok",
				"is more than there are experts to choose from");
}
