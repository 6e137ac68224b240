/* SPDX-License-Identifier: Apache-2.0 */
/* Reserve, Commit and Abort. */
#include <stdlib.h>

#include "server/service_internal.h"

/* What one Reserve needs, in one allocation. */
struct reserve_room {
	struct qms_reserve_entry *given;
	Qmla__V1__ReserveEntry *entries;
	Qmla__V1__ReserveEntry **pointers;
};

static void *reserve_room_take(size_t count, struct reserve_room *room)
{
	size_t each = sizeof(*room->given) + sizeof(*room->entries) + sizeof(*room->pointers);
	char *memory = malloc(count * each);

	if (!memory)
		return NULL;
	room->given = (struct qms_reserve_entry *)(void *)memory;
	room->entries = (Qmla__V1__ReserveEntry *)(void *)(room->given + count);
	room->pointers = (Qmla__V1__ReserveEntry **)(void *)(room->entries + count);
	return memory;
}

/* Returns true when a key was refused for lack of room. */
static bool fill_entries(const struct reserve_room *room, size_t count)
{
	bool full = false;

	for (size_t i = 0; i < count; i++) {
		const struct qms_reserve_entry *given = &room->given[i];
		Qmla__V1__ReserveEntry *entry = &room->entries[i];

		qmla__v1__reserve_entry__init(entry);
		entry->code = qmp_code_from_status(given->status);
		entry->ticket = given->ticket;
		entry->offset = given->offset;
		entry->length = given->length;
		entry->generation = given->generation;
		room->pointers[i] = entry;
		full = full || given->status == QMLA_ERR_RESOURCE_EXHAUSTED;
	}
	return full;
}

static qmla_status_t refuse_reserve(struct qmp_call *call, qmla_status_t status)
{
	if (status == QMLA_ERR_NOT_FOUND)
		return qms_refuse(call, status,
				  "no pool is open for this identity: call Connect first");
	return qms_refuse(call, status, "the node's table of tickets is full: try again later");
}

static qmla_status_t reserve(struct qms_service *service, struct qmp_call *call,
			     const Qmla__V1__ReserveRequest *request,
			     const struct qms_identity *identity, const struct qms_key *keys)
{
	Qmla__V1__ReserveResponse response = QMLA__V1__RESERVE_RESPONSE__INIT;
	size_t count = request->n_keys;
	struct reserve_room room;
	struct qms_grant grant;
	void *memory = reserve_room_take(count, &room);
	qmla_status_t status;

	if (!memory)
		return qms_refuse(call, QMLA_ERR_NO_MEMORY, "the node is out of memory");
	status = qms_store_reserve(service->store, identity, keys, count,
				   qms_ns_from_ms(request->lease_ms), room.given, &grant);
	if (status != QMLA_OK) {
		free(memory);
		return refuse_reserve(call, status);
	}
	if (fill_entries(&room, count))
		response.retry_after_ms = qms_store_retry_hint(service->store);
	response.incarnation = service->incarnation;
	if (grant.granted_ns > 0) {
		response.lease_ms = qms_ms_from_ns(grant.granted_ns);
		response.capability.data = grant.capability.bytes;
		response.capability.len = sizeof(grant.capability.bytes);
	}
	response.entries = room.pointers;
	response.n_entries = count;
	qmp_call_reply(call, &response.base);
	free(memory);
	return QMLA_OK;
}

qmla_status_t qms_serve_reserve(struct qms_service *service, struct qmp_call *call,
				const ProtobufCMessage *message)
{
	const Qmla__V1__ReserveRequest *request = (const Qmla__V1__ReserveRequest *)message;
	struct qms_identity identity;
	struct qms_key *keys;
	qmla_status_t status;

	status = qms_request_identity(call, &request->identity, &identity);
	if (status == QMLA_OK)
		status = qms_request_keys(service, call, request->n_keys, request->keys, &keys);
	if (status != QMLA_OK)
		return status;
	if (qms_service_draining(service))
		status = qms_refuse(call, QMLA_ERR_DRAINING,
				    "the node is draining and takes no new writes");
	else
		status = reserve(service, call, request, &identity, keys);
	free(keys);
	return status;
}

qmla_status_t qms_serve_commit(struct qms_service *service, struct qmp_call *call,
			       const ProtobufCMessage *message)
{
	const Qmla__V1__CommitRequest *request = (const Qmla__V1__CommitRequest *)message;
	Qmla__V1__CommitResponse response = QMLA__V1__COMMIT_RESPONSE__INIT;
	Qmla__V1__Code *codes;
	qmla_status_t status;

	status = qms_request_codes(service, call, request->incarnation, "items", request->n_items,
				   &codes);
	if (status != QMLA_OK)
		return status;
	for (size_t i = 0; i < request->n_items; i++)
		codes[i] = qmp_code_from_status(qms_store_commit(
			service->store, request->items[i]->ticket, request->items[i]->digest));
	response.codes = codes;
	response.n_codes = request->n_items;
	qmp_call_reply(call, &response.base);
	free(codes);
	return QMLA_OK;
}

qmla_status_t qms_serve_abort(struct qms_service *service, struct qmp_call *call,
			      const ProtobufCMessage *message)
{
	const Qmla__V1__AbortRequest *request = (const Qmla__V1__AbortRequest *)message;
	Qmla__V1__AbortResponse response = QMLA__V1__ABORT_RESPONSE__INIT;
	Qmla__V1__Code *codes;
	qmla_status_t status;

	status = qms_request_codes(service, call, request->incarnation, "tickets",
				   request->n_tickets, &codes);
	if (status != QMLA_OK)
		return status;
	for (size_t i = 0; i < request->n_tickets; i++)
		codes[i] =
			qmp_code_from_status(qms_store_abort(service->store, request->tickets[i]));
	response.codes = codes;
	response.n_codes = request->n_tickets;
	qmp_call_reply(call, &response.base);
	free(codes);
	return QMLA_OK;
}
