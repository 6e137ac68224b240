/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/transfer.h"

#include <stdlib.h>

#include "client/cache/lane.h"

#define LANE_WORTH_BYTES (UINT64_C(2) << 20) /* less is not worth another thread */

static size_t clamp(size_t value, size_t least, size_t most)
{
	if (value < least)
		return least;
	return value < most ? value : most;
}

/*
 * By measurement: shm lanes copy and verify on the caller's own processors, so two
 * pay off as soon as there are two; a tcp lane keeps one of the kernel's threads
 * and one of the node's busy besides, and a second one on a small machine halves
 * the rate.
 */
static size_t connections_for(const struct qml_transfer *transfer)
{
	const struct qml_settings *settings = qml_node_settings(transfer->node);
	struct qml_link *link;
	size_t count;

	if (settings->connections)
		return settings->connections;
	link = qml_node_link(transfer->node);
	if (link && link->ops == &qmt_shm_ops)
		count = clamp(settings->processors, 1, 4);
	else
		count = clamp(settings->processors / 4, 1, 4);
	qml_link_put(link);
	return count;
}

static size_t lanes_for(const struct qml_transfer *transfer)
{
	size_t most = connections_for(transfer);
	uint64_t bytes = 0, worth;

	for (size_t i = 0; i < transfer->count; i++)
		bytes += transfer->pieces[i].length;
	worth = 1 + bytes / LANE_WORTH_BYTES;
	if (most > transfer->count)
		most = transfer->count;
	return most < worth ? most : (size_t)worth;
}

static void prepare(struct qml_transfer *transfer)
{
	/* Relaxed: the crew's lock orders this before the lanes, and them before conclude. */
	atomic_store_explicit(&transfer->next_, 0, memory_order_relaxed);
	atomic_store_explicit(&transfer->failure_, QMLA_OK, memory_order_relaxed);
	for (size_t i = 0; i < transfer->count; i++)
		transfer->pieces[i].status = QMLA_ERR_CANCELLED;
}

/* What no lane took although it was wanted failed as the lanes did. */
static void conclude(struct qml_transfer *transfer)
{
	size_t stop = atomic_load_explicit(transfer->stop, memory_order_relaxed);
	int failure = atomic_load_explicit(&transfer->failure_, memory_order_relaxed);

	for (size_t i = 0; i < transfer->count && failure != QMLA_OK; i++) {
		struct qml_piece *piece = &transfer->pieces[i];

		if (piece->status == QMLA_ERR_CANCELLED && piece->index <= stop)
			piece->status = (qmla_status_t)failure;
	}
}

static void run_lanes(struct qml_crew *crew, struct qml_transfer *transfers, size_t count)
{
	size_t lanes = 0, at = 0;
	void **items;

	for (size_t i = 0; i < count; i++) {
		transfers[i].lanes_ = lanes_for(&transfers[i]);
		lanes += transfers[i].lanes_;
	}
	items = calloc(lanes + 1, sizeof(*items));
	if (!items) {
		/* One after the other needs no list. */
		for (size_t i = 0; i < count; i++)
			qml_lane_run(&transfers[i]);
		return;
	}
	/* First one lane for each node, so that none waits behind another's second. */
	for (size_t round = 0; at < lanes; round++) {
		for (size_t i = 0; i < count; i++) {
			if (round < transfers[i].lanes_)
				items[at++] = &transfers[i];
		}
	}
	qml_crew_run(crew, qml_lane_run, items, lanes);
	free(items);
}

void qml_transfers_run(struct qml_crew *crew, struct qml_transfer *transfers, size_t count)
{
	for (size_t i = 0; i < count; i++)
		prepare(&transfers[i]);
	run_lanes(crew, transfers, count);
	for (size_t i = 0; i < count; i++)
		conclude(&transfers[i]);
}
