/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "client/model/forward.h"
#include "client/model/internal.h"
#include "client/model/mixture.h"

#define ALIGNMENT 64u
/* Multiply-adds below which one thread is faster than waking the others. */
#define ALONE_WORK (UINT64_C(1) << 18)

static void *allocate(size_t count, size_t size)
{
	size_t bytes;
	void *p;

	if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX - ALIGNMENT)
		return NULL;
	p = aligned_alloc(ALIGNMENT, (bytes / ALIGNMENT + 1) * ALIGNMENT);
	if (p)
		memset(p, 0, bytes);
	return p;
}

float *qmw_floats(size_t count, size_t width)
{
	size_t values;

	return __builtin_mul_overflow(count, width, &values) ? NULL
							     : allocate(values, sizeof(float));
}

static uint32_t widest(const struct qmw_config *c)
{
	uint32_t width = c->intermediate > c->moe.width ? c->intermediate : c->moe.width;

	return width > c->moe.shared_width ? width : c->moe.shared_width;
}

static bool allocate_lane(const struct qmw_config *c, struct qmw_lane *lane)
{
	size_t heads = (size_t)QMW_TILE_ROWS * c->heads;
	size_t experts = (size_t)c->moe.experts + c->moe.zero_experts;
	uint32_t tables = qmw_config_ngram_tables(c);

	lane->x = allocate((size_t)QMW_TILE_ROWS * c->hidden, sizeof(float));
	lane->latent =
		allocate((size_t)QMW_TILE_ROWS * (c->content_dim + c->rope_dim), sizeof(float));
	lane->query_low = allocate((size_t)QMW_TILE_ROWS * c->q_rank, sizeof(float));
	lane->gate_up = qmw_floats((size_t)QMW_TILE_ROWS * 2, widest(c));
	lane->scores = qmw_floats(QMW_TILE_ROWS, experts);
	lane->choice = qmw_floats(1, experts);
	lane->sum = qmw_floats(experts || tables ? QMW_TILE_ROWS : 0, c->hidden);
	lane->ngram_rows = qmw_floats(QMW_TILE_ROWS, tables ? c->hidden / tables : 0);
	lane->ngram_ids = allocate((size_t)QMW_TILE_ROWS * tables, sizeof(*lane->ngram_ids));
	lane->query_content = allocate(heads * c->content_dim, sizeof(float));
	lane->query_rope = allocate(heads * c->rope_dim, sizeof(float));
	lane->mixed = allocate(heads * c->content_dim, sizeof(float));
	return lane->x && lane->latent && lane->query_low && lane->gate_up && lane->query_content &&
	       lane->query_rope && lane->mixed && lane->scores && lane->choice && lane->sum &&
	       lane->ngram_rows && lane->ngram_ids;
}

static bool allocate_rows(const struct qmw_config *c, struct qmw_context *self)
{
	size_t n = self->max_tokens;
	size_t blocks = n / QMK_PAGE_TOKENS + 1;

	self->hidden = allocate(n * c->hidden, sizeof(float));
	self->query = allocate(n * c->heads * (c->nope_dim + c->rope_dim), sizeof(float));
	self->heads = allocate(n * c->heads * c->value_dim, sizeof(float));
	self->cosines = allocate(n * c->rope_dim / 2, sizeof(float));
	self->sines = allocate(n * c->rope_dim / 2, sizeof(float));
	self->logits = allocate((size_t)QMW_LOGIT_ROWS * c->vocab, sizeof(float));
	self->scratch = allocate(blocks * QMK_PAGE_TOKENS * (c->content_dim + c->rope_dim),
				 sizeof(uint16_t));
	self->spans = allocate(n, sizeof(*self->spans));
	self->row_span = allocate(n, sizeof(*self->row_span));
	self->tokens = allocate(n, sizeof(*self->tokens));
	self->wanted = allocate(n, sizeof(*self->wanted));
	return self->hidden && self->query && self->heads && self->cosines && self->sines &&
	       self->logits && self->scratch && self->spans && self->row_span && self->tokens &&
	       self->wanted;
}

qmla_status_t qmw_context_create(const struct qmw_model *model, uint32_t max_tokens,
				 struct qmw_context **context)
{
	uint32_t threads = model->options.threads ? model->options.threads : qmw_team_processors();
	struct qmw_context *self;
	qmla_status_t status;

