/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/stream.h"

#include <cblas.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/forward.h"
#include "client/model/internal.h"
#include "client/model/numeric.h"
#include "common/log.h"

#define COMPONENT     "model"
#define SUBLAYERS_MAX 2u

/*
 * The loaded decoder layer is a model of its own, of as many cache layers as it has:
 * the same code runs it as runs whole models.
 */
struct qmw_stream {
	struct qmw_checkpoint *checkpoint;
	struct qmw_config config;
	bool loaded;
	uint32_t layer; /**< the loaded one */
	struct qmw_attention_weights attention[SUBLAYERS_MAX];
	struct qmw_model model;
	struct qmw_context *context; /**< of context_tokens, NULL: none yet */
	uint32_t context_tokens;
	struct qmw_ngram ngram;
	float *norm; /**< of the head; NULL: not read */
	struct qmw_matrix head;
};

static qmla_status_t init_model(struct qmw_stream *self, uint32_t threads)
{
	struct qmw_model *model = &self->model;

	model->options = (struct qmw_model_options){.cache = QMW_CACHE_F32, .threads = threads};
	model->config = self->config;
	model->config.layers = self->config.sublayers;
	model->weights.layers = model->config.layers;
	model->weights.heads = self->config.heads;
	model->weights.layer = calloc(model->config.layers, sizeof(*model->weights.layer));
	model->attend_constants = calloc(model->config.layers, sizeof(*model->attend_constants));
	model->constants.layers = calloc(model->config.layers, sizeof(*model->constants.layers));
	model->constants.count = model->config.layers;
	model->ops = &qmk_cpu_ops;
	qmw_rope_init(&self->config, &model->rope);
	return model->weights.layer && model->attend_constants && model->constants.layers
		       ? QMLA_OK
		       : QMLA_ERR_NO_MEMORY;
}

qmla_status_t qmw_stream_open(const char *directory, uint32_t threads, struct qmw_stream **stream)
{
	struct qmw_stream *self = calloc(1, sizeof(*self));
	uint64_t parameters = 0;
	qmla_status_t status;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	/* The work is divided by our own teams: BLAS must not start threads inside them. */
	openblas_set_num_threads(1);
	status = qmw_config_read(directory, &self->config);
	if (!status)
		status = qmw_checkpoint_open(directory, &self->checkpoint);
	if (!status)
		status = qmw_weights_check(self->checkpoint, &self->config);
	if (!status)
		status = qmw_ngram_read(self->checkpoint, &self->config, &parameters, &self->ngram);
	if (!status)
		status = init_model(self, threads);
	if (status) {
		qmw_stream_close(self);
		return status;
	}
	*stream = self;
	return QMLA_OK;
}

static void unload_head(struct qmw_stream *stream)
{
	free(stream->norm);
	stream->norm = NULL;
	qmw_matrix_fini(&stream->head);
}

static void unload(struct qmw_stream *stream)
{
	for (uint32_t i = 0; i < stream->config.sublayers; i++) {
		qmw_attention_weights_free(&stream->attention[i]);
		if (stream->model.weights.layer)
			qmw_layer_free(&stream->model.weights.layer[i], stream->config.heads);
	}
	stream->loaded = false;
}

void qmw_stream_close(struct qmw_stream *stream)
{
	if (!stream)
		return;
	unload(stream);
	unload_head(stream);
	qmw_context_destroy(stream->context);
	qmw_ngram_free(&stream->ngram);
	qmw_checkpoint_close(stream->checkpoint);
	free(stream->model.weights.layer);
	free(stream->model.attend_constants);
	free(stream->model.constants.layers);
	free(stream);
}

const struct qmw_config *qmw_stream_config(const struct qmw_stream *stream)
{
	return &stream->config;
}

const struct qmw_checkpoint *qmw_stream_checkpoint(const struct qmw_stream *stream)
{
	return stream->checkpoint;
}

const struct qmw_rope *qmw_stream_rope(const struct qmw_stream *stream)
{
	return &stream->model.rope;
}

uint32_t qmw_stream_layers(const struct qmw_stream *stream)
{
	return stream->config.layers / stream->config.sublayers;
}

uint32_t qmw_stream_cache_layers(const struct qmw_stream *stream)
{
	return stream->config.layers;
}

