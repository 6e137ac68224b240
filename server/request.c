/* SPDX-License-Identifier: Apache-2.0 */
/* Checking what a request says before anything is done with it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/service_internal.h"

qmla_status_t qms_refuse(struct qmp_call *call, qmla_status_t status, const char *format, ...)
{
	char text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	qmp_call_fail(call, status, "%s", text);
	return status;
}

qmla_status_t qms_request_identity(struct qmp_call *call, const ProtobufCBinaryData *bytes,
				   struct qms_identity *identity)
{
	if (bytes->len != sizeof(identity->bytes))
		return qms_refuse(call, QMLA_ERR_INVALID_ARGUMENT,
				  "identity has %zu bytes, expected %d", bytes->len,
				  QMS_IDENTITY_BYTES);
	memcpy(identity->bytes, bytes->data, sizeof(identity->bytes));
	return QMLA_OK;
}

qmla_status_t qms_request_count(struct qms_service *service, struct qmp_call *call,
				const char *field, size_t count)
{
	if (count == 0)
		return qms_refuse(call, QMLA_ERR_INVALID_ARGUMENT, "%s is empty", field);
	if (count > service->max_batch_keys)
		return qms_refuse(call, QMLA_ERR_TOO_LARGE,
				  "%s has %zu entries, at most %u are allowed: send several calls",
				  field, count, service->max_batch_keys);
	return QMLA_OK;
}

qmla_status_t qms_request_keys(struct qms_service *service, struct qmp_call *call, size_t count,
			       const ProtobufCBinaryData *bytes, struct qms_key **keys)
{
	qmla_status_t status = qms_request_count(service, call, "keys", count);
	struct qms_key *copied;

	if (status != QMLA_OK)
		return status;
	for (size_t i = 0; i < count; i++) {
		if (bytes[i].len != QMS_KEY_BYTES)
			return qms_refuse(call, QMLA_ERR_INVALID_ARGUMENT,
					  "keys[%zu] has %zu bytes, expected %d", i, bytes[i].len,
					  QMS_KEY_BYTES);
	}
	copied = malloc(count * sizeof(*copied));
	if (!copied)
		return qms_refuse(call, QMLA_ERR_NO_MEMORY, "the node is out of memory");
	for (size_t i = 0; i < count; i++)
		memcpy(copied[i].bytes, bytes[i].data, QMS_KEY_BYTES);
	*keys = copied;
	return QMLA_OK;
}

qmla_status_t qms_request_incarnation(struct qms_service *service, struct qmp_call *call,
				      uint64_t incarnation)
{
	if (incarnation != service->incarnation)
		return qms_refuse(call, QMLA_ERR_PEER_RESTARTED,
				  "the handles belong to incarnation %016llx, this is %016llx: "
				  "connect again",
				  (unsigned long long)incarnation,
				  (unsigned long long)service->incarnation);
	return QMLA_OK;
}

int64_t qms_ns_from_ms(uint32_t ms)
{
	return (int64_t)ms * QMC_NS_PER_MS;
}

uint32_t qms_ms_from_ns(int64_t ns)
{
	int64_t ms = ns / QMC_NS_PER_MS;

	if (ms == 0 && ns > 0)
		return 1;
	return ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
}

static void fill_layout(const struct qms_layout *layout, Qmla__V1__Layout *message)
{
	qmla__v1__layout__init(message);
	message->format = layout->format;
	message->layers = layout->layers;
	message->content_dim = layout->content_dim;
	message->rope_dim = layout->rope_dim;
	message->page_tokens = layout->page_tokens;
	message->version = layout->version;
	message->fingerprint = layout->fingerprint;
}

void qms_pool_messages_fill(struct qms_service *service, struct qms_pool_messages *messages)
{
	messages->count = QMS_MAX_IDENTITIES;
	qms_store_pools(service->store, messages->infos, &messages->count);
	for (size_t i = 0; i < messages->count; i++) {
		struct qms_pool_info *info = &messages->infos[i];
		Qmla__V1__PoolInfo *pool = &messages->pools[i];

		qmla__v1__pool_info__init(pool);
		fill_layout(&info->layout, &messages->layouts[i]);
		pool->identity.data = info->identity.bytes;
		pool->identity.len = sizeof(info->identity.bytes);
		pool->layout = &messages->layouts[i];
		pool->slots = info->slots;
		pool->used_slots = info->used_slots;
		pool->slot_bytes = info->slot_bytes;
		messages->pointers[i] = pool;
	}
}

qmla_status_t qms_request_codes(struct qms_service *service, struct qmp_call *call,
				uint64_t incarnation, const char *what, size_t count,
				Qmla__V1__Code **codes)
{
	qmla_status_t status = qms_request_incarnation(service, call, incarnation);
	Qmla__V1__Code *room;

	if (status == QMLA_OK)
		status = qms_request_count(service, call, what, count);
	if (status != QMLA_OK)
		return status;
	room = calloc(count, sizeof(*room));
	if (!room)
		return qms_refuse(call, QMLA_ERR_NO_MEMORY, "the node is out of memory");
	*codes = room;
	return QMLA_OK;
}
