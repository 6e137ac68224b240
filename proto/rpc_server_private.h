/* SPDX-License-Identifier: Apache-2.0 */
/** @file The server's fields, for the files that serve its calls. Internal to proto/. */
#ifndef QMP_RPC_SERVER_PRIVATE_H
#define QMP_RPC_SERVER_PRIVATE_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>

#include "proto/rpc_call.h"

struct qmp_health;

struct qmp_server {
	grpc_server *handle;
	struct qmp_queue *queue;
	struct qmp_pool *pool;
	struct qmp_health *health;
	struct qmp_binding *bindings;
	size_t binding_count;
	uint32_t max_message_bytes, max_unpack_bytes, max_queued_calls;
	uint16_t port;
	size_t max_queued_bytes;
	atomic_size_t queued_bytes; /**< payloads that wait for a thread */
	/** Release by qmp_server_destroy, acquire by qmp_call_draining. */
	atomic_bool draining;

	pthread_mutex_t lock; /**< guards what follows; taken before a call's lock */
	pthread_cond_t changed;
	struct qmp_call *calls; /**< armed ones too */
	size_t live;            /**< calls not yet freed: those in the list and a few leaving it */
	bool down;              /**< gRPC has finished shutting down */
	struct qmp_tag shut_down;
};

#endif /* QMP_RPC_SERVER_PRIVATE_H */
