/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The calibration sequences on their way through a checkpoint, one decoder layer at a time.
 * Hidden states of all sequences lie in the workplace as "hidden-LAYER.rows": those in
 * front of a layer stay until what is learned of the layer is saved.
 */
#ifndef QMW_CALIBRATE_WALK_H
#define QMW_CALIBRATE_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/corpus.h"
#include "client/calibrate/row_file.h"
#include "client/calibrate/workplace.h"
#include "client/model/stream.h"

/** Attention sub-layers of one decoder layer at most. */
#define QMW_WALK_SUBLAYERS 2u

struct qmw_walk {
	struct qmw_stream *stream;
	const struct qmw_workplace *workplace;
	const struct qmw_corpus *corpus;
	uint32_t decoder_layers;
	/** After each sequence, may be NULL; false ends the run. */
	bool (*progress)(void *user, uint32_t cache_layer, uint32_t done, uint32_t of);
	void *user;
};

/** True when the hidden states in front of @p decoder_layer are there and whole. */
bool qmw_walk_has(const struct qmw_walk *walk, uint32_t decoder_layer);

/** Makes the hidden states in front of layer 0. */
qmla_status_t qmw_walk_begin(const struct qmw_walk *walk);

/**
 * Loads @p decoder_layer, runs all sequences through it and writes the hidden states behind
 * it (not behind the last). With @p inputs (not NULL) also each sub-layer's normalised
 * inputs: @p inputs [QMW_WALK_SUBLAYERS], opened, NULL where there is none; the caller
 * closes them, and they are removed with the next layer.
 */
qmla_status_t qmw_walk_layer(const struct qmw_walk *walk, uint32_t decoder_layer,
			     struct qmw_row_file **inputs);

/** Removes the hidden states in front of @p decoder_layer. */
void qmw_walk_leave(const struct qmw_walk *walk, uint32_t decoder_layer);

#endif /* QMW_CALIBRATE_WALK_H */
