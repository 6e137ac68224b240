/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/search.h"

#include <stdlib.h>
#include <string.h>

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

/* The best usable nodes; what a better one that is left out might hold is unknown, not absent. */
static void choose_candidates(struct qml_search *search, size_t index, size_t out_count)
{
	qmla_client_t *client = search->client;
	uint16_t ranked[QML_NODES_MAX];
	uint16_t *chosen = search->candidates + index * search->depth;
	size_t depth = search->depth + out_count, offered = 0;

	if (depth > client->node_count)
		depth = client->node_count;
	qml_place_rank(client->places, client->node_count, &search->keys[index], depth, ranked);
	search->statuses[index] = QMLA_ERR_NOT_FOUND;
	for (size_t i = 0; i < depth && offered < search->depth; i++) {
		qmla_status_t health = qml_node_health(client->nodes[ranked[i]]);

		if (health == QMLA_OK)
			chosen[offered++] = ranked[i];
		else if (i < search->depth)
			search->statuses[index] = health;
	}
	search->offered[index] = (uint8_t)offered;
	search->phases[index] = offered ? QML_SOUGHT : QML_LOST;
}

qmla_status_t qml_search_init(struct qml_search *search)
{
	qmla_client_t *client = search->client;
	size_t n = search->count ? search->count : 1;
	size_t out_count = 0;

	search->depth = qml_client_depth(client);
	search->phases = calloc(n, sizeof(*search->phases));
	search->statuses = calloc(n, sizeof(*search->statuses));
	search->hits = calloc(n, sizeof(*search->hits));
	search->candidates = calloc(n * search->depth, sizeof(*search->candidates));
	search->offered = calloc(n, 1);
	search->asked = calloc(n, 1);
	search->leases = NULL;
	search->lease_count = 0;
	search->nodes_asked = 0;
	search->renewals = 0;
	if (!search->phases || !search->statuses || !search->hits || !search->candidates ||
	    !search->offered || !search->asked) {
		qml_search_fini(search);
		return QMLA_ERR_NO_MEMORY;
	}
	for (size_t i = 0; i < client->node_count; i++)
		out_count += !qml_node_usable(client->nodes[i]);
	for (size_t i = 0; i < search->count; i++)
		choose_candidates(search, i, out_count);
	return QMLA_OK;
}

void qml_search_fini(struct qml_search *search)
{
	for (size_t i = 0; i < search->lease_count; i++)
		qml_lease_release(search->leases[i], search->client->background);
	free(search->leases);
	free(search->phases);
	free(search->statuses);
	free(search->hits);
	free(search->candidates);
	free(search->offered);
	free(search->asked);
}

size_t qml_search_run(const struct qml_search *search)
{
	size_t run = 0;

	while (run < search->count &&
	       (search->phases[run] == QML_FOUND || search->phases[run] == QML_DONE))
		run++;
	return run;
}

void qml_search_reject(struct qml_search *search, size_t index, qmla_status_t status)
{
	/* "Not there" on a second node does not undo that the first could not be asked. */
	if (status != QMLA_ERR_NOT_FOUND || search->statuses[index] == QMLA_OK)
		search->statuses[index] = status;
	search->asked[index]++;
	search->phases[index] =
		search->asked[index] < search->offered[index] ? QML_SOUGHT : QML_LOST;
}

static void release(struct qml_search *search, struct qml_lease *lease)
{
	search->renewals += qml_lease_renewals(lease);
	qml_lease_release(lease, search->client->background);
}

uint32_t qml_search_renewals(const struct qml_search *search)
{
	uint32_t renewals = search->renewals;

	for (size_t i = 0; i < search->lease_count; i++)
		renewals += qml_lease_renewals(search->leases[i]);
	return renewals;
}

void qml_search_release_past(struct qml_search *search, size_t end)
{
	size_t kept = 0;

	for (size_t i = 0; i < search->lease_count; i++) {
		bool used = false;

		for (size_t k = 0; k < end && !used; k++)
			used = search->phases[k] == QML_FOUND &&
			       search->hits[k].lease == search->leases[i];
		if (used)
			search->leases[kept++] = search->leases[i];
		else
			release(search, search->leases[i]);
	}
	search->lease_count = kept;
}

/* A prefix ends at the first key that nobody has: nothing after it is worth a question. */
static size_t limit_of(const struct qml_search *search)
{
	size_t limit = 0;

	if (!search->prefix)
		return search->count;
	while (limit < search->count && search->phases[limit] != QML_LOST)
		limit++;
	return limit;
}

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

/* One round; @p asked is false when there was nothing left to ask. */
static qmla_status_t run_round(struct qml_search *search, bool *asked)
{
	struct round round = {.search = search};
	size_t limit = limit_of(search), grouped;
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

static void give_up(struct qml_search *search)
{
	for (size_t i = 0; i < search->count; i++) {
		if (search->phases[i] != QML_SOUGHT)
			continue;
		search->phases[i] = QML_LOST;
		search->statuses[i] = QMLA_ERR_DEADLINE;
	}
}

qmla_status_t qml_search_settle(struct qml_search *search)
{
	bool asked = true;

	while (asked) {
		qmla_status_t status;

		if (qmc_clock_left(search->deadline) == 0) {
			give_up(search);
			return QMLA_OK;
		}
		status = run_round(search, &asked);
		if (status != QMLA_OK)
			return status;
	}
	return QMLA_OK;
}
