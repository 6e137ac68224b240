/* SPDX-License-Identifier: Apache-2.0 */
/* From an armed request to the handler. */
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "proto/message.h"
#include "proto/rpc_buffer.h"
#include "proto/rpc_runtime.h"
#include "proto/rpc_server_private.h"

/* "ipv6:%5B::1%5D:4000" becomes "[::1]:4000". */
static void peer_copy(struct qmp_call *call)
{
	char *peer = grpc_call_get_peer(call->handle);
	const char *from = peer;
	size_t length = 0;

	if (!strncmp(peer, "ipv4:", 5) || !strncmp(peer, "ipv6:", 5))
		from += 5;
	while (*from && length + 1 < sizeof(call->peer)) {
		if (!strncmp(from, "%5B", 3) || !strncmp(from, "%5D", 3)) {
			call->peer[length++] = from[2] == 'B' ? '[' : ']';
			from += 3;
		} else {
			call->peer[length++] = *from++;
		}
	}
	call->peer[length] = '\0';
	gpr_free(peer);
}

static void call_refuse_payload(struct qmp_call *call, qmla_status_t status)
{
	const char *name = call->binding->method->request->name;

	qmc_warn_limited("rpc", "%s from %s: request refused: %s", call->binding->method->path,
			 call->peer, qmla_status_name(status));
	if (status == QMLA_ERR_TOO_LARGE)
		qmp_call_fail(call, status,
			      "the %s takes more than %u bytes of memory: send it in smaller parts",
			      name, call->server->max_unpack_bytes);
	else if (status == QMLA_ERR_FORMAT)
		qmp_call_fail(call, status, "the payload is missing or is no valid %s", name);
	else
		qmp_call_fail(call, status, "no memory to read the %s: try again later", name);
}

/* Unpacks and runs the handler, which ends the call now or later. */
static void call_serve(struct qmp_call *call)
{
	const struct qmp_binding *binding = call->binding;
	ProtobufCMessage *request;
	qmla_status_t status;

	if (qmp_call_cancelled(call)) {
		qmp_call_fail(call, QMLA_ERR_CANCELLED, "cancelled before its turn came");
		return;
	}
	peer_copy(call);
	status = qmp_buffer_unpack(call->payload, binding->method->request,
				   call->server->max_unpack_bytes, &request);
	grpc_byte_buffer_destroy(call->payload);
	call->payload = NULL;
	if (status != QMLA_OK) {
		call_refuse_payload(call, status);
		return;
	}
	/* The handler may end the call: it must not be touched from here on. */
	binding->method->handler(binding->object, call, request);
	qmp_message_free(request);
}

static void call_run_job(struct qmp_job *job)
{
	struct qmp_call *call = CALL_OF(job, job);

	/* Relaxed: a limit, not an order. */
	atomic_fetch_sub_explicit(&call->server->queued_bytes, call->queued_bytes,
				  memory_order_relaxed);
	call_serve(call);
}

/* A thousand calls of the largest size must not wait at once: their bytes are bounded, too. */
static bool call_enqueue(struct qmp_call *call)
{
	struct qmp_server *server = call->server;
	size_t bytes = call->payload ? grpc_byte_buffer_length(call->payload) : 0;
	size_t before;

	call->queued_bytes = bytes;
	before = atomic_fetch_add_explicit(&server->queued_bytes, bytes, memory_order_relaxed);
	if ((before == 0 || before + bytes <= server->max_queued_bytes) &&
	    qmp_pool_submit(server->pool, &call->job))
		return true;
	atomic_fetch_sub_explicit(&server->queued_bytes, bytes, memory_order_relaxed);
	return false;
}

static void call_fail_unknown(struct qmp_call *call)
{
	const char *method = (const char *)GRPC_SLICE_START_PTR(call->details.method);
	size_t length = GRPC_SLICE_LENGTH(call->details.method);
	int shown = length < 200 ? (int)length : 200;

	qmp_call_fail(call, QMLA_ERR_UNSUPPORTED, "no method %.*s here", shown, method);
}

