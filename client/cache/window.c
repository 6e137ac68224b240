/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/work.h"

#include <stdlib.h>
#include <string.h>

/* The first writable nodes of the key's ranking; a copy without a node fails at once. */
static void choose_nodes(struct qml_work *work, size_t index, size_t copies)
{
	qmla_client_t *client = work->window->client;
	uint16_t ranked[QML_NODES_MAX];
	size_t chosen = 0;

	qml_place_rank(client->places, client->node_count, &work->window->keys[index],
		       client->node_count, ranked);
	for (size_t i = 0; i < client->node_count && chosen < copies; i++) {
		struct qml_node *node = client->nodes[ranked[i]];

		if (!qml_node_writable(node))
			continue;
		work->copies[work->copy_count++] = (struct qml_copy){
			.index = index, .node = node, .status = QMLA_ERR_UNAVAILABLE};
		chosen++;
	}
	if (chosen == 0)
		work->copies[work->copy_count++] =
			(struct qml_copy){.index = index, .status = QMLA_ERR_UNAVAILABLE};
}

static void add_batches(struct qml_work *work, struct qml_copy **group, size_t count)
{
	struct qml_link *link = NULL;
	qmla_status_t status = qml_calls_link(group[0]->node, work->window->deadline, &link);
	size_t most = link ? link->max_batch_keys : count;

	for (size_t at = 0; at < count; at += most) {
		struct qml_batch *batch = &work->batches[work->batch_count++];

		batch->copies = group + at;
		batch->count = count - at < most ? count - at : most;
		batch->link = link ? qml_link_get(link) : NULL;
	}
	for (size_t i = 0; i < count; i++)
		group[i]->status = status;
	qml_link_put(link);
}

static void group_copies(struct qml_work *work)
{
	qmla_client_t *client = work->window->client;
	size_t grouped = 0;

	qml_calls_connect(client->nodes, client->node_count, work->window->deadline);
	for (size_t n = 0; n < client->node_count; n++) {
		size_t begin = grouped;

		for (size_t i = 0; i < work->copy_count; i++) {
			if (work->copies[i].node == client->nodes[n])
				work->order[grouped++] = &work->copies[i];
		}
		if (grouped > begin)
			add_batches(work, work->order + begin, grouped - begin);
	}
}

static bool is_good(qmla_status_t status)
{
	return status == QMLA_OK || status == QMLA_ERR_ALREADY_EXISTS || status == QMLA_ERR_BUSY;
}

static int rank_of(qmla_status_t status)
{
	if (status == QMLA_OK)
		return 3;
	if (status == QMLA_ERR_ALREADY_EXISTS)
		return 2;
	return status == QMLA_ERR_BUSY;
}

/* Best of its copies; the first one's reason when all failed. */
static void join_copies(const struct qml_work *work)
{
	qmla_status_t *statuses = work->window->statuses;

	for (size_t i = 0; i < work->copy_count; i++) {
		const struct qml_copy *copy = &work->copies[i];
		bool first = i == 0 || work->copies[i - 1].index != copy->index;

		if (first || rank_of(copy->status) > rank_of(statuses[copy->index]))
			statuses[copy->index] = copy->status;
	}
}

/* Index of the first block that no copy is well of; tickets past it are useless. */
static size_t good_end(const struct qml_work *work)
{
	size_t at = work->window->first, end = at + work->window->count;

	join_copies(work);
	while (at < end && is_good(work->window->statuses[at]))
		at++;
	return at;
}

/* A key given twice finds its own ticket in the way: it is there all the same. */
static void forgive_duplicates(const struct qml_window *window)
{
	size_t end = window->first + window->count;

	for (size_t i = window->first; i < end; i++) {
		for (size_t k = window->first; k < i && window->statuses[i] == QMLA_ERR_BUSY; k++) {
			if (memcmp(&window->keys[i], &window->keys[k], sizeof(qmla_key_t)) == 0 &&
			    window->statuses[k] == QMLA_OK)
				window->statuses[i] = QMLA_ERR_ALREADY_EXISTS;
		}
	}
}

/* A block past the end of the window's good part has not been published, whatever was reserved. */
static void mark_left_out(const struct qml_window *window, size_t end)
{
	size_t last = window->first + window->count;

	for (size_t i = end + 1; i < last; i++) {
		if (window->statuses[i] == QMLA_OK)
			window->statuses[i] = window->statuses[end];
	}
}

static qmla_status_t run(struct qml_work *work)
{
	qmla_status_t status = QMLA_OK;
	size_t end;

	group_copies(work);
	qml_work_reserve(work);
	end = good_end(work);
	for (size_t i = 0; i < work->copy_count; i++) {
		if (work->copies[i].index >= end && work->copies[i].status == QMLA_OK)
			work->copies[i].status = QMLA_ERR_CANCELLED;
	}
	if (end > work->window->first)
		status = qml_work_write(work);
	if (status == QMLA_OK)
		qml_work_commit(work, good_end(work));
	qml_work_abort(work);
	mark_left_out(work->window, good_end(work));
	forgive_duplicates(work->window);
	return status;
}

qmla_status_t qml_window_run(struct qml_window *window)
{
	qmla_client_t *client = window->client;
	struct qml_work work = {.window = window};
	size_t copies = client->settings.replicas, most;
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (copies > client->node_count)
		copies = client->node_count;
	most = copies * window->count;
	window->retry_after_ms = 0;
	work.copies = calloc(most, sizeof(*work.copies));
	work.order = calloc(most, sizeof(struct qml_copy *));
	work.batches = calloc(most, sizeof(*work.batches));
	work.calls = calloc(most, sizeof(*work.calls));
	work.headers = calloc(most, client->settings.layout.header_bytes);
	work.scratch = calloc(most, sizeof(union qml_scratch));
	work.pointers = calloc(most, sizeof(*work.pointers));
	if (work.copies && work.order && work.batches && work.calls && work.headers &&
	    work.scratch && work.pointers) {
		for (size_t i = 0; i < window->count; i++)
			choose_nodes(&work, window->first + i, copies);
		status = run(&work);
	}
	for (size_t i = 0; i < work.batch_count; i++)
		qml_link_put(work.batches[i].link);
	free(work.pointers);
	free(work.scratch);
	free(work.headers);
	free(work.calls);
	free(work.batches);
	free(work.order);
	free(work.copies);
	return status;
}
