/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/round.h"

#include <stdlib.h>

#include "client/cache/calls.h"
#include "common/log.h"

/* One Lookup: a batch of keys of one node. */
struct batch {
	Qmla__V1__LookupRequest request;
	struct qml_link *link; /* held */
	size_t *indices;       /* into the search's keys; part of the round's array */
	size_t count;
};

struct round {
	struct qml_search *search;
	size_t *order;               /* [count]: sought keys grouped by node */
	ProtobufCBinaryData *binary; /* [count]: as order */
	struct batch *batches;
	struct qml_call *calls;
	size_t batch_count;
};

static struct qml_node *asked_node(const struct qml_search *search, size_t index)
{
	size_t at = index * search->depth + search->asked[index];

	return search->client->nodes[search->candidates[at]];
}

/* Groups the sought keys by node, keeping their order; returns how many there are. */
static size_t group_keys(struct round *round, size_t limit)
{
	struct qml_search *search = round->search;
	size_t node_count = search->client->node_count;
	size_t grouped = 0;

	for (size_t n = 0; n < node_count; n++) {
		for (size_t i = 0; i < limit; i++) {
			if (search->phases[i] == QML_SOUGHT &&
			    asked_node(search, i) == search->client->nodes[n])
				round->order[grouped++] = i;
		}
	}
	return grouped;
}

static void fill_batch(struct round *round, struct batch *batch, struct qml_call *call)
{
	struct qml_search *search = round->search;
	ProtobufCBinaryData *binary = round->binary + (batch->indices - round->order);

	qml_calls_point_keys(search->keys, batch->indices, batch->count, binary);
	qmla__v1__lookup_request__init(&batch->request);
	batch->request.identity.data = search->client->settings.identity.bytes;
	batch->request.identity.len = sizeof(search->client->settings.identity.bytes);
	batch->request.keys = binary;
	batch->request.n_keys = batch->count;
	batch->request.lease_ms = search->lease_ms;
	if (batch->link->max_lease_ms && search->lease_ms > batch->link->max_lease_ms)
		batch->request.lease_ms = batch->link->max_lease_ms;
	/* Only a node that was asked for every key in a row can tell a hole. */
	batch->request.stop_at_hole = search->prefix && search->client->node_count == 1;
	call->node = asked_node(search, batch->indices[0]);
	call->path = "/qmla.v1.Cache/Lookup";
	call->request = &batch->request.base;
	call->response_type = &qmla__v1__lookup_response__descriptor;
	call->user = batch;
}

static void reject_group(struct qml_search *search, const size_t *indices, size_t count,
			 qmla_status_t status)
{
	for (size_t i = 0; i < count; i++)
		qml_search_reject(search, indices[i], status);
}

/* Cuts the group of one node into batches that it takes. */
static void cut_group(struct round *round, size_t *indices, size_t count)
{
	struct qml_search *search = round->search;
	struct qml_link *link;
	qmla_status_t status =
		qml_calls_link(asked_node(search, indices[0]), search->deadline, &link);

	if (status != QMLA_OK) {
		reject_group(search, indices, count, status);
		return;
	}
	search->nodes_asked++;
	for (size_t at = 0; at < count; at += link->max_batch_keys) {
		struct batch *batch = &round->batches[round->batch_count];

		batch->link = qml_link_get(link);
		batch->indices = indices + at;
		batch->count =
			count - at < link->max_batch_keys ? count - at : link->max_batch_keys;
		fill_batch(round, batch, &round->calls[round->batch_count]);
		round->batch_count++;
	}
	qml_link_put(link);
}

static void cut_groups(struct round *round, size_t grouped)
{
	struct qml_search *search = round->search;
	size_t begin = 0;

	while (begin < grouped) {
		size_t end = begin + 1;

		while (end < grouped && asked_node(search, round->order[end]) ==
						asked_node(search, round->order[begin]))
			end++;
		cut_group(round, round->order + begin, end - begin);
		begin = end;
	}
}

static qmla_status_t add_lease(struct qml_search *search, const struct qml_call *call,
			       const Qmla__V1__LookupResponse *response, struct qml_lease **lease)
{
	struct qml_lease **grown;
	qmla_status_t status;

	*lease = NULL;
	if (search->lease_ms == 0 || response->lease == 0)
		return QMLA_OK;
	grown = realloc(search->leases, (search->lease_count + 1) * sizeof(*grown));
	if (!grown)
		return QMLA_ERR_NO_MEMORY;
	search->leases = grown;
	status = qml_lease_create(call->node, response, call->sent, lease);
	if (status == QMLA_OK)
		search->leases[search->lease_count++] = *lease;
	return status;
}

