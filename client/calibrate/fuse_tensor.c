/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/fuse_tensor.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/cast.h"
#include "client/calibrate/fuse_check.h"
#include "client/model/attention_weights.h"
#include "client/model/fuse.h"
#include "client/model/numeric.h"
#include "common/log.h"

#define COMPONENT    "fuse"
#define SCALE_SUFFIX "_scale_inv"

enum role { ROLE_QUERY, ROLE_KV_A, ROLE_NORM, ROLE_KV_B };

/* A tensor that a fusion changes. */
struct entry {
	char name[QMW_TENSOR_NAME_BYTES];
	enum role role;
	uint32_t layer;
	uint32_t rows, columns; /* 0 columns: a vector */
};

struct qmw_fuse_plan {
	const struct qmw_checkpoint *checkpoint;
	const struct qmw_config *config;
	const struct qmw_rope *rope;
	const struct qmw_transform *layers;
	uint32_t count;
	uint32_t entries;
	struct entry *entry;
};

static bool changes_content(const struct qmw_transform *t)
{
	return t->rotation || t->content_scale;
}

static bool changes_rope(const struct qmw_transform *t)
{
	return t->rope_angle || t->rope_scale;
}

static void add(struct qmw_fuse_plan *plan, uint32_t layer, const char *what, enum role role,
		uint32_t rows, uint32_t columns)
{
	struct entry *e = &plan->entry[plan->entries];

	*e = (struct entry){.role = role, .layer = layer, .rows = rows, .columns = columns};
	qmw_module_name(plan->config, layer, "self_attn", what, e->name);
	plan->entries++;
}

static void add_layer(struct qmw_fuse_plan *plan, uint32_t layer)
{
	const struct qmw_config *c = plan->config;
	const struct qmw_transform *t = &plan->layers[layer];
	uint32_t latents = c->content_dim + c->rope_dim;
	uint32_t queries = c->heads * (c->nope_dim + c->rope_dim);

	if (changes_rope(t))
		add(plan, layer, c->q_rank ? "q_b_proj.weight" : "q_proj.weight", ROLE_QUERY,
		    queries, c->q_rank ? c->q_rank : c->hidden);
	if (changes_rope(t) || t->rotation) {
		add(plan, layer, "kv_a_proj_with_mqa.weight", ROLE_KV_A, latents, c->hidden);
		if (c->attention_bias)
			add(plan, layer, "kv_a_proj_with_mqa.bias", ROLE_KV_A, latents, 0);
	}
	if (!changes_content(t))
		return;
	add(plan, layer, "kv_a_layernorm.weight", ROLE_NORM, c->content_dim, 0);
	add(plan, layer, "kv_b_proj.weight", ROLE_KV_B, c->heads * (c->nope_dim + c->value_dim),
	    c->content_dim);
}

qmla_status_t qmw_fuse_plan_create(const struct qmw_checkpoint *checkpoint,
				   const struct qmw_config *config, const struct qmw_rope *rope,
				   const struct qmw_transform *layers, uint32_t count,
				   struct qmw_fuse_plan **plan)
{
	struct qmw_fuse_plan *self;
	qmla_status_t status = QMLA_OK;