void qmw_stream_layer_span(const struct qmw_stream *stream, uint32_t decoder_layer, uint32_t *first,
			   uint32_t *count)
{
	*first = decoder_layer * stream->config.sublayers;
	*count = stream->config.sublayers;
}

/* A context for at least @p n tokens. */
static qmla_status_t reserve_context(struct qmw_stream *stream, uint32_t n)
{
	qmla_status_t status;

	if (stream->context && stream->context_tokens >= n)
		return QMLA_OK;
	qmw_context_destroy(stream->context);
	stream->context = NULL;
	status = qmw_context_create(&stream->model, n, &stream->context);
	if (!status)
		stream->context_tokens = n;
	return status;
}

static qmla_status_t check_tokens(const struct qmw_stream *stream, const uint32_t *tokens,
				  uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (tokens[i] < stream->config.vocab)
			continue;
		qmc_error(COMPONENT,
			  "token %" PRIu32 " at %" PRIu32 " is outside the vocabulary of %" PRIu32,
			  tokens[i], i, stream->config.vocab);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

/* Adds the n-grams that end in tokens [first, first + count). */
static qmla_status_t add_ngrams(struct qmw_stream *stream, const uint32_t *tokens, uint32_t first,
				uint32_t count, float *hidden)
{
	const struct qmw_config *c = &stream->config;
	struct qmw_lane *lane = &stream->context->lanes[0];

	for (uint32_t r = 0; r < count; r++) {
		uint32_t recent[QMW_NEIGHBOURS_MAX], known = 0;

		for (uint32_t d = 0; d <= qmw_config_history(c) && d <= first + r; d++)
			recent[known++] = tokens[first + r - d];
		qmw_ngram_ids(c, recent, known,
			      lane->ngram_ids + (size_t)r * qmw_config_ngram_tables(c));
	}
	return qmw_ngram_add(&stream->ngram, c, lane->ngram_ids, count, false, lane->ngram_rows,
			     lane->sum, hidden + (size_t)first * c->hidden);
}

qmla_status_t qmw_stream_embed(struct qmw_stream *stream, const uint32_t *tokens, uint32_t n,
			       float *hidden)
{
	const struct qmw_config *c = &stream->config;
	qmla_status_t status = check_tokens(stream, tokens, n);

	for (uint32_t i = 0; i < n && !status; i++)
		status = qmw_checkpoint_read_rows(
			stream->checkpoint, qmw_embedding_name(stream->checkpoint), c->vocab,
			c->hidden, tokens[i], 1, hidden + (size_t)i * c->hidden);
	for (size_t i = 0; c->embedding_scale != 1 && i < (size_t)n * c->hidden; i++)
		hidden[i] *= c->embedding_scale;
	if (!stream->ngram.tables)
		return status;
	if (!status)
		status = reserve_context(stream, 1);
	for (uint32_t i = 0; i < n && !status; i += QMW_TILE_ROWS)
		status = add_ngrams(stream, tokens, i,
				    n - i < QMW_TILE_ROWS ? n - i : QMW_TILE_ROWS, hidden);
	return status;
}

qmla_status_t qmw_stream_load(struct qmw_stream *stream, uint32_t decoder_layer)
{
	uint32_t first, count;
	qmla_status_t status = QMLA_OK;

	if (decoder_layer >= qmw_stream_layers(stream))
		return QMLA_ERR_INVALID_ARGUMENT;
	unload(stream);
	unload_head(stream);
	qmw_stream_layer_span(stream, decoder_layer, &first, &count);
	for (uint32_t i = 0; i < count && !status; i++)
		status = qmw_layer_read(stream->checkpoint, &stream->config, &stream->model.rope,
					first + i, stream->model.options.threads,
					&stream->attention[i], &stream->model.weights.layer[i]);
	if (status) {
		unload(stream);
		return status;
	}
	stream->layer = decoder_layer;
	stream->loaded = true;
	return QMLA_OK;
}

const struct qmw_attention_weights *qmw_stream_attention(const struct qmw_stream *stream,
							 uint32_t cache_layer)
{
	uint32_t sublayers = stream->config.sublayers;

	if (!stream->loaded || cache_layer / sublayers != stream->layer)
		return NULL;
	return &stream->attention[cache_layer % sublayers];
}

/* Shows the visitor what the sub-layer will see. */
static qmla_status_t show(struct qmw_stream *stream, uint32_t sublayer, uint32_t n,
			  qmw_stream_visit visit, void *user)
{
	const struct qmw_config *c = &stream->config;
	float *input = malloc((size_t)n * c->hidden * sizeof(*input));
	qmla_status_t status;

	if (!input)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t r = 0; r < n; r++)
		qmw_rms_norm(stream->context->hidden + (size_t)r * c->hidden,
			     stream->model.weights.layer[sublayer].input_norm, c->norm_eps,
			     c->hidden, false, input + (size_t)r * c->hidden);
	status = visit(user, stream->layer * c->sublayers + sublayer, &stream->attention[sublayer],
		       input, n);
	free(input);
	return status;
}