/* Nothing from the wire is believed: a block must lie inside the pool. */
static qmla_status_t check_entry(const struct qml_search *search, const struct qml_link *link,
				 const Qmla__V1__LookupEntry *entry)
{
	uint64_t block = search->client->settings.layout.block_bytes;

	if (search->lease_ms == 0)
		return QMLA_OK;
	if (entry->length != block || entry->offset > link->region_bytes ||
	    link->region_bytes - entry->offset < block) {
		qmc_warn_limited("client", "a node described a block outside its pool");
		return QMLA_ERR_FORMAT;
	}
	return QMLA_OK;
}

static void take_entry(struct qml_search *search, const struct qml_call *call, size_t index,
		       const Qmla__V1__LookupEntry *entry, struct qml_lease *lease)
{
	const struct batch *batch = call->user;
	qmla_status_t status = qml_calls_code(entry->code);

	if (status == QMLA_OK && search->lease_ms && !lease)
		status = QMLA_ERR_LEASE_EXPIRED;
	if (status == QMLA_OK)
		status = check_entry(search, batch->link, entry);
	if (status != QMLA_OK) {
		qml_search_reject(search, index, status);
		return;
	}
	search->hits[index] = (struct qml_hit){
		.node = call->node,
		.lease = lease,
		.incarnation = batch->link->incarnation,
		.offset = entry->offset,
		.generation = entry->generation,
		.digest = entry->digest,
	};
	search->phases[index] = QML_FOUND;
	search->statuses[index] = QMLA_OK;
}

static qmla_status_t check_response(const struct qml_call *call)
{
	const struct batch *batch = call->user;
	const Qmla__V1__LookupResponse *response = (const Qmla__V1__LookupResponse *)call->response;

	if (response->incarnation != batch->link->incarnation)
		return QMLA_ERR_PEER_RESTARTED;
	if (response->n_entries != batch->count) {
		qmc_warn_limited("client", "node %s answered %zu of %zu keys",
				 qml_node_name(call->node), response->n_entries, batch->count);
		return QMLA_ERR_FORMAT;
	}
	return QMLA_OK;
}

/* A node that no longer knows us is connected to again the next time. */
static bool asks_for_reconnect(qmla_status_t status)
{
	return status == QMLA_ERR_PEER_RESTARTED || status == QMLA_ERR_NOT_FOUND ||
	       status == QMLA_ERR_IDENTITY_MISMATCH || status == QMLA_ERR_FORMAT;
}

static void take_response(struct qml_search *search, const struct qml_call *call)
{
	const struct batch *batch = call->user;
	const Qmla__V1__LookupResponse *response = (const Qmla__V1__LookupResponse *)call->response;
	struct qml_lease *lease = NULL;
	qmla_status_t status = call->status;

	if (status == QMLA_OK)
		status = check_response(call);
	if (status == QMLA_OK)
		status = add_lease(search, call, response, &lease);
	if (status != QMLA_OK) {
		if (asks_for_reconnect(status))
			qml_node_forget(call->node, batch->link->incarnation);
		reject_group(search, batch->indices, batch->count, status);
		return;
	}
	for (size_t i = 0; i < batch->count; i++)
		take_entry(search, call, batch->indices[i], response->entries[i], lease);
}

static void connect_sought(struct round *round, size_t grouped)
{
	struct qml_search *search = round->search;
	struct qml_node *nodes[QML_NODES_MAX];
	size_t count = 0;

	for (size_t i = 0; i < grouped; i++) {
		struct qml_node *node = asked_node(search, round->order[i]);

		if (count == 0 || nodes[count - 1] != node)
			nodes[count++] = node;
	}
	qml_calls_connect(nodes, count, search->deadline);
}

static void ask(struct round *round, size_t grouped)
{
	connect_sought(round, grouped);
	cut_groups(round, grouped);
	qml_calls_run(round->calls, round->batch_count, round->search->deadline);
	for (size_t i = 0; i < round->batch_count; i++) {
		take_response(round->search, &round->calls[i]);
		qml_link_put(round->batches[i].link);
	}
	qml_calls_release(round->calls, round->batch_count);
}

qmla_status_t qml_round_run(struct qml_search *search, size_t limit, bool *asked)
{
	struct round round = {.search = search};
	size_t grouped;
	qmla_status_t status = QMLA_OK;

	round.order = calloc(limit + 1, sizeof(*round.order));
	round.binary = calloc(limit + 1, sizeof(*round.binary));
	round.batches = calloc(limit + 1, sizeof(*round.batches));
	round.calls = calloc(limit + 1, sizeof(*round.calls));
	if (!round.order || !round.binary || !round.batches || !round.calls) {
		status = QMLA_ERR_NO_MEMORY;
	} else {
		grouped = group_keys(&round, limit);
		*asked = grouped > 0;
		if (grouped)
			ask(&round, grouped);
	}
	free(round.order);
	free(round.binary);
	free(round.batches);
	free(round.calls);
	return status;
}
