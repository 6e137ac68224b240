/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "proto/message.h"
#include "proto/rpc_client_call.h"
#include "proto/rpc_runtime.h"

#include "grpc/health/v1/health.pb-c.h"

struct qmp_pending {
	struct qmp_client_call call;
	struct qmp_tag finished;
	grpc_byte_buffer *response;
};

static bool pending_begin(struct qmp_pending *pending)
{
	struct qmp_client_call *call = &pending->call;
	grpc_op ops[6] = {0};

	ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
	/* The second time the channel is still sure that the peer cannot be reached. */
	ops[0].flags = call->again ? GRPC_INITIAL_METADATA_WAIT_FOR_READY : 0;
	ops[1].op = GRPC_OP_SEND_MESSAGE;
	ops[1].flags = GRPC_WRITE_NO_COMPRESS;
	ops[1].data.send_message.send_message = call->request;
	ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
	ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
	ops[3].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
	ops[4].op = GRPC_OP_RECV_MESSAGE;
	ops[4].data.recv_message.recv_message = &pending->response;
	ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
	ops[5].data.recv_status_on_client.trailing_metadata = &call->trailing;
	ops[5].data.recv_status_on_client.status = &call->code;
	ops[5].data.recv_status_on_client.status_details = &call->details;
	return qmp_client_call_begin(call, ops, 6, &pending->finished);
}

static void pending_on_finished(struct qmp_tag *tag, bool ok)
{
	struct qmp_pending *pending =
		(struct qmp_pending *)(void *)((char *)tag -
					       offsetof(struct qmp_pending, finished));

	(void)ok; /* always true: the batch receives the status */
	if (qmp_client_call_again(&pending->call)) {
		(void)pending_begin(pending); /* a refusal counts the tag as back */
		return;
	}
	qmp_client_call_tag_back(&pending->call);
}

static void pending_destroy(struct qmp_pending *pending)
{
	if (pending->response)
		grpc_byte_buffer_destroy(pending->response);
	qmp_client_call_fini(&pending->call);
	free(pending);
}

qmla_status_t qmp_channel_start(struct qmp_channel *channel, const char *path,
				const ProtobufCMessage *request,
				const ProtobufCMessageDescriptor *response_type,
				qmc_time_t deadline, struct qmp_pending **pending)
{
	struct qmp_pending *p = calloc(1, sizeof(*p));
	qmla_status_t status;

	if (!p)
		return QMLA_ERR_NO_MEMORY;
	p->finished.done = pending_on_finished;
	status = qmp_client_call_init(&p->call, channel, path, request, response_type, deadline, 1);
	if (status != QMLA_OK) {
		free(p);
		return status;
	}
	if (!pending_begin(p)) {
		pending_destroy(p);
		return QMLA_ERR_INTERNAL;
	}
	*pending = p;
	return QMLA_OK;
}

bool qmp_pending_done(const struct qmp_pending *pending)
{
	struct qmp_client_call *call = (struct qmp_client_call *)(uintptr_t)&pending->call;
	bool done;

	pthread_mutex_lock(&call->lock);
	done = call->outstanding == 0;
	pthread_mutex_unlock(&call->lock);
	return done;
}

void qmp_pending_cancel(struct qmp_pending *pending)
{
	qmp_client_call_cancel(&pending->call);
}

qmla_status_t qmp_pending_wait(struct qmp_pending *pending, ProtobufCMessage **response,
			       struct qmp_error *error)
{
	struct qmp_client_call *call = &pending->call;
	ProtobufCMessage *message;
	qmla_status_t status;

	pthread_mutex_lock(&call->lock);
	while (call->outstanding)
		pthread_cond_wait(&call->changed, &call->lock);
	pthread_mutex_unlock(&call->lock);
	status = qmp_client_call_status(call, error);
	if (status == QMLA_OK)
		status = qmp_client_call_unpack(call, pending->response, &message, error);
	if (status == QMLA_OK)
		*response = message;
	pending_destroy(pending);
	return status;
}

qmla_status_t qmp_channel_call(struct qmp_channel *channel, const char *path,
			       const ProtobufCMessage *request,
			       const ProtobufCMessageDescriptor *response_type, qmc_time_t deadline,
			       ProtobufCMessage **response, struct qmp_error *error)
{
	struct qmp_pending *pending;
	qmla_status_t status;

	status = qmp_channel_start(channel, path, request, response_type, deadline, &pending);
	if (status != QMLA_OK) {
		qmp_error_set(error, "the call could not be started: %s", qmla_status_text(status));
		return status;
	}
	return qmp_pending_wait(pending, response, error);
}

qmla_status_t qmp_health_check(struct qmp_channel *channel, const char *service,
			       qmc_time_t deadline)
{
	Grpc__Health__V1__HealthCheckRequest request;
	ProtobufCMessage *response;
	qmla_status_t status;

	grpc__health__v1__health_check_request__init(&request);
	request.service = (char *)(uintptr_t)service;
	status = qmp_channel_call(channel, "/grpc.health.v1.Health/Check", &request.base,
				  &grpc__health__v1__health_check_response__descriptor, deadline,
				  &response, NULL);
	if (status != QMLA_OK)
		return status;
	if (((Grpc__Health__V1__HealthCheckResponse *)response)->status !=
	    GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING)
		status = QMLA_ERR_UNAVAILABLE;
	qmp_message_free(response);
	return status;
}