	if (count != config->layers) {
		qmc_error(COMPONENT,
			  "%" PRIu32 " transforms for a model of %" PRIu32 " attention layers",
			  count, config->layers);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	self = calloc(1, sizeof(*self));
	if (!self)
		return QMLA_ERR_NO_MEMORY;
	*self = (struct qmw_fuse_plan){.checkpoint = checkpoint,
				       .config = config,
				       .rope = rope,
				       .layers = layers,
				       .count = count};
	self->entry = calloc(5 * (size_t)count, sizeof(*self->entry));
	if (!self->entry)
		status = QMLA_ERR_NO_MEMORY;
	for (uint32_t i = 0; i < count && !status; i++) {
		status = qmw_fuse_check(config, &layers[i], i);
		if (!status)
			status = qmw_attention_weights_check(checkpoint, config, i);
		if (!status)
			add_layer(self, i);
	}
	if (status) {
		qmw_fuse_plan_destroy(self);
		return status;
	}
	*plan = self;
	return QMLA_OK;
}

void qmw_fuse_plan_destroy(struct qmw_fuse_plan *plan)
{
	if (!plan)
		return;
	free(plan->entry);
	free(plan);
}

static void norm_name(const struct qmw_fuse_plan *plan, uint32_t layer,
		      char name[QMW_TENSOR_NAME_BYTES])
{
	qmw_module_name(plan->config, layer, "self_attn", "kv_a_layernorm.weight", name);
}

qmla_status_t qmw_fuse_plan_scale(const struct qmw_fuse_plan *plan, uint32_t layer, double *scale)
{
	const double *exact = plan->layers[layer].content_scale;
	char name[QMW_TENSOR_NAME_BYTES];
	const struct qmw_tensor *tensor;

	norm_name(plan, layer, name);
	tensor = qmw_checkpoint_tensor(plan->checkpoint, name);
	if (!tensor)
		return QMLA_ERR_NOT_FOUND;
	for (uint32_t i = 0; i < plan->config->content_dim; i++) {
		scale[i] = exact ? qmw_cast_round(tensor->dtype, exact[i]) : 1;
		if (scale[i] > 0 && isfinite(scale[i]))
			continue;
		qmc_error(COMPONENT,
			  "transform of layer %" PRIu32
			  ": a scale does not fit the dtype of kv_a_layernorm",
			  layer);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

static qmla_status_t fuse_kv_b(const struct qmw_fuse_plan *plan, const struct entry *e,
			       struct qmw_fuse *fuse, double *values)
{
	uint32_t n = plan->config->content_dim;
	double *scale = malloc(n * sizeof(*scale)), *gamma = NULL;
	char name[QMW_TENSOR_NAME_BYTES];
	float *norm = NULL;
	qmla_status_t status =
		scale ? qmw_fuse_plan_scale(plan, e->layer, scale) : QMLA_ERR_NO_MEMORY;

	norm_name(plan, e->layer, name);
	if (!status)
		status = qmw_checkpoint_read(plan->checkpoint, name, n, 0, &norm);
	if (!status) {
		gamma = qmw_widen(norm, n);
		fuse->content_scale = scale; /* what the norm will really multiply by */
		status = gamma ? qmw_fuse_kv_b(fuse, gamma, e->rows, values) : QMLA_ERR_NO_MEMORY;
		fuse->content_scale = NULL;
	}
	free(norm);
	free(gamma);
	free(scale);
	return status;
}

/* What the tensor was becomes what it shall be, in place. */
static qmla_status_t fuse_values(const struct qmw_fuse_plan *plan, const struct entry *e,
				 double *values)
{
	const struct qmw_transform *t = &plan->layers[e->layer];
	struct qmw_fuse fuse = {.content_dim = plan->config->content_dim,
				.rope = plan->rope,
				.rotation = t->rotation,
				.rope_angle = t->rope_angle,
				.rope_scale = t->rope_scale};
	uint32_t columns = e->columns ? e->columns : 1;

	switch (e->role) {
	case ROLE_QUERY:
		qmw_fuse_queries(&fuse, plan->config->heads, plan->config->nope_dim, columns,
				 values);
		return QMLA_OK;
	case ROLE_KV_A:
		return qmw_fuse_kv_a(&fuse, columns, values);
	case ROLE_NORM:
		return qmw_fuse_plan_scale(plan, e->layer, values);
	case ROLE_KV_B:
		return fuse_kv_b(plan, e, &fuse, values);
	}
	return QMLA_ERR_INTERNAL;
}

static double relative_error(const double *values, const double *stored, size_t count)
{
	double error = 0, energy = 0;

	for (size_t i = 0; i < count; i++) {
		error += (values[i] - stored[i]) * (values[i] - stored[i]);
		energy += values[i] * values[i];
	}
	return energy > 0 ? sqrt(error / energy) : 0;
}

static qmla_status_t store_plain(const struct qmw_tensor *tensor, const char *path, double *values,
				 void **bytes, double *cast_error)
{
	size_t count = (size_t)tensor->elements;
	void *stored = malloc((size_t)(tensor->end - tensor->begin) + 1);
	double *rounded = malloc((count + 1) * sizeof(*rounded));
	qmla_status_t status = stored && rounded ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (!status) {
		status = qmw_cast_store(tensor->dtype, values, count, stored);
		if (status)
			qmc_error(COMPONENT, "%s: tensor %s does not fit %s after fusing", path,
				  tensor->name, tensor->dtype_name);
	}
	for (size_t i = 0; i < count && !status; i++)
		rounded[i] = qmw_cast_round(tensor->dtype, values[i]);
	if (!status)
		*cast_error = relative_error(values, rounded, count);
	free(rounded);
	if (status)
		free(stored);
	else
		*bytes = stored;
	return status;
}

/* The stored codes and scales of an FP8 weight. */
static qmla_status_t read_fp8(const struct qmw_fuse_plan *plan, const struct entry *e,
			      struct qmw_fp8 *fp8)
{
	char name[QMW_TENSOR_NAME_BYTES + sizeof(SCALE_SUFFIX)];
	uint32_t down = qmw_fp8_across(e->rows), across = qmw_fp8_across(e->columns);
	const struct qmw_tensor *codes = NULL, *scales = NULL;
	const char *path = NULL;
	qmla_status_t status;

	*fp8 = (struct qmw_fp8){.rows = e->rows, .columns = e->columns};
	snprintf(name, sizeof(name), "%s" SCALE_SUFFIX, e->name);
	status = qmw_checkpoint_read(plan->checkpoint, name, down, across, &fp8->scales);
	if (!status)
		status = qmw_checkpoint_find(plan->checkpoint, name, down, across, &scales, &path);
	if (!status && scales->dtype != QMW_DTYPE_F32) {
		qmc_error(COMPONENT, "%s: tensor %s has dtype %s; scales of FP8 weights are F32",
			  path, name, scales->dtype_name);
		return QMLA_ERR_UNSUPPORTED;
	}
	if (!status)
		status = qmw_checkpoint_find(plan->checkpoint, e->name, e->rows, e->columns, &codes,
					     &path);
	if (status)
		return status;
	fp8->codes = malloc((size_t)codes->elements + 1);
	return fp8->codes ? qmw_tensor_read(codes, 0, codes->elements, fp8->codes)
			  : QMLA_ERR_NO_MEMORY;
}

static double fp8_error(const struct qmw_fp8 *fp8, const double *values)
{
	uint32_t across = qmw_fp8_across(fp8->columns);
	double error = 0, energy = 0;

	for (uint32_t i = 0; i < fp8->rows; i++)
		for (uint32_t j = 0; j < fp8->columns; j++) {
			size_t at = (size_t)i * fp8->columns + j;
			float scale = fp8->scales[(size_t)(i / QMW_FP8_BLOCK) * across +
						  j / QMW_FP8_BLOCK];
			double d = values[at] - qmw_cast_from_e4m3(fp8->codes[at]) * (double)scale;

			error += d * d;
			energy += values[at] * values[at];
		}
	return energy > 0 ? sqrt(error / energy) : 0;
}

/* New codes, or, when @p tensor is the weight's scales, new scales. */
static qmla_status_t store_fp8(const struct qmw_fuse_plan *plan, const struct entry *e,
			       const struct qmw_tensor *tensor, const char *path,
			       const float *before, double *values, void **bytes,
			       double *cast_error)
{
	size_t squares = (size_t)qmw_fp8_across(e->rows) * qmw_fp8_across(e->columns);
	struct qmw_fp8 fp8;
	qmla_status_t status = read_fp8(plan, e, &fp8);
	double *wide = NULL;

	if (!status) {
		qmw_fp8_replace(&fp8, before, values);
		*cast_error = fp8_error(&fp8, values);
	}
	if (!status && tensor->dtype == QMW_DTYPE_F8_E4M3) {
		*bytes = fp8.codes;
		fp8.codes = NULL;
	} else if (!status) {
		wide = qmw_widen(fp8.scales, squares);
		status = wide ? store_plain(tensor, path, wide, bytes, &(double){0})
			      : QMLA_ERR_NO_MEMORY;
	}
	free(wide);
	free(fp8.codes);
	free(fp8.scales);
	return status;
}

static const struct entry *find_entry(const struct qmw_fuse_plan *plan, const char *name,
				      bool *scales)
{
	for (uint32_t i = 0; i < plan->entries; i++) {
		size_t length = strlen(plan->entry[i].name);

		if (strncmp(name, plan->entry[i].name, length) != 0)
			continue;
		*scales = strcmp(name + length, SCALE_SUFFIX) == 0;
		if (*scales || name[length] == 0)
			return &plan->entry[i];
	}
	return NULL;
}

qmla_status_t qmw_fuse_plan_replace(const struct qmw_fuse_plan *plan, const char *path,
				    const struct qmw_tensor *tensor, void **bytes,
				    double *cast_error)
{
	bool scales = false;
	const struct entry *e = find_entry(plan, tensor->name, &scales);
	float *before = NULL;
	double *values = NULL;
	qmla_status_t status;

	*bytes = NULL;
	*cast_error = 0;
	if (!e)
		return QMLA_OK;
	status = qmw_checkpoint_read(plan->checkpoint, e->name, e->rows, e->columns, &before);
	if (!status) {
		values = qmw_widen(before, (size_t)e->rows * (e->columns ? e->columns : 1));
		status = values ? fuse_values(plan, e, values) : QMLA_ERR_NO_MEMORY;
	}
	if (!status && (scales || tensor->dtype == QMW_DTYPE_F8_E4M3))
		status = store_fp8(plan, e, tensor, path, before, values, bytes, cast_error);
	else if (!status)
		status = store_plain(tensor, path, values, bytes, cast_error);
	free(before);
	free(values);
	return status;
}
