/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/work.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "client/cache/transfer.h"
#include "kernels/block.h"

static void add_pieces(struct qml_work *work, struct qml_copy *copy, struct qml_piece *pieces)
{
	const struct qmk_layout *layout = &work->window->client->settings.layout;
	const uint8_t *block = work->window->blocks[copy->index];
	uint8_t *header = work->headers + (size_t)(copy - work->copies) * layout->header_bytes;

	/* The caller's block stays as it is: only this copy knows the slot's generation. */
	memcpy(header, block, layout->header_bytes);
	qmk_block_set_generation(layout, copy->generation, header);
	pieces[0] = (struct qml_piece){
		.index = copy->index,
		.offset = copy->offset,
		.length = layout->header_bytes,
		.local = header,
		.capability = copy->capability,
		.expires = copy->expires,
	};
	pieces[1] = pieces[0];
	pieces[1].offset += layout->header_bytes;
	pieces[1].length = layout->block_bytes - layout->header_bytes;
	pieces[1].local = (uint8_t *)(uintptr_t)block + layout->header_bytes;
}

static qmla_status_t worse(qmla_status_t a, qmla_status_t b)
{
	return a != QMLA_OK ? a : b;
}

static void take_written(struct qml_copy **copies, size_t count, const struct qml_piece *pieces)
{
	for (size_t i = 0, at = 0; i < count; i++) {
		if (copies[i]->status != QMLA_OK)
			continue;
		copies[i]->status = worse(pieces[at].status, pieces[at + 1].status);
		at += 2;
	}
}

static void write_blocks(struct qml_work *work, struct qml_transfer *transfers,
			 struct qml_piece *pieces, _Atomic size_t *stops)
{
	size_t used = 0;

	for (size_t b = 0; b < work->batch_count; b++) {
		struct qml_batch *batch = &work->batches[b];
		struct qml_transfer *transfer = &transfers[b];

		*transfer = (struct qml_transfer){
			.node = batch->copies[0]->node,
			.access = QMT_WRITE,
			.pieces = pieces + used,
			.deadline = work->window->deadline,
			.stop = &stops[b],
		};
		atomic_init(&stops[b], SIZE_MAX);
		for (size_t i = 0; i < batch->count; i++) {
			if (batch->copies[i]->status != QMLA_OK)
				continue;
			transfer->incarnation = batch->copies[i]->incarnation;
			add_pieces(work, batch->copies[i], pieces + used);
			used += 2;
			transfer->count += 2;
		}
	}
	qml_transfers_run(work->window->client->crew, transfers, work->batch_count);
	for (size_t b = 0; b < work->batch_count; b++)
		take_written(work->batches[b].copies, work->batches[b].count, transfers[b].pieces);
}

qmla_status_t qml_work_write(struct qml_work *work)
{
	struct qml_piece *pieces = calloc(2 * work->copy_count, sizeof(*pieces));
	struct qml_transfer *transfers = calloc(work->batch_count + 1, sizeof(*transfers));
	/* One each: a node that fails must not keep another from taking its copies. */
	_Atomic size_t *stops = calloc(work->batch_count + 1, sizeof(*stops));
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (pieces && transfers && stops) {
		write_blocks(work, transfers, pieces, stops);
		status = QMLA_OK;
	}
	free(stops);
	free(transfers);
	free(pieces);
	return status;
}