	if (max_tokens == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	self = calloc(1, sizeof(*self));
	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->model = model;
	self->max_tokens = max_tokens;
	status = qmw_team_create(threads, &self->team);
	if (status)
		goto err;
	status = QMLA_ERR_NO_MEMORY;
	self->lanes = calloc(threads, sizeof(*self->lanes));
	if (!self->lanes || !allocate_rows(&model->config, self))
		goto err;
	status = qmw_mixture_init(&model->config, max_tokens, &self->mixture);
	if (status)
		goto err;
	status = QMLA_ERR_NO_MEMORY;
	for (uint32_t i = 0; i < threads; i++)
		if (!allocate_lane(&model->config, &self->lanes[i]))
			goto err;
	*context = self;
	return QMLA_OK;
err:
	qmw_context_destroy(self);
	return status;
}

static void free_lane(struct qmw_lane *lane)
{
	free(lane->x);
	free(lane->latent);
	free(lane->query_low);
	free(lane->gate_up);
	free(lane->scores);
	free(lane->choice);
	free(lane->sum);
	free(lane->ngram_rows);
	free(lane->ngram_ids);
	free(lane->query_content);
	free(lane->query_rope);
	free(lane->mixed);
	free(lane->workspace.bytes);
	free(lane->parts.bytes);
}

void qmw_context_destroy(struct qmw_context *context)
{
	if (!context)
		return;
	for (uint32_t i = 0; context->lanes && i < qmw_team_threads(context->team); i++)
		free_lane(&context->lanes[i]);
	qmw_team_destroy(context->team);
	free(context->lanes);
	free(context->up.bytes);
	free(context->hidden);
	free(context->query);
	free(context->heads);
	free(context->cosines);
	free(context->sines);
	free(context->logits);
	free(context->scratch);
	free(context->spans);
	free(context->row_span);
	free(context->tokens);
	free(context->wanted);
	qmw_mixture_fini(&context->mixture);
	free(context);
}

void *qmw_buffer_reserve(struct qmw_buffer *buffer, size_t bytes)
{
	if (bytes > buffer->length || !buffer->bytes) {
		free(buffer->bytes);
		buffer->bytes = allocate(bytes, 1);
		buffer->length = buffer->bytes ? bytes : 0;
	}
	return buffer->bytes;
}

void qmw_context_fail(struct qmw_context *context, qmla_status_t status)
{
	int none = QMLA_OK;

	/* Relaxed: read after the team's round has ended, which orders it. */
	atomic_compare_exchange_strong_explicit(&context->status, &none, (int)status,
						memory_order_relaxed, memory_order_relaxed);
}

qmla_status_t qmw_context_failure(const struct qmw_context *context)
{
	return (qmla_status_t)atomic_load_explicit(&context->status, memory_order_relaxed);
}

struct product {
	const struct qmw_matrix *matrix;
	const float *x;
	size_t x_stride;
	uint32_t rows;
	float *y;
	size_t y_stride;
	uint32_t parts;
};

static void product_part(void *argument, uint32_t index, uint32_t thread)
{
	const struct product *p = argument;
	uint32_t pairs = (p->matrix->panels + 1) / 2;
	uint32_t first = 2 * (uint32_t)((uint64_t)pairs * index / p->parts);
	uint32_t last = 2 * (uint32_t)((uint64_t)pairs * (index + 1) / p->parts);

	(void)thread;
	if (last > p->matrix->panels)
		last = p->matrix->panels;
	qmw_matrix_apply(p->matrix, first, last, p->x, p->x_stride, p->rows, p->y, p->y_stride);
}

void qmw_context_product(struct qmw_context *context, const struct qmw_matrix *matrix,
			 const float *x, size_t x_stride, uint32_t rows, float *y, size_t y_stride)
{
	struct product p = {matrix, x, x_stride, rows, y, y_stride, 1};

	if (!context->alone || (uint64_t)matrix->outputs * matrix->inputs * rows < ALONE_WORK) {
		qmw_matrix_apply(matrix, 0, matrix->panels, x, x_stride, rows, y, y_stride);
		return;
	}
	p.parts = qmw_team_threads(context->team);
	qmw_team_run(context->team, p.parts, product_part, &p);
}
