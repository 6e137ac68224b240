/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_raw.h"

#include <stdlib.h>

#include "kernels/layout.h"
#include "qmla/v1/cache.pb-c.h"

#define CALL_NS (5 * QMC_NS_PER_S)

static ProtobufCBinaryData binary(const void *data, size_t bytes)
{
	return (ProtobufCBinaryData){.len = bytes, .data = (uint8_t *)(uintptr_t)data};
}

qmla_status_t raw_connect(struct qmp_channel *channel, const qmla_identity_t *identity,
			  const qmla_layout_t *layout)
{
	Qmla__V1__ConnectRequest request;
	Qmla__V1__Layout wire;
	ProtobufCMessage *response;
	struct qmk_layout bytes;
	qmla_status_t status = qmk_layout_init((enum qmk_format)layout->format, layout->layers,
					       layout->content_dim, layout->rope_dim, &bytes);

	if (status != QMLA_OK)
		return status;
	qmla__v1__connect_request__init(&request);
	qmla__v1__layout__init(&wire);
	wire.format = (uint32_t)layout->format;
	wire.layers = layout->layers;
	wire.content_dim = layout->content_dim;
	wire.rope_dim = layout->rope_dim;
	wire.page_tokens = QMK_PAGE_TOKENS;
	wire.version = QMK_FORMAT_VERSION;
	wire.fingerprint = qmk_layout_fingerprint(&bytes);
	request.identity = binary(identity->bytes, sizeof(identity->bytes));
	request.layout = &wire;
	status = qmp_channel_call(channel, "/qmla.v1.Cache/Connect", &request.base,
				  &qmla__v1__connect_response__descriptor, qmc_clock_after(CALL_NS),
				  &response, NULL);
	if (status == QMLA_OK)
		qmp_message_free(response);
	return status;
}

static ProtobufCBinaryData *point_keys(const qmla_key_t *keys, size_t count)
{
	ProtobufCBinaryData *list = calloc(count, sizeof(*list));

	for (size_t i = 0; list && i < count; i++)
		list[i] = binary(keys[i].bytes, sizeof(keys[i].bytes));
	return list;
}

qmla_status_t raw_reserve(struct qmp_channel *channel, const qmla_identity_t *identity,
			  const qmla_key_t *keys, size_t count, uint32_t lease_ms, size_t *granted)
{
	Qmla__V1__ReserveRequest request;
	ProtobufCMessage *message;
	qmla_status_t status;

	qmla__v1__reserve_request__init(&request);
	request.identity = binary(identity->bytes, sizeof(identity->bytes));
	request.keys = point_keys(keys, count);
	request.n_keys = count;
	request.lease_ms = lease_ms;
	status = qmp_channel_call(channel, "/qmla.v1.Cache/Reserve", &request.base,
				  &qmla__v1__reserve_response__descriptor, qmc_clock_after(CALL_NS),
				  &message, NULL);
	free(request.keys);
	if (status != QMLA_OK)
		return status;
	*granted = 0;
	for (size_t i = 0; i < ((Qmla__V1__ReserveResponse *)message)->n_entries; i++)
		*granted += ((Qmla__V1__ReserveResponse *)message)->entries[i]->code ==
			    QMLA__V1__CODE__CODE_OK;
	qmp_message_free(message);
	return QMLA_OK;
}

qmla_status_t raw_lease(struct qmp_channel *channel, const qmla_identity_t *identity,
			const qmla_key_t *keys, size_t count, uint32_t lease_ms, uint64_t *lease,
			uint64_t *incarnation)
{
	Qmla__V1__LookupRequest request;
	ProtobufCMessage *message;
	qmla_status_t status;

	qmla__v1__lookup_request__init(&request);
	request.identity = binary(identity->bytes, sizeof(identity->bytes));
	request.keys = point_keys(keys, count);
	request.n_keys = count;
	request.lease_ms = lease_ms;
	status = qmp_channel_call(channel, "/qmla.v1.Cache/Lookup", &request.base,
				  &qmla__v1__lookup_response__descriptor, qmc_clock_after(CALL_NS),
				  &message, NULL);
	free(request.keys);
	if (status != QMLA_OK)
		return status;
	*lease = ((Qmla__V1__LookupResponse *)message)->lease;
	*incarnation = ((Qmla__V1__LookupResponse *)message)->incarnation;
	qmp_message_free(message);
	return QMLA_OK;
}

qmla_status_t raw_release(struct qmp_channel *channel, uint64_t lease, uint64_t incarnation)
{
	Qmla__V1__ReleaseRequest request;
	ProtobufCMessage *message;
	qmla_status_t status;

	qmla__v1__release_request__init(&request);
	request.incarnation = incarnation;
	request.leases = &lease;
	request.n_leases = 1;
	status = qmp_channel_call(channel, "/qmla.v1.Cache/Release", &request.base,
				  &qmla__v1__release_response__descriptor, qmc_clock_after(CALL_NS),
				  &message, NULL);
	if (status == QMLA_OK)
		qmp_message_free(message);
	return status;
}
