/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/work.h"

#include "kernels/block.h"

static size_t fill_commit(struct qml_work *work, struct qml_batch *batch, size_t end,
			  struct qml_call *call)
{
	const struct qmk_layout *layout = &work->window->client->settings.layout;
	size_t base = (size_t)(batch->copies - work->order), count = 0;
	Qmla__V1__CommitItem *items = (Qmla__V1__CommitItem *)work->scratch + base;

	qmla__v1__commit_request__init(&batch->request.commit);
	for (size_t i = 0; i < batch->count; i++) {
		struct qml_copy *copy = batch->copies[i];

		if (copy->status != QMLA_OK || copy->index >= end)
			continue;
		qmla__v1__commit_item__init(&items[count]);
		items[count].ticket = copy->ticket;
		items[count].digest = qmk_block_digest(layout, work->window->blocks[copy->index]);
		work->pointers[base + count] = &items[count];
		batch->request.commit.incarnation = copy->incarnation;
		count++;
	}
	batch->request.commit.items = (Qmla__V1__CommitItem **)(work->pointers + base);
	batch->request.commit.n_items = count;
	*call = (struct qml_call){
		.node = batch->copies[0]->node,
		.path = "/qmla.v1.Cache/Commit",
		.request = &batch->request.commit.base,
		.response_type = &qmla__v1__commit_response__descriptor,
		.user = batch,
	};
	return count;
}

static void take_commit(const struct qml_call *call, size_t end)
{
	const struct qml_batch *batch = call->user;
	const Qmla__V1__CommitResponse *response = (const Qmla__V1__CommitResponse *)call->response;
	qmla_status_t status = call->status;
	size_t at = 0;

	if (status == QMLA_OK && response->n_codes != batch->request.commit.n_items)
		status = QMLA_ERR_FORMAT;
	for (size_t i = 0; i < batch->count; i++) {
		struct qml_copy *copy = batch->copies[i];

		if (copy->status != QMLA_OK || copy->index >= end)
			continue;
		copy->status = status == QMLA_OK ? qml_calls_code(response->codes[at++]) : status;
		copy->reserved = false; /* spent, whatever the answer */
	}
}

void qml_work_commit(struct qml_work *work, size_t end)
{
	size_t count = 0;

	for (size_t i = 0; i < work->batch_count; i++) {
		if (fill_commit(work, &work->batches[i], end, &work->calls[count]) > 0)
			count++;
	}
	qml_calls_run(work->calls, count, work->window->deadline);
	for (size_t i = 0; i < count; i++)
		take_commit(&work->calls[i], end);
	qml_calls_release(work->calls, count);
}

/* Its tickets that led to nothing go to @tickets; false without any. */
static bool fill_abort(struct qml_batch *batch, uint64_t *tickets)
{
	size_t count = 0;

	qmla__v1__abort_request__init(&batch->request.abort);
	for (size_t i = 0; i < batch->count; i++) {
		if (!batch->copies[i]->reserved)
			continue;
		batch->request.abort.incarnation = batch->copies[i]->incarnation;
		tickets[count++] = batch->copies[i]->ticket;
	}
	batch->request.abort.tickets = tickets;
	batch->request.abort.n_tickets = count;
	return count > 0;
}

/*
 * Gives back the tickets that led to nothing. Waits for the answers: the next window may
 * reserve the same keys, and one that overtakes its abort would take itself for another
 * writer. Past the deadline nobody reserves any more.
 */
void qml_work_abort(struct qml_work *work)
{
	bool in_time = qmc_clock_left(work->window->deadline) > 0;
	uint64_t *tickets = work->scratch;
	size_t count = 0;

	for (size_t b = 0; b < work->batch_count; b++) {
		struct qml_batch *batch = &work->batches[b];

		if (!fill_abort(batch, tickets))
			continue;
		tickets += batch->request.abort.n_tickets;
		if (!in_time) {
			qml_background_send(work->window->client->background,
					    batch->copies[0]->node, "/qmla.v1.Cache/Abort",
					    &batch->request.abort.base,
					    &qmla__v1__abort_response__descriptor);
			continue;
		}
		work->calls[count++] = (struct qml_call){
			.node = batch->copies[0]->node,
			.path = "/qmla.v1.Cache/Abort",
			.request = &batch->request.abort.base,
			.response_type = &qmla__v1__abort_response__descriptor,
		};
	}
	qml_calls_run(work->calls, count, work->window->deadline);
	qml_calls_release(work->calls, count);
}
