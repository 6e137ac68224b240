/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/stored.h"

#include <stdlib.h>
#include <string.h>

#include "client/calibrate/content_map.h"
#include "client/calibrate/fake_paper.h"
#include "client/calibrate/pairs.h"
#include "kernels/ops.h"

struct qmw_stored {
	struct qmw_storage storage;
	struct qmw_rope rope;
	struct qmk_layout layout;
	struct qmw_content_map map;
	double *angle, *scale;          /* of the pairs; NULL: none */
	float *owned[7];                /* what constants points to */
	struct qmk_constants constants; /* float copies for the kernels */
};

static float *narrow(const double *values, size_t count, float **owned)
{
	float *copy;

	if (!values)
		return NULL;
	copy = malloc(count * sizeof(*copy));
	for (size_t i = 0; copy && i < count; i++)
		copy[i] = (float)values[i];
	*owned = copy;
	return copy;
}

static double *duplicate(const double *values, size_t count)
{
	double *copy = values ? malloc(count * sizeof(*copy)) : NULL;

	if (copy)
		memcpy(copy, values, count * sizeof(*copy));
	return copy;
}

static bool take_constants(struct qmw_stored *self, const struct qmw_transform *t)
{
	size_t d_c = self->layout.content_dim, d_r = self->layout.rope_dim;
	struct qmk_constants *c = &self->constants;

	c->content_mean = narrow(t->content_mean, d_c, &self->owned[0]);
	c->rope_mean = narrow(t->rope_mean, d_r, &self->owned[1]);
	c->content_feedback = narrow(t->content_feedback, d_c * d_c, &self->owned[2]);
	c->content_weight = narrow(t->content_weight, d_c, &self->owned[3]);
	c->rope_feedback = narrow(t->rope_feedback, d_r * d_r, &self->owned[4]);
	c->rope_weight = narrow(t->rope_weight, d_r, &self->owned[5]);
	c->cross_feedback = narrow(t->cross_feedback, d_c * d_r, &self->owned[6]);
	self->angle = duplicate(t->rope_angle, d_r / 2);
	self->scale = duplicate(t->rope_scale, d_r / 2);
	return !c->content_mean == !t->content_mean && !c->rope_mean == !t->rope_mean &&
	       !c->content_feedback == !t->content_feedback &&
	       !c->content_weight == !t->content_weight && !c->rope_feedback == !t->rope_feedback &&
	       !c->rope_weight == !t->rope_weight && !c->cross_feedback == !t->cross_feedback &&
	       !self->angle == !t->rope_angle && !self->scale == !t->rope_scale;
}

qmla_status_t qmw_stored_create(const struct qmw_config *config, const struct qmw_rope *rope,
				const struct qmw_transform *transform,
				const struct qmw_storage *storage, struct qmw_stored **stored)
{
	struct qmw_stored *self = calloc(1, sizeof(*self));
	qmla_status_t status;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->storage = *storage;
	self->rope = *rope;
	status = qmk_layout_init(storage->content_bits == 2 ? QMK_FORMAT_C2R4 : QMK_FORMAT_C4R4, 1,
				 config->content_dim, config->rope_dim, &self->layout);
	if (status == QMLA_OK)
		status = qmw_content_map_init(&self->map, config->content_dim);
	if (status == QMLA_OK && !take_constants(self, transform))
		status = QMLA_ERR_NO_MEMORY;
	if (status != QMLA_OK) {
		qmw_stored_destroy(self);
		return status;
	}
	qmw_content_map_set(&self->map, transform->rotation, transform->content_scale);
	*stored = self;
	return QMLA_OK;
}

void qmw_stored_destroy(struct qmw_stored *stored)
{
	if (!stored)
		return;
	for (size_t i = 0; i < sizeof(stored->owned) / sizeof(stored->owned[0]); i++)
		free(stored->owned[i]);
	free(stored->scale);
	free(stored->angle);
	qmw_content_map_fini(&stored->map);
	free(stored);
}

