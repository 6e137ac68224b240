/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/work.h"

#include <string.h>

#include "common/log.h"

static void fill_reserve(struct qml_work *work, struct qml_batch *batch, struct qml_call *call)
{
	struct qml_settings *settings = &work->window->client->settings;
	ProtobufCBinaryData *keys =
		(ProtobufCBinaryData *)work->scratch + (batch->copies - work->order);

	for (size_t i = 0; i < batch->count; i++)
		qml_calls_point_keys(work->window->keys, &batch->copies[i]->index, 1, &keys[i]);
	qmla__v1__reserve_request__init(&batch->request.reserve);
	batch->request.reserve.identity.data = settings->identity.bytes;
	batch->request.reserve.identity.len = sizeof(settings->identity.bytes);
	batch->request.reserve.keys = keys;
	batch->request.reserve.n_keys = batch->count;
	batch->request.reserve.lease_ms = settings->lease_ms;
	if (batch->link->max_lease_ms && settings->lease_ms > batch->link->max_lease_ms)
		batch->request.reserve.lease_ms = batch->link->max_lease_ms;
	*call = (struct qml_call){
		.node = batch->copies[0]->node,
		.path = "/qmla.v1.Cache/Reserve",
		.request = &batch->request.reserve.base,
		.response_type = &qmla__v1__reserve_response__descriptor,
		.user = batch,
	};
}

static void take_reserve_entry(const struct qml_work *work, const struct qml_call *call,
			       const Qmla__V1__ReserveResponse *response, size_t at)
{
	const struct qml_batch *batch = call->user;
	const Qmla__V1__ReserveEntry *entry = response->entries[at];
	struct qml_copy *copy = batch->copies[at];
	uint64_t block = work->window->client->settings.layout.block_bytes;

	copy->status = qml_calls_code(entry->code);
	if (copy->status != QMLA_OK)
		return;
	copy->reserved = true;
	copy->ticket = entry->ticket;
	copy->incarnation = response->incarnation;
	copy->offset = entry->offset;
	copy->generation = entry->generation;
	copy->expires = call->sent + response->lease_ms * QMC_NS_PER_MS;
	if (response->capability.len != QMT_CAPABILITY_BYTES || entry->length != block ||
	    entry->offset > batch->link->region_bytes ||
	    batch->link->region_bytes - entry->offset < block) {
		qmc_warn_limited("client", "node %s reserved a slot outside its pool",
				 qml_node_name(call->node));
		copy->status = QMLA_ERR_FORMAT;
		return;
	}
	memcpy(copy->capability, response->capability.data, QMT_CAPABILITY_BYTES);
}

static void take_reserve(struct qml_work *work, const struct qml_call *call)
{
	const struct qml_batch *batch = call->user;
	const Qmla__V1__ReserveResponse *response =
		(const Qmla__V1__ReserveResponse *)call->response;
	qmla_status_t status = call->status;

	if (status == QMLA_OK && response->incarnation != batch->link->incarnation)
		status = QMLA_ERR_PEER_RESTARTED;
	if (status == QMLA_OK && response->n_entries != batch->count)
		status = QMLA_ERR_FORMAT;
	if (status == QMLA_ERR_DRAINING)
		qml_node_set_draining(call->node);
	if (status == QMLA_ERR_PEER_RESTARTED || status == QMLA_ERR_NOT_FOUND)
		qml_node_forget(call->node, batch->link->incarnation);
	for (size_t i = 0; i < batch->count; i++) {
		batch->copies[i]->status = status;
		if (status == QMLA_OK)
			take_reserve_entry(work, call, response, i);
	}
	if (status == QMLA_OK && response->retry_after_ms > work->window->retry_after_ms)
		work->window->retry_after_ms = response->retry_after_ms;
}

void qml_work_reserve(struct qml_work *work)
{
	size_t count = 0;

	for (size_t i = 0; i < work->batch_count; i++) {
		if (work->batches[i].link)
			fill_reserve(work, &work->batches[i], &work->calls[count++]);
	}
	qml_calls_run(work->calls, count, work->window->deadline);
	for (size_t i = 0; i < count; i++)
		take_reserve(work, &work->calls[i]);
	qml_calls_release(work->calls, count);
}
