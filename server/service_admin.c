/* SPDX-License-Identifier: Apache-2.0 */
/* Remove, Report, Pin and Unpin. */
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "common/log.h"
#include "server/service_internal.h"

/* Codes of a call over keys; freed by the caller. */
static qmla_status_t codes_take(struct qmp_call *call, size_t count, Qmla__V1__Code **codes)
{
	*codes = calloc(count ? count : 1, sizeof(**codes));
	if (!*codes)
		return qms_refuse(call, QMLA_ERR_NO_MEMORY, "the node is out of memory");
	return QMLA_OK;
}

static qmla_status_t remove_all(struct qms_service *service, struct qmp_call *call,
				const Qmla__V1__RemoveRequest *request,
				const struct qms_identity *identity)
{
	Qmla__V1__RemoveResponse response = QMLA__V1__REMOVE_RESPONSE__INIT;
	uint64_t busy;

	if (request->n_keys > 0)
		return qms_refuse(call, QMLA_ERR_INVALID_ARGUMENT,
				  "keys must be empty when all is set");
	qms_store_remove_all(service->store, identity, &response.removed, &busy);
	qmp_call_reply(call, &response.base);
	return QMLA_OK;
}

static qmla_status_t remove_keys(struct qms_service *service, struct qmp_call *call,
				 const Qmla__V1__RemoveRequest *request,
				 const struct qms_identity *identity)
{
	Qmla__V1__RemoveResponse response = QMLA__V1__REMOVE_RESPONSE__INIT;
	struct qms_key *keys;
	qmla_status_t status;

	status = qms_request_keys(service, call, request->n_keys, request->keys, &keys);
	if (status != QMLA_OK)
		return status;
	status = codes_take(call, request->n_keys, &response.codes);
	if (status != QMLA_OK)
		goto err_free;
	response.n_codes = request->n_keys;
	for (size_t i = 0; i < request->n_keys; i++) {
		qmla_status_t one = qms_store_remove(service->store, identity, &keys[i]);

		response.codes[i] = qmp_code_from_status(one);
		response.removed += one == QMLA_OK;
	}
	qmp_call_reply(call, &response.base);
	free(response.codes);
err_free:
	free(keys);
	return status;
}

qmla_status_t qms_serve_remove(struct qms_service *service, struct qmp_call *call,
			       const ProtobufCMessage *message)
{
	const Qmla__V1__RemoveRequest *request = (const Qmla__V1__RemoveRequest *)message;
	struct qms_identity identity;
	qmla_status_t status = qms_request_identity(call, &request->identity, &identity);

	if (status != QMLA_OK)
		return status;
	return request->all ? remove_all(service, call, request, &identity)
			    : remove_keys(service, call, request, &identity);
}

static qmla_status_t report_one(struct qms_service *service, const struct qms_identity *identity,
				const Qmla__V1__ReportItem *item, const char *peer)
{
	struct qms_key key;
	char hex[2 * QMS_KEY_BYTES + 1];
	qmla_status_t status;

	if (item->key.len != sizeof(key.bytes))
		return QMLA_ERR_INVALID_ARGUMENT;
	if (item->reason != QMLA__V1__CODE__CODE_CORRUPT &&
	    item->reason != QMLA__V1__CODE__CODE_STALE)
		return QMLA_ERR_INVALID_ARGUMENT;
	memcpy(key.bytes, item->key.data, sizeof(key.bytes));
	status = qms_store_report(service->store, identity, &key, item->generation);
	if (status == QMLA_OK) {
		qmc_hex_encode(key.bytes, sizeof(key.bytes), hex);
		qmc_warn_limited("node", "block %s dropped: %s found it %s", hex, peer,
				 qmla_status_name(qmp_status_from_code(item->reason)));
	}
	return status;
}

