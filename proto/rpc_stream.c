/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "proto/rpc_client_call.h"
#include "proto/rpc_runtime.h"

struct qmp_stream {
	struct qmp_client_call call;
	struct qmp_tag opened, read, ended;
	/* Under the call's lock: */
	grpc_byte_buffer *message; /**< gRPC writes it while `reading` */
	bool reading;              /**< a read is out */
	bool has_message;          /**< `message` waits for qmp_stream_next */
	bool finished;             /**< the status is here */
};

#define STREAM_OF(tag, member)                                                                     \
	((struct qmp_stream *)(void *)((char *)(tag)-offsetof(struct qmp_stream, member)))

static void stream_on_opened(struct qmp_tag *tag, bool ok)
{
	(void)ok; /* a failure comes with the status */
	qmp_client_call_tag_back(&STREAM_OF(tag, opened)->call);
}

static void stream_on_ended(struct qmp_tag *tag, bool ok)
{
	struct qmp_stream *stream = STREAM_OF(tag, ended);

	(void)ok;
	pthread_mutex_lock(&stream->call.lock);
	stream->finished = true;
	pthread_mutex_unlock(&stream->call.lock);
	qmp_client_call_tag_back(&stream->call);
}

static void stream_on_read(struct qmp_tag *tag, bool ok)
{
	struct qmp_stream *stream = STREAM_OF(tag, read);

	pthread_mutex_lock(&stream->call.lock);
	stream->reading = false;
	stream->has_message = ok && stream->message;
	pthread_mutex_unlock(&stream->call.lock);
	qmp_client_call_tag_back(&stream->call);
}

/* The status has a batch of its own: it ends the stream whatever else is out. */
static bool stream_begin(struct qmp_stream *stream)
{
	struct qmp_client_call *call = &stream->call;
	grpc_op status = {0};
	grpc_op ops[4] = {0};

	status.op = GRPC_OP_RECV_STATUS_ON_CLIENT;
	status.data.recv_status_on_client.trailing_metadata = &call->trailing;
	status.data.recv_status_on_client.status = &call->code;
	status.data.recv_status_on_client.status_details = &call->details;
	ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
	ops[1].op = GRPC_OP_SEND_MESSAGE;
	ops[1].flags = GRPC_WRITE_NO_COMPRESS;
	ops[1].data.send_message.send_message = call->request;
	ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
	ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
	ops[3].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
	if (!qmp_client_call_begin(call, &status, 1, &stream->ended)) {
		qmp_client_call_tag_back(call); /* for `opened`, never started */
		return false;
	}
	if (qmp_client_call_begin(call, ops, 4, &stream->opened))
		return true;
	qmp_client_call_cancel(call);
	return false;
}

qmla_status_t qmp_stream_open(struct qmp_channel *channel, const char *path,
			      const ProtobufCMessage *request,
			      const ProtobufCMessageDescriptor *message_type, qmc_time_t deadline,
			      struct qmp_stream **stream)
{
	struct qmp_stream *s = calloc(1, sizeof(*s));
	qmla_status_t status;

	if (!s)
		return QMLA_ERR_NO_MEMORY;
	s->opened.done = stream_on_opened;
	s->read.done = stream_on_read;
	s->ended.done = stream_on_ended;
	status = qmp_client_call_init(&s->call, channel, path, request, message_type, deadline, 2);
	if (status != QMLA_OK) {
		free(s);
		return status;
	}
	if (!stream_begin(s)) {
		qmp_stream_close(s);
		return QMLA_ERR_INTERNAL;
	}
	*stream = s;
	return QMLA_OK;
}

/* Asks for the next message unless one is out, here, or the stream over. Lock held. */
static void stream_read(struct qmp_stream *stream)
{
	grpc_op op = {0};

	if (stream->reading || stream->has_message || stream->finished)
		return;
	op.op = GRPC_OP_RECV_MESSAGE;
	op.data.recv_message.recv_message = &stream->message;
	stream->message = NULL;
	stream->reading = true;
	stream->call.outstanding++;
	if (!qmp_batch_start(stream->call.handle, &op, 1, &stream->read)) {
		stream->reading = false;
		stream->call.outstanding--;
		(void)grpc_call_cancel(stream->call.handle, NULL);
	}
}

qmla_status_t qmp_stream_next(struct qmp_stream *stream, qmc_time_t deadline,
			      ProtobufCMessage **message, struct qmp_error *error)
{
	struct qmp_client_call *call = &stream->call;
	grpc_byte_buffer *buffer = NULL;
	bool in_time = true;
	qmla_status_t status;

	pthread_mutex_lock(&call->lock);
	stream_read(stream);
	/* A read that ends without a message is followed by the status. */
	while (!stream->has_message && (!stream->finished || call->outstanding) && in_time)
		in_time = qmp_condition_wait(&call->changed, &call->lock, deadline);
	if (stream->has_message) {
		buffer = stream->message;
		stream->message = NULL;
		stream->has_message = false;
	}
	in_time = buffer || (stream->finished && !call->outstanding);
	pthread_mutex_unlock(&call->lock);

	if (!in_time) {
		qmp_error_set(error, "no message came in time");
		return QMLA_ERR_DEADLINE;
	}
	if (!buffer) {
		status = qmp_client_call_status(call, error);
		if (status == QMLA_OK)
			*message = NULL;
		return status;
	}
	status = qmp_client_call_unpack(call, buffer, message, error);
	grpc_byte_buffer_destroy(buffer);
	return status;
}

void qmp_stream_cancel(struct qmp_stream *stream)
{
	qmp_client_call_cancel(&stream->call);
}

void qmp_stream_close(struct qmp_stream *stream)
{
	struct qmp_client_call *call;

	if (!stream)
		return;
	call = &stream->call;
	qmp_client_call_cancel(call);
	pthread_mutex_lock(&call->lock);
	while (call->outstanding)
		pthread_cond_wait(&call->changed, &call->lock);
	pthread_mutex_unlock(&call->lock);
	if (stream->message)
		grpc_byte_buffer_destroy(stream->message);
	qmp_client_call_fini(call);
	free(stream);
}