static void call_dispatch(struct qmp_call *call)
{
	if (!call->binding->method) {
		call_fail_unknown(call);
	} else if (call->binding->on_queue) {
		call_serve(call);
	} else if (!call_enqueue(call)) {
		qmc_warn_limited("rpc", "%s refused: too many calls wait already",
				 call->binding->method->path);
		qmp_call_fail(call, QMLA_ERR_RESOURCE_EXHAUSTED,
			      "too many calls wait already (at most %u): try again later",
			      call->server->max_queued_calls);
	}
}

static void call_on_closed(struct qmp_tag *tag, bool ok)
{
	struct qmp_call *call = CALL_OF(tag, closed);

	if (!ok || call->closed_early) {
		pthread_mutex_lock(&call->lock);
		atomic_store_explicit(&call->cancelled, true, memory_order_release);
		pthread_cond_broadcast(&call->changed);
		pthread_mutex_unlock(&call->lock);
		if (call->hooks)
			call->hooks->cancelled(call->hooks->object, call);
	}
	qmp_call_put(call);
}

static void call_watch_close(struct qmp_call *call)
{
	grpc_op op = {0};

	op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
	op.data.recv_close_on_server.cancelled = &call->closed_early;
	atomic_fetch_add_explicit(&call->references, 1, memory_order_relaxed);
	if (!qmp_batch_start(call->handle, &op, 1, &call->closed))
		qmp_call_put(call);
}

static void call_on_arrived(struct qmp_tag *tag, bool ok)
{
	struct qmp_call *call = CALL_OF(tag, arrived);

	if (!ok) { /* the server shuts down */
		qmp_call_put(call);
		return;
	}
	/* First the next request, so that it never waits for this one's work. */
	if (!qmp_call_arm(call->binding))
		call->binding->missing++; /* the server's tick tries again */
	call_watch_close(call);
	call_dispatch(call);
}

static struct qmp_call *call_create(struct qmp_binding *binding)
{
	struct qmp_server *server = binding->server;
	struct qmp_call *call = calloc(1, sizeof(*call));

	if (!call)
		return NULL;
	call->server = server;
	call->binding = binding;
	atomic_init(&call->references, 1);
	atomic_init(&call->cancelled, false);
	call->job.run = call_run_job;
	call->arrived.done = call_on_arrived;
	call->closed.done = call_on_closed;
	call->detail = grpc_empty_slice();
	grpc_metadata_array_init(&call->metadata);
	grpc_call_details_init(&call->details);
	pthread_mutex_init(&call->lock, NULL);
	qmp_condition_init(&call->changed);
	pthread_mutex_lock(&server->lock);
	call->next = server->calls;
	if (call->next)
		call->next->previous = call;
	server->calls = call;
	server->live++;
	pthread_mutex_unlock(&server->lock);
	return call;
}

bool qmp_call_arm(struct qmp_binding *binding)
{
	struct qmp_server *server = binding->server;
	grpc_completion_queue *queue = qmp_queue_handle(server->queue);
	struct qmp_call *call = call_create(binding);
	grpc_call_error error;

	if (!call) {
		qmc_error("rpc", "no memory to accept another call");
		return false;
	}
	QMP_HAND_OVER(&call->arrived);
	if (binding->method)
		error = grpc_server_request_registered_call(
			server->handle, binding->registered, &call->handle, &call->deadline,
			&call->metadata, &call->payload, queue, queue, &call->arrived);
	else
		error = grpc_server_request_call(server->handle, &call->handle, &call->details,
						 &call->metadata, queue, queue, &call->arrived);
	if (error == GRPC_CALL_OK)
		return true;
	qmc_error("rpc", "cannot accept calls: %s", grpc_call_error_to_string(error));
	qmp_call_put(call);
	return false;
}
