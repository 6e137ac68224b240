/* SPDX-License-Identifier: Apache-2.0 */
/* What a handler does with a call, and the call's end. */
#include "proto/rpc_call.h"

#include <grpc/slice.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "proto/rpc_buffer.h"
#include "proto/rpc_runtime.h"
#include "proto/rpc_server_private.h"

/* How long the status of a finished stream waits behind a message that the client does not read. */
#define LINGER_NS (5 * QMC_NS_PER_S)

static void call_unlink(struct qmp_call *call)
{
	struct qmp_server *server = call->server;

	pthread_mutex_lock(&server->lock);
	if (call->previous)
		call->previous->next = call->next;
	else
		server->calls = call->next;
	if (call->next)
		call->next->previous = call->previous;
	pthread_mutex_unlock(&server->lock);
}

static void call_destroy(struct qmp_call *call)
{
	struct qmp_server *server = call->server;

	/* First out of the list: the server's tick may be looking at it. */
	call_unlink(call);
	if (call->handle)
		grpc_call_unref(call->handle);
	grpc_metadata_array_destroy(&call->metadata);
	grpc_call_details_destroy(&call->details);
	grpc_slice_unref(call->detail);
	if (call->payload)
		grpc_byte_buffer_destroy(call->payload);
	if (call->outgoing)
		grpc_byte_buffer_destroy(call->outgoing);
	pthread_cond_destroy(&call->changed);
	pthread_mutex_destroy(&call->lock);
	free(call);

	pthread_mutex_lock(&server->lock);
	/* The server may be gone as soon as it sees zero. */
	if (--server->live == 0)
		pthread_cond_broadcast(&server->changed);
	pthread_mutex_unlock(&server->lock);
}

static void call_get(struct qmp_call *call)
{
	atomic_fetch_add_explicit(&call->references, 1, memory_order_relaxed);
}

void qmp_call_put(struct qmp_call *call)
{
	/* Acquire-release: the last one sees what all the others did to the call. */
	if (atomic_fetch_sub_explicit(&call->references, 1, memory_order_acq_rel) == 1)
		call_destroy(call);
}

static void call_on_ended(struct qmp_tag *tag, bool ok)
{
	(void)ok; /* not ok: the client is gone, there is nobody to tell */
	qmp_call_put(CALL_OF(tag, ended));
}

/* Sends the last batch. The lock is held, nothing is on its way. */
static void call_send_status(struct qmp_call *call)
{
	grpc_op ops[3] = {0};
	size_t count = 0;

	if (!call->started)
		ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
	call->started = true;
	if (call->outgoing) {
		ops[count].op = GRPC_OP_SEND_MESSAGE;
		ops[count++].data.send_message.send_message = call->outgoing;
	}
	ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
	ops[count].data.send_status_from_server.status = qmp_grpc_code_from_status(call->status);
	ops[count].data.send_status_from_server.status_details = &call->detail;
	if (call->status != QMLA_OK) {
		snprintf(call->status_text, sizeof(call->status_text), "%d", (int)call->status);
		call->trailer.key = grpc_slice_from_static_string(QMP_STATUS_KEY);
		call->trailer.value = grpc_slice_from_static_string(call->status_text);
		ops[count].data.send_status_from_server.trailing_metadata_count = 1;
		ops[count].data.send_status_from_server.trailing_metadata = &call->trailer;
	}
	count++;
	call->ended.done = call_on_ended;
	call_get(call);
	if (!qmp_batch_start(call->handle, ops, count, &call->ended))
		qmp_call_put(call);
}

/* Ends the call once; takes over @p message and @p detail and the handler's reference. */
static void call_end(struct qmp_call *call, qmla_status_t status, grpc_byte_buffer *message,
		     grpc_slice detail)
{
	pthread_mutex_lock(&call->lock);
	if (call->ending) {
		pthread_mutex_unlock(&call->lock);
		qmc_error("rpc", "%s was ended twice (a defect, please report)",
			  call->binding->method ? call->binding->method->path : "a call");
		grpc_slice_unref(detail);
		if (message)
			grpc_byte_buffer_destroy(message);
		return;
	}
	call->ending = true;
	call->status = status;
	call->detail = detail;
	if (call->sending) {
		call->give_up = qmc_clock_after(LINGER_NS);
	} else {
		call->outgoing = message;
		call_send_status(call);
	}
	pthread_mutex_unlock(&call->lock);
	/* A message still on its way holds a reference of its own. */
	qmp_call_put(call);
}

static void call_on_sent(struct qmp_tag *tag, bool ok)
{
	struct qmp_call *call = CALL_OF(tag, sent);
	bool ending;

	pthread_mutex_lock(&call->lock);
	grpc_byte_buffer_destroy(call->outgoing);
	call->outgoing = NULL;
	call->sending = false;
	call->broken |= !ok;
	ending = call->ending;
	if (ending)
		call_send_status(call);
	pthread_cond_broadcast(&call->changed);
	pthread_mutex_unlock(&call->lock);
	if (call->hooks && !ending)
		call->hooks->sent(call->hooks->object, call, ok);
	qmp_call_put(call);
}