/* Rows of both planes through pages of the product's format; whole pages. */
static qmla_status_t through_pages(const struct qmk_layout *layout,
				   const struct qmk_constants *constants, uint32_t pages,
				   float *content, float *rope)
{
	struct qmk_pack_args pack = {.layout = layout,
				     .constants = constants,
				     .pages = pages,
				     .content = content,
				     .rope = rope,
				     .content_stride = layout->content_dim,
				     .rope_stride = layout->rope_dim,
				     .dtype = QMK_F32};
	size_t scratch = qmk_cpu_ops.pack_workspace(&pack);
	size_t bytes = (size_t)pages * layout->block_bytes;
	uint32_t *slots = malloc(pages * sizeof(*slots) + 1);
	void *pool = aligned_alloc(QMK_ALIGN, bytes + QMK_ALIGN);
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	pack.workspace = malloc(scratch);
	if (slots && pool && pack.workspace) {
		struct qmk_unpack_args unpack = {.layout = layout,
						 .constants = constants,
						 .pages = pages,
						 .slots = slots,
						 .content = content,
						 .rope = rope,
						 .content_stride = layout->content_dim,
						 .rope_stride = layout->rope_dim,
						 .dtype = QMK_F32};

		for (uint32_t i = 0; i < pages; i++)
			slots[i] = i;
		pack.slots = slots;
		pack.pool = unpack.pool = (struct qmk_pool){pool, layout->block_bytes};
		status = qmk_cpu_ops.pack(&pack);
		if (status == QMLA_OK)
			status = qmk_cpu_ops.unpack(&unpack);
	}
	free(pack.workspace);
	free(pool);
	free(slots);
	return status;
}

/*
 * Rows in cache coordinates with the default quantiser, replaced. A path that is NULL is
 * zeros without a mean, which come back as they are.
 */
static qmla_status_t default_rows(const struct qmw_stored *stored, uint32_t n, float *content,
				  float *key)
{
	uint32_t pages = (n + QMK_PAGE_TOKENS - 1) / QMK_PAGE_TOKENS;
	size_t d_c = stored->layout.content_dim, d_r = stored->layout.rope_dim;
	size_t tokens = (size_t)pages * QMK_PAGE_TOKENS;
	float *wide_c = calloc(tokens * d_c, sizeof(float));
	float *wide_k = calloc(tokens * d_r, sizeof(float));
	struct qmk_constants constants = stored->constants;
	qmla_status_t status = wide_c && wide_k ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (!key)
		constants.rope_mean = constants.rope_feedback = constants.rope_weight = NULL;
	if (!content)
		constants.content_mean = constants.content_feedback = constants.content_weight =
			NULL;
	if (!key || !content)
		constants.cross_feedback = NULL;
	if (status == QMLA_OK && content)
		memcpy(wide_c, content, n * d_c * sizeof(float));
	if (status == QMLA_OK && key)
		memcpy(wide_k, key, n * d_r * sizeof(float));
	if (status == QMLA_OK)
		status = through_pages(&stored->layout, &constants, pages, wide_c, wide_k);
	if (status == QMLA_OK && content)
		memcpy(content, wide_c, n * d_c * sizeof(float));
	if (status == QMLA_OK && key)
		memcpy(key, wide_k, n * d_r * sizeof(float));
	free(wide_k);
	free(wide_c);
	return status;
}

static void paper_key(const struct qmw_stored *stored, const struct qmw_passage *passage,
		      uint32_t n, float *key)
{
	uint32_t dim = stored->rope.dim;
	uint32_t group = dim < QMK_PAPER_GROUP ? dim : QMK_PAPER_GROUP;

	/* The pairs' transform commutes with the rotation. */
	qmw_passage_rotate(passage, false, key);
	qmw_fake_paper_apply(&(struct qmw_fake_paper){4, group, false}, n, dim, key, key);
	qmw_passage_rotate(passage, true, key);
}

qmla_status_t qmw_stored_rows(const struct qmw_stored *stored, const struct qmw_passage *passage,
			      float *content, float *key)
{
	const struct qmw_pairs pairs = {&stored->rope, stored->angle, stored->scale};
	uint32_t n = qmw_passage_tokens(passage), d_c = stored->map.dim, d_r = stored->rope.dim;
	float *rows = content ? malloc((size_t)n * d_c * sizeof(*rows)) : NULL;
	qmla_status_t status = QMLA_OK;

	if (content && !rows)
		return QMLA_ERR_NO_MEMORY;
	if (content)
		qmw_content_map_forward(&stored->map, n, qmw_passage_content(passage), rows);
	if (key) {
		memcpy(key, qmw_passage_key(passage), (size_t)n * d_r * sizeof(*key));
		qmw_pairs_apply(&pairs, false, n, key);
	}
	if (stored->storage.quantiser == QMW_QUANTISER_DEFAULT)
		status = default_rows(stored, n, rows, key);
	else if (content)
		qmw_fake_paper_apply(&(struct qmw_fake_paper){stored->storage.content_bits,
							      QMK_PAPER_GROUP, true},
				     n, d_c, rows, rows);
	if (stored->storage.quantiser == QMW_QUANTISER_PAPER && key)
		paper_key(stored, passage, n, key);
	if (status == QMLA_OK && content)
		qmw_content_map_back(&stored->map, n, rows, content);
	if (status == QMLA_OK && key)
		qmw_pairs_apply(&pairs, true, n, key);
	free(rows);
	return status;
}
