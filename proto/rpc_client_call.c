/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc_client_call.h"

#include <grpc/slice.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/message.h"
#include "proto/rpc_buffer.h"
#include "proto/rpc_runtime.h"
#include "proto/rpc_status.h"

static bool channel_add(struct qmp_channel *channel, struct qmp_client_call *call)
{
	bool open;

	pthread_mutex_lock(&channel->lock);
	open = !channel->closed;
	if (open) {
		channel->references++;
		call->next = channel->calls;
		if (call->next)
			call->next->previous = call;
		channel->calls = call;
	}
	pthread_mutex_unlock(&channel->lock);
	return open;
}

static grpc_call *make_handle(const struct qmp_client_call *call)
{
	return grpc_channel_create_call(call->channel->handle, NULL, GRPC_PROPAGATE_DEFAULTS,
					qmp_queue_handle(call->channel->queue), call->method, NULL,
					qmp_timespec_from_time(call->deadline), NULL);
}

qmla_status_t qmp_client_call_init(struct qmp_client_call *call, struct qmp_channel *channel,
				   const char *path, const ProtobufCMessage *request,
				   const ProtobufCMessageDescriptor *type, qmc_time_t deadline,
				   unsigned tags)
{
	qmla_status_t status;

	*call = (struct qmp_client_call){
		.channel = channel, .deadline = deadline, .type = type, .outstanding = tags};
	status = qmp_buffer_pack(request, &call->request);
	if (status != QMLA_OK)
		return status;
	call->spare = grpc_byte_buffer_copy(call->request);
	call->details = grpc_empty_slice();
	grpc_metadata_array_init(&call->initial);
	grpc_metadata_array_init(&call->trailing);
	pthread_mutex_init(&call->lock, NULL);
	qmp_condition_init(&call->changed);
	call->method = grpc_slice_from_copied_string(path);
	call->handle = make_handle(call);
	if (channel_add(channel, call))
		return QMLA_OK;
	call->channel = NULL;
	qmp_client_call_fini(call);
	return QMLA_ERR_CANCELLED;
}

static void channel_remove(struct qmp_channel *channel, struct qmp_client_call *call)
{
	pthread_mutex_lock(&channel->lock);
	if (call->previous)
		call->previous->next = call->next;
	else
		channel->calls = call->next;
	if (call->next)
		call->next->previous = call->previous;
	pthread_cond_broadcast(&channel->changed);
	pthread_mutex_unlock(&channel->lock);
}

void qmp_client_call_tag_back(struct qmp_client_call *call)
{
	bool last;

	/* All tags come on one thread and none is started after the status, so the
	 * last one stays the last while the lock is open. */
	pthread_mutex_lock(&call->lock);
	last = call->outstanding == 1;
	if (last) {
		pthread_mutex_unlock(&call->lock);
		channel_remove(call->channel, call);
		pthread_mutex_lock(&call->lock);
	}
	call->outstanding--;
	pthread_cond_broadcast(&call->changed);
	pthread_mutex_unlock(&call->lock);
	/* With none outstanding the owner may have freed the call by now. */
}

bool qmp_client_call_begin(struct qmp_client_call *call, const grpc_op *ops, size_t count,
			   struct qmp_tag *tag)
{
	if (qmp_batch_start(call->handle, ops, count, tag))
		return true;
	qmp_client_call_tag_back(call);
	return false;
}

/*
 * gRPC 1.51 reads errno after connect() only when it has made its descriptor object,
 * which may allocate and lock. Where /sys is not mounted (a bare chroot), glibc or
 * Abseil counting the processors just then leaves ENOENT, and a connection in progress
 * is dropped as failed. A TCP connection cannot fail for that reason.
 */
static bool is_misread(grpc_status_code code, grpc_slice details)
{
	static const char failed[] = "failed to connect", reason[] = "No such file or directory";
	const uint8_t *text = GRPC_SLICE_START_PTR(details);
	size_t length = GRPC_SLICE_LENGTH(details);

	return code == GRPC_STATUS_UNAVAILABLE && length >= sizeof(failed) - 1 &&
	       memcmp(text, failed, sizeof(failed) - 1) == 0 &&
	       memmem(text, length, reason, sizeof(reason) - 1) != NULL;
}

/* What a second attempt sends, and room for what it receives. */
static void start_over(struct qmp_client_call *call)
{
	grpc_byte_buffer_destroy(call->request);
	call->request = call->spare;
	call->spare = NULL;
	grpc_metadata_array_destroy(&call->initial);
	grpc_metadata_array_destroy(&call->trailing);
	grpc_metadata_array_init(&call->initial);
	grpc_metadata_array_init(&call->trailing);
	grpc_slice_unref(call->details);
	call->details = grpc_empty_slice();
}

bool qmp_client_call_again(struct qmp_client_call *call)
{
	grpc_call *first = NULL;

	if (!is_misread(call->code, call->details))
		return false;
	pthread_mutex_lock(&call->lock);
	if (!call->again && !call->cancelled) {
		call->again = true;
		first = call->handle;
		grpc_channel_reset_connect_backoff(call->channel->handle);
		call->handle = make_handle(call);
	}
	pthread_mutex_unlock(&call->lock);
	if (!first)
		return false;
	grpc_call_unref(first);
	start_over(call);
	return true;
}

void qmp_client_call_cancel(struct qmp_client_call *call)
{
	pthread_mutex_lock(&call->lock);
	if (call->outstanding && !call->cancelled) {
		call->cancelled = true;
		(void)grpc_call_cancel(call->handle, NULL);
	}
	pthread_mutex_unlock(&call->lock);
}

void qmp_error_set(struct qmp_error *error, const char *format, ...)
{
	va_list arguments;

	if (!error)
		return;
	va_start(arguments, format);
	vsnprintf(error->detail, sizeof(error->detail), format, arguments);
	va_end(arguments);
}

qmla_status_t qmp_client_call_status(const struct qmp_client_call *call, struct qmp_error *error)
{
	qmla_status_t status =
		qmp_status_from_grpc(call->code, call->details, &call->trailing, call->cancelled);
	size_t length = GRPC_SLICE_LENGTH(call->details);

	if (length >= QMP_DETAIL_MAX)
		length = QMP_DETAIL_MAX - 1;
	if (status != QMLA_OK)
		qmp_error_set(error, "%.*s", (int)length,
			      (const char *)GRPC_SLICE_START_PTR(call->details));
	return status;
}

qmla_status_t qmp_client_call_unpack(const struct qmp_client_call *call, grpc_byte_buffer *buffer,
				     ProtobufCMessage **message, struct qmp_error *error)
{
	qmla_status_t status =
		qmp_buffer_unpack(buffer, call->type, call->channel->unpack_budget, message);

	if (status != QMLA_OK)
		qmp_error_set(error, "the peer's answer is no usable %s: %s", call->type->name,
			      qmla_status_text(status));
	return status;
}

void qmp_client_call_fini(struct qmp_client_call *call)
{
	grpc_call_unref(call->handle);
	grpc_slice_unref(call->method);
	grpc_byte_buffer_destroy(call->request);
	grpc_byte_buffer_destroy(call->spare);
	grpc_metadata_array_destroy(&call->initial);
	grpc_metadata_array_destroy(&call->trailing);
	grpc_slice_unref(call->details);
	pthread_cond_destroy(&call->changed);
	pthread_mutex_destroy(&call->lock);
	if (call->channel)
		qmp_channel_put(call->channel);
}