qmla_status_t qms_serve_report(struct qms_service *service, struct qmp_call *call,
			       const ProtobufCMessage *message)
{
	const Qmla__V1__ReportRequest *request = (const Qmla__V1__ReportRequest *)message;
	Qmla__V1__ReportResponse response = QMLA__V1__REPORT_RESPONSE__INIT;
	struct qms_identity identity;
	qmla_status_t status;

	status = qms_request_identity(call, &request->identity, &identity);
	if (status == QMLA_OK)
		status = qms_request_incarnation(service, call, request->incarnation);
	if (status == QMLA_OK)
		status = qms_request_count(service, call, "items", request->n_items);
	if (status == QMLA_OK)
		status = codes_take(call, request->n_items, &response.codes);
	if (status != QMLA_OK)
		return status;
	response.n_codes = request->n_items;
	for (size_t i = 0; i < request->n_items; i++)
		response.codes[i] = qmp_code_from_status(
			report_one(service, &identity, request->items[i], qmp_call_peer(call)));
	qmp_call_reply(call, &response.base);
	free(response.codes);
	return QMLA_OK;
}

static qmla_status_t check_owner(struct qmp_call *call, const char *owner)
{
	size_t length = strnlen(owner, QMS_OWNER_MAX);

	if (length == 0)
		return qms_refuse(call, QMLA_ERR_INVALID_ARGUMENT,
				  "owner is empty: name who holds the pin");
	if (length == QMS_OWNER_MAX)
		return qms_refuse(call, QMLA_ERR_TOO_LARGE, "owner is longer than %d bytes",
				  QMS_OWNER_MAX - 1);
	return QMLA_OK;
}

/* What Pin and Unpin share: everything read and checked, codes ready. */
struct pin_work {
	struct qms_identity identity;
	struct qms_key *keys;
	Qmla__V1__Code *codes;
};

static qmla_status_t pin_work_open(struct qms_service *service, struct qmp_call *call,
				   const ProtobufCBinaryData *identity, size_t count,
				   const ProtobufCBinaryData *keys, const char *owner,
				   struct pin_work *work)
{
	qmla_status_t status = qms_request_identity(call, identity, &work->identity);

	if (status == QMLA_OK)
		status = check_owner(call, owner);
	if (status == QMLA_OK)
		status = qms_request_keys(service, call, count, keys, &work->keys);
	if (status != QMLA_OK)
		return status;
	status = codes_take(call, count, &work->codes);
	if (status != QMLA_OK)
		free(work->keys);
	return status;
}

static void pin_work_close(struct pin_work *work)
{
	free(work->codes);
	free(work->keys);
}

qmla_status_t qms_serve_pin(struct qms_service *service, struct qmp_call *call,
			    const ProtobufCMessage *message)
{
	const Qmla__V1__PinRequest *request = (const Qmla__V1__PinRequest *)message;
	Qmla__V1__PinResponse response = QMLA__V1__PIN_RESPONSE__INIT;
	struct pin_work work;
	qmla_status_t status = pin_work_open(service, call, &request->identity, request->n_keys,
					     request->keys, request->owner, &work);

	if (status != QMLA_OK)
		return status;
	for (size_t i = 0; i < request->n_keys; i++)
		work.codes[i] = qmp_code_from_status(
			qms_store_pin(service->store, &work.identity, &work.keys[i], request->owner,
				      qms_ns_from_ms(request->ttl_ms)));
	response.codes = work.codes;
	response.n_codes = request->n_keys;
	qmp_call_reply(call, &response.base);
	pin_work_close(&work);
	return QMLA_OK;
}

qmla_status_t qms_serve_unpin(struct qms_service *service, struct qmp_call *call,
			      const ProtobufCMessage *message)
{
	const Qmla__V1__UnpinRequest *request = (const Qmla__V1__UnpinRequest *)message;
	Qmla__V1__UnpinResponse response = QMLA__V1__UNPIN_RESPONSE__INIT;
	struct pin_work work;
	qmla_status_t status = pin_work_open(service, call, &request->identity, request->n_keys,
					     request->keys, request->owner, &work);

	if (status != QMLA_OK)
		return status;
	for (size_t i = 0; i < request->n_keys; i++)
		work.codes[i] = qmp_code_from_status(qms_store_unpin(
			service->store, &work.identity, &work.keys[i], request->owner));
	response.codes = work.codes;
	response.n_codes = request->n_keys;
	qmp_call_reply(call, &response.base);
	pin_work_close(&work);
	return QMLA_OK;
}