static qmla_status_t run_sublayers(struct qmw_stream *stream, uint32_t n, qmw_stream_visit visit,
				   void *user)
{
	qmla_status_t status = QMLA_OK;

	for (uint32_t i = 0; i < stream->config.sublayers && !status; i++) {
		if (visit)
			status = show(stream, i, n, visit, user);
		if (!status)
			status = qmw_forward_layer(stream->context, i);
	}
	return status;
}

qmla_status_t qmw_stream_run(struct qmw_stream *stream, float *hidden, uint32_t n,
			     qmw_stream_visit visit, void *user)
{
	size_t bytes = (size_t)n * stream->config.hidden * sizeof(*hidden);
	struct qmw_forward_item item = {.count = n};
	uint32_t *tokens;
	qmla_status_t status;

	if (!stream->loaded)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qmw_sequence_create(&stream->model, n, &item.sequence);
	if (status)
		return status;
	tokens = calloc(n, sizeof(*tokens)); /* the plan wants some; nobody embeds them */
	item.tokens = tokens;
	status = tokens ? reserve_context(stream, n) : QMLA_ERR_NO_MEMORY;
	if (!status)
		status = qmw_plan(stream->context, NULL, &item, 1);
	if (!status) {
		memcpy(stream->context->hidden, hidden, bytes);
		qmw_forward_begin(stream->context);
		status = run_sublayers(stream, n, visit, user);
	}
	if (!status)
		memcpy(hidden, stream->context->hidden, bytes);
	qmw_sequence_destroy(item.sequence);
	free(tokens);
	return status;
}

static qmla_status_t load_head(struct qmw_stream *stream)
{
	const struct qmw_config *c = &stream->config;
	float *norm, *head;
	qmla_status_t status;

	if (stream->norm)
		return QMLA_OK;
	status = qmw_checkpoint_read(stream->checkpoint, QMW_NORM_NAME, c->hidden, 0, &norm);
	if (status)
		return status;
	status = qmw_checkpoint_read(stream->checkpoint, qmw_head_name(stream->checkpoint, c),
				     c->vocab, c->hidden, &head);
	if (!status) {
		status = qmw_matrix_init(&stream->head, c->vocab, c->hidden, head, c->hidden, NULL);
		free(head);
	}
	if (status)
		free(norm);
	else
		stream->norm = norm;
	return status;
}

qmla_status_t qmw_stream_logits(struct qmw_stream *stream, const float *hidden, uint32_t n,
				float *logits)
{
	const struct qmw_config *c = &stream->config;
	qmla_status_t status = load_head(stream);

	if (!status)
		status = reserve_context(stream, 1);
	for (uint32_t i = 0; i < n && !status; i += QMW_TILE_ROWS) {
		uint32_t count = n - i < QMW_TILE_ROWS ? n - i : QMW_TILE_ROWS;
		float *x = stream->context->lanes[0].x;

		for (uint32_t r = 0; r < count; r++)
			qmw_rms_norm(hidden + (size_t)(i + r) * c->hidden, stream->norm,
				     c->norm_eps, c->hidden, false, x + (size_t)r * c->hidden);
		for (size_t k = 0; c->head_scale != 1 && k < (size_t)count * c->hidden; k++)
			x[k] *= c->head_scale;
		stream->context->alone = true;
		qmw_context_product(stream->context, &stream->head, x, c->hidden, count,
				    logits + (size_t)i * c->vocab, c->vocab);
	}
	return status;
}
