/* SPDX-License-Identifier: Apache-2.0 */
/* Watch: the checks; watch_streams.c serves the stream. */
#include "server/service_internal.h"

qmla_status_t qms_serve_watch(struct qms_service *service, struct qmp_call *call,
			      const ProtobufCMessage *message)
{
	const Qmla__V1__WatchRequest *request = (const Qmla__V1__WatchRequest *)message;
	struct qms_identity identity;
	qmla_status_t status;

	if (request->identity.len == 0)
		return qms_watch_streams_open(service->streams, call, NULL, request->snapshot);
	status = qms_request_identity(call, &request->identity, &identity);
	if (status != QMLA_OK)
		return status;
	return qms_watch_streams_open(service->streams, call, &identity, request->snapshot);
}
