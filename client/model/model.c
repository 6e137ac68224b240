/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/model.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/checkpoint.h"
#include "client/model/identity.h"
#include "client/model/internal.h"
#include "common/log.h"

#define COMPONENT "model"

static qmla_status_t init_layout(struct qmw_model *self)
{
	const struct qmw_config *c = &self->config;
	enum qmk_format asked = self->options.format;
	enum qmk_format format = asked ? asked : qmw_constants_format(&self->constants);
	qmla_status_t status =
		qmk_layout_init(format, c->layers, c->content_dim, c->rope_dim, &self->layout);

	if (status)
		qmc_error(COMPONENT,
			  "no %s pages for %u layers, kv_lora_rank %u and qk_rope_head_dim %u",
			  qmk_format_name(format), c->layers, c->content_dim, c->rope_dim);
	return status == QMLA_ERR_INVALID_ARGUMENT ? QMLA_ERR_UNSUPPORTED : status;
}

/* The constants as the kernels want them. paper-c4r4 has none: its records are asymmetric. */
static qmla_status_t init_kernels(struct qmw_model *self)
{
	bool plain = self->options.cache == QMW_CACHE_F32 ||
		     (self->options.cache == QMW_CACHE_PACKED && self->layout.rope_rotated);

	self->ops = &qmk_cpu_ops;
	self->kernel_rope =
		(struct qmk_rope){self->rope.pairing, self->rope.inv_freq, self->rope.amplitude};
	self->attend_constants = calloc(self->config.layers, sizeof(*self->attend_constants));
	self->pack_constants = calloc(self->config.layers, sizeof(*self->pack_constants));
	if (!self->attend_constants || !self->pack_constants)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t i = 0; i < self->config.layers && !plain; i++) {
		const struct qmw_layer_constants *l = &self->constants.layers[i];

		self->attend_constants[i] = (struct qmk_constants){
			l->content_mean,  l->rope_mean,   l->content_feedback, l->content_weight,
			l->rope_feedback, l->rope_weight, l->cross_feedback};
		self->pack_constants[i] = self->attend_constants[i];
		self->pack_constants[i].content_mean = NULL;
		self->pack_constants[i].rope_mean = NULL;
	}
	return QMLA_OK;
}

static qmla_status_t init_identity(struct qmw_model *self, const uint8_t *weights_digest)
{
	const struct qmw_identity_parts parts = {.weights_digest = weights_digest,
						 .constants_digest = self->constants.digest,
						 .layout = &self->layout,
						 .config = &self->config,
						 .rope = &self->rope,
						 .round_bf16 = self->options.round_bf16};

	return qmw_identity_compute(&parts, self->identity);
}

static void init_info(struct qmw_model *self)
{
	const struct qmw_config *c = &self->config;

	self->info = (struct qmw_model_info){.layers = c->layers,
					     .hidden = c->hidden,
					     .heads = c->heads,
					     .content_dim = c->content_dim,
					     .rope_dim = c->rope_dim,
					     .nope_dim = c->nope_dim,
					     .value_dim = c->value_dim,
					     .vocab = c->vocab,
					     .max_position = c->max_position,
					     .eos = c->eos,
					     .parameters = self->weights.parameters,
					     .calibrated = self->constants.present};
	self->info.family = c->family;
	self->info.decoder_layers = qmw_config_decoder_layers(c);
	self->info.experts = c->moe.experts;
	self->info.zero_experts = c->moe.zero_experts;
	self->info.experts_per_token = c->moe.top_k;
	self->info.shared_experts = c->moe.width ? c->moe.shared_width / c->moe.width : 0;
	for (uint32_t i = 0; i < c->layers; i++)
		self->info.sparse_layers += c->moe.sparse[i];
	self->info.fp8 = c->fp8;
	self->info.history = qmw_config_history(c);
	memcpy(self->info.architecture, c->architecture, sizeof(self->info.architecture));
	snprintf(self->info.calibration, sizeof(self->info.calibration), "%s",
		 self->constants.recipe);
	snprintf(self->info.method, sizeof(self->info.method), "%s", self->constants.method);
	self->info.quantiser = self->constants.quantiser;
	self->info.format = self->constants.format;
}

static qmla_status_t load(struct qmw_model *self, const char *directory)
{
	struct qmw_checkpoint *checkpoint = NULL;
	uint8_t digest[QMC_SHA256_BYTES];
	qmla_status_t status = qmw_config_read(directory, &self->config);

	if (!status)
		status = qmw_checkpoint_open(directory, &checkpoint);
	if (status)
		return status;
	qmw_rope_init(&self->config, &self->rope);
	status = qmw_checkpoint_digest(checkpoint, digest);
	if (!status)
		status = qmw_constants_open(directory, &self->config, digest,
					    self->options.ignore_calibration, &self->constants);
	if (!status)
		status = init_layout(self);
	if (!status)
		status = qmw_weights_load(checkpoint, &self->config, &self->constants, &self->rope,
					  self->options.threads, &self->weights);
	if (!status && self->weights.ngram.tables)
		self->checkpoint = checkpoint;
	else
		qmw_checkpoint_close(checkpoint);
	if (!status)
		status = init_kernels(self);
	if (!status)
		status = init_identity(self, digest);
	return status;
}

qmla_status_t qmw_model_open(const char *directory, const struct qmw_model_options *options,
			     struct qmw_model **model)
{
	struct qmw_model *self = calloc(1, sizeof(*self));
	qmla_status_t status;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	if (options)
		self->options = *options;
	/* The work is divided by our own teams: BLAS must not start threads inside them. */
	openblas_set_num_threads(1);
	status = load(self, directory);
	if (status) {
		if (status == QMLA_ERR_NO_MEMORY)
			qmc_error(COMPONENT, "%s: no memory for the weights", directory);
		qmw_model_close(self);
		return status;
	}
	init_info(self);
	*model = self;
	return QMLA_OK;
}

void qmw_model_close(struct qmw_model *model)
{
	if (!model)
		return;
	free(model->attend_constants);
	free(model->pack_constants);
	qmw_weights_free(&model->weights);
	qmw_checkpoint_close(model->checkpoint);
	qmw_constants_close(&model->constants);
	free(model);
}

const struct qmw_model_info *qmw_model_info(const struct qmw_model *model)
{
	return &model->info;
}

const struct qmk_layout *qmw_model_layout(const struct qmw_model *model)
{
	return &model->layout;
}

void qmw_model_identity(const struct qmw_model *model, uint8_t identity[32])
{
	memcpy(identity, model->identity, sizeof(model->identity));
}
