/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/walk.h"

#include <stdlib.h>

#define HIDDEN "hidden-#.rows"
#define INPUT  "input-#.rows"

static uint32_t sequences(const struct qmw_walk *walk)
{
	return walk->corpus->train + walk->corpus->held_out;
}

static uint64_t block_floats(const struct qmw_walk *walk)
{
	return (uint64_t)walk->corpus->length * qmw_stream_config(walk->stream)->hidden;
}

/* Opens or creates the row file @name of @number. */
static qmla_status_t rows(const struct qmw_walk *walk, const char *name, uint32_t number,
			  bool create, struct qmw_row_file **file)
{
	char *path = qmw_workplace_path(walk->workplace, name, number);
	uint8_t tag[QMC_SHA256_BYTES];
	qmla_status_t status = path ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (status == QMLA_OK)
		status = qmw_workplace_tag(walk->workplace, name, number, tag);
	if (status == QMLA_OK)
		status = (create ? qmw_row_file_create : qmw_row_file_open)(
			path, tag, sequences(walk), block_floats(walk), file);
	free(path);
	return status;
}

bool qmw_walk_has(const struct qmw_walk *walk, uint32_t decoder_layer)
{
	struct qmw_row_file *file = NULL;
	bool has = rows(walk, HIDDEN, decoder_layer, false, &file) == QMLA_OK;

	qmw_row_file_close(file);
	return has;
}

qmla_status_t qmw_walk_begin(const struct qmw_walk *walk)
{
	float *hidden = malloc(block_floats(walk) * sizeof(*hidden));
	struct qmw_row_file *file = NULL;
	qmla_status_t status = hidden ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (status == QMLA_OK)
		status = rows(walk, HIDDEN, 0, true, &file);
	for (uint32_t i = 0; status == QMLA_OK && i < sequences(walk); i++) {
		status = qmw_stream_embed(walk->stream, qmw_corpus_sequence(walk->corpus, i),
					  walk->corpus->length, hidden);
		if (status == QMLA_OK)
			status = qmw_row_file_write(file, i, hidden);
	}
	if (status == QMLA_OK)
		status = qmw_row_file_finish(file);
	qmw_row_file_close(file);
	free(hidden);
	return status;
}

/* What the visit needs to put a sub-layer's input where it belongs. */
struct capture {
	struct qmw_row_file **inputs;
	uint32_t first, sequence;
};

static qmla_status_t capture_input(void *user, uint32_t cache_layer,
				   const struct qmw_attention_weights *weights, const float *input,
				   uint32_t n)
{
	const struct capture *capture = user;

	(void)weights;
	(void)n;
	return qmw_row_file_write(capture->inputs[cache_layer - capture->first], capture->sequence,
				  input);
}

struct files {
	struct qmw_row_file *from, *to; /* NULL: not wanted */
	struct qmw_row_file **inputs;
};

static qmla_status_t run_sequences(const struct qmw_walk *walk, uint32_t first,
				   const struct files *files)
{
	struct capture capture = {.inputs = files->inputs, .first = first};
	float *hidden = malloc(block_floats(walk) * sizeof(*hidden));
	qmla_status_t status = hidden ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	for (uint32_t i = 0; status == QMLA_OK && i < sequences(walk); i++) {
		capture.sequence = i;
		status = qmw_row_file_read(files->from, i, hidden);
		if (status == QMLA_OK)
			status = qmw_stream_run(walk->stream, hidden, walk->corpus->length,
						files->inputs ? capture_input : NULL, &capture);
		if (status == QMLA_OK && files->to)
			status = qmw_row_file_write(files->to, i, hidden);
		if (status == QMLA_OK && walk->progress &&
		    !walk->progress(walk->user, first, i + 1, sequences(walk)))
			status = QMLA_ERR_CANCELLED;
	}
	free(hidden);
	return status;
}

static qmla_status_t open_files(const struct qmw_walk *walk, uint32_t layer, uint32_t count,
				struct files *files)
{
	qmla_status_t status = rows(walk, HIDDEN, layer, false, &files->from);

	if (status == QMLA_OK && layer + 1 < walk->decoder_layers)
		status = rows(walk, HIDDEN, layer + 1, true, &files->to);
	for (uint32_t i = 0; status == QMLA_OK && files->inputs && i < count; i++)
		status = rows(walk, INPUT, i, true, &files->inputs[i]);
	return status;
}

static qmla_status_t finish_files(const struct files *files, uint32_t count)
{
	qmla_status_t status = files->to ? qmw_row_file_finish(files->to) : QMLA_OK;

	for (uint32_t i = 0; status == QMLA_OK && files->inputs && i < count; i++)
		status = qmw_row_file_finish(files->inputs[i]);
	return status;
}

qmla_status_t qmw_walk_layer(const struct qmw_walk *walk, uint32_t decoder_layer,
			     struct qmw_row_file **inputs)
{
	struct qmw_row_file *opened[QMW_WALK_SUBLAYERS] = {NULL, NULL};
	struct files files = {.inputs = inputs ? opened : NULL};
	uint32_t first, count;
	qmla_status_t status = qmw_stream_load(walk->stream, decoder_layer);

	qmw_stream_layer_span(walk->stream, decoder_layer, &first, &count);
	if (status == QMLA_OK)
		status = open_files(walk, decoder_layer, count, &files);
	if (status == QMLA_OK)
		status = run_sequences(walk, first, &files);
	if (status == QMLA_OK)
		status = finish_files(&files, count);
	qmw_row_file_close(files.from);
	qmw_row_file_close(files.to);
	for (uint32_t i = 0; i < QMW_WALK_SUBLAYERS; i++) {
		if (status == QMLA_OK && inputs)
			inputs[i] = opened[i];
		else
			qmw_row_file_close(opened[i]);
	}
	return status;
}

void qmw_walk_leave(const struct qmw_walk *walk, uint32_t decoder_layer)
{
	qmw_workplace_drop(walk->workplace, HIDDEN, decoder_layer);
}
