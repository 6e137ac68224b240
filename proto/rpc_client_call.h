/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What unary calls and streams of a client share: the channel's list, the status
 * that ends the call, cancellation. Internal to proto/.
 */
#ifndef QMP_RPC_CLIENT_CALL_H
#define QMP_RPC_CLIENT_CALL_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdbool.h>

#include "proto/rpc_client.h"
#include "proto/rpc_queue.h"

struct qmp_channel {
	grpc_channel *handle;
	struct qmp_queue *queue; /**< the process's shared one */
	size_t unpack_budget;

	pthread_mutex_t lock; /**< guards what follows; taken before a call's lock */
	pthread_cond_t changed;
	struct qmp_client_call *calls; /**< whose tags are still out */
	unsigned references;           /**< the owner's and one for every call object */
	bool closed;
};

struct qmp_client_call {
	struct qmp_channel *channel;
	struct qmp_client_call *previous, *next;
	grpc_call *handle; /**< replaced under the lock */
	grpc_slice method;
	qmc_time_t deadline;
	const ProtobufCMessageDescriptor *type; /**< of what is received */
	grpc_byte_buffer *request;              /**< sending empties it */
	grpc_byte_buffer *spare;                /**< the same for a second attempt */
	grpc_metadata_array initial, trailing;
	grpc_status_code code;
	grpc_slice details;

	pthread_mutex_t lock; /**< guards what follows and the owner's own state */
	pthread_cond_t changed;
	unsigned outstanding; /**< tags out */
	bool cancelled;       /**< by this side */
	bool again;           /**< has its second handle */
};

/**
 * Packs @p request, makes the gRPC call and puts it on the channel's list with
 * @p tags tags outstanding. QMLA_ERR_CANCELLED: the channel is being destroyed.
 */
qmla_status_t qmp_client_call_init(struct qmp_client_call *call, struct qmp_channel *channel,
				   const char *path, const ProtobufCMessage *request,
				   const ProtobufCMessageDescriptor *type, qmc_time_t deadline,
				   unsigned tags);

/** Frees what the call holds; every tag is back. Drops the channel. */
void qmp_client_call_fini(struct qmp_client_call *call);

/**
 * Counts one tag as back and wakes who waits. With the last one the call leaves
 * the channel's list and its owner may free it at once. Queue's thread.
 */
void qmp_client_call_tag_back(struct qmp_client_call *call);

/** Starts a batch whose tag is counted already; a refusal counts it as back. */
bool qmp_client_call_begin(struct qmp_client_call *call, const grpc_op *ops, size_t count,
			   struct qmp_tag *tag);

/** Drops one reference; the last one frees the channel. Not on the queue's thread. */
void qmp_channel_put(struct qmp_channel *channel);

/**
 * True when the status is that of a connection which gRPC gave up by mistake, for
 * the first time in this call: nothing was sent, and the call has a new handle on
 * which its batch must be begun again. Called with the status, before its tag is
 * counted as back. Queue's thread.
 */
bool qmp_client_call_again(struct qmp_client_call *call);

/** Any thread; the call must not be finalised meanwhile. */
void qmp_client_call_cancel(struct qmp_client_call *call);

/** Status of a call whose RECV_STATUS is back; the reason goes to @p error unless NULL. */
qmla_status_t qmp_client_call_status(const struct qmp_client_call *call, struct qmp_error *error);

/** Writes @p format to @p error unless NULL. */
void qmp_error_set(struct qmp_error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/** Unpacks a received buffer for @p call; a failure is explained in @p error. */
qmla_status_t qmp_client_call_unpack(const struct qmp_client_call *call, grpc_byte_buffer *buffer,
				     ProtobufCMessage **message, struct qmp_error *error);

#endif /* QMP_RPC_CLIENT_CALL_H */