/* The lock is held and nothing is on its way; takes over @p message. */
static void call_send_message(struct qmp_call *call, grpc_byte_buffer *message)
{
	grpc_op ops[2] = {0};
	size_t count = 0;

	if (!call->started)
		ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
	call->started = true;
	ops[count].op = GRPC_OP_SEND_MESSAGE;
	ops[count].flags = GRPC_WRITE_NO_COMPRESS;
	ops[count++].data.send_message.send_message = message;
	call->outgoing = message;
	call->sending = true;
	call->sent.done = call_on_sent;
	call_get(call);
	if (!qmp_batch_start(call->handle, ops, count, &call->sent)) {
		call->sending = false;
		call->broken = true;
		qmp_call_put(call); /* never the last: the caller's is left */
	}
}

qmla_status_t qmp_call_send(struct qmp_call *call, const ProtobufCMessage *message,
			    qmc_time_t deadline)
{
	grpc_byte_buffer *buffer;
	qmla_status_t status = qmp_buffer_pack(message, &buffer);
	bool in_time = true;

	if (status != QMLA_OK)
		return status;
	pthread_mutex_lock(&call->lock);
	while (call->sending && !call->broken && !qmp_call_cancelled(call) && in_time)
		in_time = qmp_condition_wait(&call->changed, &call->lock, deadline);
	if (call->broken || qmp_call_cancelled(call)) {
		status = QMLA_ERR_CANCELLED;
	} else if (call->sending) {
		status = QMLA_ERR_DEADLINE;
	} else {
		call_send_message(call, buffer);
		buffer = NULL;
	}
	pthread_mutex_unlock(&call->lock);
	if (buffer)
		grpc_byte_buffer_destroy(buffer);
	return status;
}

qmla_status_t qmp_call_send_now(struct qmp_call *call, const ProtobufCMessage *message)
{
	return qmp_call_send(call, message, qmc_clock_now());
}

void qmp_call_reply(struct qmp_call *call, const ProtobufCMessage *response)
{
	grpc_byte_buffer *buffer;

	if (call->binding->method->kind != QMP_UNARY)
		qmp_call_fail(call, QMLA_ERR_INTERNAL, "a stream was answered like a unary call");
	else if (qmp_buffer_pack(response, &buffer) != QMLA_OK)
		qmp_call_fail(call, QMLA_ERR_NO_MEMORY, "no memory for the answer");
	else
		call_end(call, QMLA_OK, buffer, grpc_empty_slice());
}

void qmp_call_fail(struct qmp_call *call, qmla_status_t status, const char *detail, ...)
{
	char text[QMP_DETAIL_MAX];
	va_list arguments;

	va_start(arguments, detail);
	vsnprintf(text, sizeof(text), detail, arguments);
	va_end(arguments);
	/* A failure without a reason would reach the client as success. */
	if (status == QMLA_OK)
		status = QMLA_ERR_INTERNAL;
	call_end(call, status, NULL, grpc_slice_from_copied_string(text));
}

void qmp_call_finish(struct qmp_call *call)
{
	if (call->binding->method->kind != QMP_SERVER_STREAM)
		qmp_call_fail(call, QMLA_ERR_INTERNAL, "a unary call ended without an answer");
	else
		call_end(call, QMLA_OK, NULL, grpc_empty_slice());
}

void qmp_call_expire(struct qmp_call *call)
{
	pthread_mutex_lock(&call->lock);
	if (call->ending && call->sending && qmc_clock_left(call->give_up) == 0) {
		qmc_warn_limited("rpc", "%s to %s: cancelled, the client does not read",
				 call->binding->method->path, call->peer);
		grpc_call_cancel_with_status(call->handle, GRPC_STATUS_CANCELLED,
					     "the client does not read", NULL);
		call->give_up = QMC_TIME_NEVER;
	}
	pthread_mutex_unlock(&call->lock);
}

bool qmp_call_cancelled(const struct qmp_call *call)
{
	/* Acquire pairs with the release in call_on_closed. */
	return atomic_load_explicit(&call->cancelled, memory_order_acquire);
}

bool qmp_call_draining(const struct qmp_call *call)
{
	/* Acquire pairs with the release in qmp_server_destroy. */
	return atomic_load_explicit(&call->server->draining, memory_order_acquire);
}

qmc_time_t qmp_call_deadline(const struct qmp_call *call)
{
	return qmp_time_from_timespec(call->deadline);
}

const char *qmp_call_peer(const struct qmp_call *call)
{
	return call->peer;
}
