/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A checkpoint run one decoder layer at a time: only that layer's weights are in
 * memory, so that a model larger than the machine can be calibrated. Float32, exact
 * cache, any family that model.h runs. Hidden states are the caller's.
 *
 * A "cache layer" is one attention sub-layer: most families have one a decoder
 * layer, LongCat-Flash two.
 */
#ifndef QMW_STREAM_H
#define QMW_STREAM_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/attention_weights.h"
#include "client/model/checkpoint.h"
#include "client/model/config.h"
#include "client/model/rope.h"

struct qmw_stream;

/** Sees @p input [n][hidden], the normalised input of a sub-layer, before that runs. A failure ends
 * the run with its status. */
typedef qmla_status_t (*qmw_stream_visit)(void *user, uint32_t cache_layer,
					  const struct qmw_attention_weights *weights,
					  const float *input, uint32_t n);

/** Opens the checkpoint's files and checks every name and shape; reads no layer. Errors as
 * qmw_model_open. @p threads 0: all processors. */
qmla_status_t qmw_stream_open(const char *directory, uint32_t threads, struct qmw_stream **stream);
void qmw_stream_close(struct qmw_stream *stream); /**< accepts NULL */

/** The stream's; config->layers counts cache layers. */
const struct qmw_config *qmw_stream_config(const struct qmw_stream *stream);
/** The stream's: for digests, and tensors that are copied as they are. */
const struct qmw_checkpoint *qmw_stream_checkpoint(const struct qmw_stream *stream);
/** Decoder layers of the model. */
uint32_t qmw_stream_layers(const struct qmw_stream *stream);
const struct qmw_rope *qmw_stream_rope(const struct qmw_stream *stream);
/** Cache layers of the model; decoder layer i has those from *first on, *count of them. */
uint32_t qmw_stream_cache_layers(const struct qmw_stream *stream);
void qmw_stream_layer_span(const struct qmw_stream *stream, uint32_t decoder_layer, uint32_t *first,
			   uint32_t *count);

/** Embeddings of @p n tokens: @p hidden [n][hidden]. QMLA_ERR_INVALID_ARGUMENT: not in the
 * vocabulary. */
qmla_status_t qmw_stream_embed(struct qmw_stream *stream, const uint32_t *tokens, uint32_t n,
			       float *hidden);

/** Makes @p decoder_layer the loaded one; the former's weights are gone. */
qmla_status_t qmw_stream_load(struct qmw_stream *stream, uint32_t decoder_layer);

/** Attention weights of a cache layer of the loaded decoder layer, NULL of another one; valid until
 * the next load. */
const struct qmw_attention_weights *qmw_stream_attention(const struct qmw_stream *stream,
							 uint32_t cache_layer);

/** Runs the loaded layer over one whole sequence, positions 0 … n-1: @p hidden [n][hidden] in
 * place. @p visit may be NULL. QMLA_ERR_INVALID_ARGUMENT: no layer loaded, n over the model's
 * max_position_embeddings. */
qmla_status_t qmw_stream_run(struct qmw_stream *stream, float *hidden, uint32_t n,
			     qmw_stream_visit visit, void *user);

/** Final norm and head: @p logits [n][vocab]. The head's weights are read by the first call and
 * stay until the next load. */
qmla_status_t qmw_stream_logits(struct qmw_stream *stream, const float *hidden, uint32_t n,
				float *logits);

#endif /* QMW_STREAM_H */
