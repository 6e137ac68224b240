/* SPDX-License-Identifier: Apache-2.0 */
/* Lookup, Renew and Release. */
#include <stdlib.h>

#include "server/service_internal.h"

/* What one Lookup needs, in one allocation. */
struct lookup_room {
	struct qms_lookup_entry *found;
	Qmla__V1__LookupEntry *entries;
	Qmla__V1__LookupEntry **pointers;
};

static void *lookup_room_take(size_t count, struct lookup_room *room)
{
	size_t each = sizeof(*room->found) + sizeof(*room->entries) + sizeof(*room->pointers);
	char *memory = malloc(count * each);

	if (!memory)
		return NULL;
	room->found = (struct qms_lookup_entry *)(void *)memory;
	room->entries = (Qmla__V1__LookupEntry *)(void *)(room->found + count);
	room->pointers = (Qmla__V1__LookupEntry **)(void *)(room->entries + count);
	return memory;
}

static void fill_entries(const struct lookup_room *room, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const struct qms_lookup_entry *found = &room->found[i];
		Qmla__V1__LookupEntry *entry = &room->entries[i];

		qmla__v1__lookup_entry__init(entry);
		entry->code = qmp_code_from_status(found->status);
		entry->offset = found->offset;
		entry->length = found->length;
		entry->generation = found->generation;
		entry->digest = found->digest;
		room->pointers[i] = entry;
	}
}

static qmla_status_t refuse_lookup(struct qmp_call *call, qmla_status_t status)
{
	if (status == QMLA_ERR_NOT_FOUND)
		return qms_refuse(call, status,
				  "no pool is open for this identity: call Connect first");
	return qms_refuse(call, status, "the node's table of leases is full: try again later");
}

static qmla_status_t lookup(struct qms_service *service, struct qmp_call *call,
			    const Qmla__V1__LookupRequest *request,
			    const struct qms_identity *identity, const struct qms_key *keys)
{
	Qmla__V1__LookupResponse response = QMLA__V1__LOOKUP_RESPONSE__INIT;
	size_t count = request->n_keys;
	struct lookup_room room;
	struct qms_grant grant;
	void *memory = lookup_room_take(count, &room);
	qmla_status_t status;

	if (!memory)
		return qms_refuse(call, QMLA_ERR_NO_MEMORY, "the node is out of memory");
	status = qms_store_lookup(service->store, identity, keys, count,
				  qms_ns_from_ms(request->lease_ms), request->stop_at_hole,
				  room.found, &grant);
	if (status != QMLA_OK) {
		free(memory);
		return refuse_lookup(call, status);
	}
	fill_entries(&room, count);
	response.incarnation = service->incarnation;
	response.lease = grant.lease;
	if (grant.lease) {
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

qmla_status_t qms_serve_lookup(struct qms_service *service, struct qmp_call *call,
			       const ProtobufCMessage *message)
{
	const Qmla__V1__LookupRequest *request = (const Qmla__V1__LookupRequest *)message;
	struct qms_identity identity;
	struct qms_key *keys;
	qmla_status_t status;

	status = qms_request_identity(call, &request->identity, &identity);
	if (status == QMLA_OK)
		status = qms_request_keys(service, call, request->n_keys, request->keys, &keys);
	if (status != QMLA_OK)
		return status;
	if (request->lease_ms > 0 && qms_service_draining(service))
		status = qms_refuse(call, QMLA_ERR_DRAINING,
				    "the node is draining and grants no new lease");
	else
		status = lookup(service, call, request, &identity, keys);
	free(keys);
	return status;
}

/* While draining no lease outlives the drain. */
static int64_t renewable(const struct qms_service *service, uint32_t lease_ms)
{
	int64_t wanted = qms_ns_from_ms(lease_ms);
	int64_t left;

	if (!qms_service_draining(service))
		return wanted;
	left = qmc_clock_left(atomic_load_explicit(&service->drain_deadline, memory_order_relaxed));
	if (left == 0)
		left = 1;
	return wanted > 0 && wanted < left ? wanted : left;
}

qmla_status_t qms_serve_renew(struct qms_service *service, struct qmp_call *call,
			      const ProtobufCMessage *message)
{
	const Qmla__V1__RenewRequest *request = (const Qmla__V1__RenewRequest *)message;
	Qmla__V1__RenewResponse response = QMLA__V1__RENEW_RESPONSE__INIT;
	Qmla__V1__Code *codes;
	qmla_status_t status;

	status = qms_request_codes(service, call, request->incarnation, "leases", request->n_leases,
				   &codes);
	if (status != QMLA_OK)
		return status;
	for (size_t i = 0; i < request->n_leases; i++) {
		int64_t granted = 0;

		status = qms_store_renew(service->store, request->leases[i],
					 renewable(service, request->lease_ms), &granted);
		codes[i] = qmp_code_from_status(status);
		if (status == QMLA_OK)
			response.lease_ms = qms_ms_from_ns(granted);
	}
	response.codes = codes;
	response.n_codes = request->n_leases;
	qmp_call_reply(call, &response.base);
	free(codes);
	return QMLA_OK;
}

qmla_status_t qms_serve_release(struct qms_service *service, struct qmp_call *call,
				const ProtobufCMessage *message)
{
	const Qmla__V1__ReleaseRequest *request = (const Qmla__V1__ReleaseRequest *)message;
	Qmla__V1__ReleaseResponse response = QMLA__V1__RELEASE_RESPONSE__INIT;
	Qmla__V1__Code *codes;
	qmla_status_t status;

	status = qms_request_codes(service, call, request->incarnation, "leases", request->n_leases,
				   &codes);
	if (status != QMLA_OK)
		return status;
	for (size_t i = 0; i < request->n_leases; i++)
		codes[i] =
			qmp_code_from_status(qms_store_release(service->store, request->leases[i]));
	response.codes = codes;
	response.n_codes = request->n_leases;
	qmp_call_reply(call, &response.base);
	free(codes);
	return QMLA_OK;
}
