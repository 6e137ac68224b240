/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * One call being served: armed, arrived, running, ending, gone. Internal to proto/.
 *
 * References: one for whoever must end the call (armed request, then handler,
 * then the batch that sends the status), one for the batch that waits for the
 * call to close, one for a message on its way.
 */
#ifndef QMP_RPC_CALL_H
#define QMP_RPC_CALL_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/address.h"
#include "proto/rpc_client.h" /* QMP_DETAIL_MAX */
#include "proto/rpc_pool.h"
#include "proto/rpc_queue.h"
#include "proto/rpc_server.h"
#include "proto/rpc_status.h"

/** A method as a server has it. */
struct qmp_binding {
	const struct qmp_method *method; /**< NULL: whatever no other one takes */
	void *object;
	void *registered; /**< gRPC's handle */
	bool on_queue;    /**< the handler is short and runs on the queue's thread */
	unsigned missing; /**< requests that could not be armed; queue's thread */
	struct qmp_server *server;
};

/** For calls that no thread waits on (health Watch). Both run on the queue's thread. */
struct qmp_call_hooks {
	void (*sent)(void *object, struct qmp_call *call, bool ok);
	void (*cancelled)(void *object, struct qmp_call *call);
	void *object;
};

struct qmp_call {
	struct qmp_server *server;
	struct qmp_binding *binding;
	struct qmp_call *previous, *next; /**< in the server's list, under its lock */
	atomic_int references;
	struct qmp_job job;
	size_t queued_bytes; /**< of the payload, while it counts in the server's sum */
	struct qmp_tag arrived, closed, sent, ended;

	grpc_call *handle; /**< NULL until arrived */
	grpc_metadata_array metadata;
	grpc_call_details details;
	gpr_timespec deadline;
	grpc_byte_buffer *payload;
	int closed_early; /**< gRPC writes it when the call closes */
	/** Release by the queue's thread, acquire by qmp_call_cancelled. */
	atomic_bool cancelled;
	char peer[QMC_ADDRESS_TEXT_MAX];
	const struct qmp_call_hooks *hooks;

	pthread_mutex_t lock; /**< guards what follows */
	pthread_cond_t changed;
	grpc_byte_buffer *outgoing;
	bool started; /**< initial metadata are out */
	bool sending, broken, ending;
	qmc_time_t give_up; /**< while ending waits for a message: when to cancel instead */
	qmla_status_t status;
	grpc_slice detail;
	char status_text[8];
	grpc_metadata trailer;
};

/** The call that @p pointer, a tag or a job, is part of. */
#define CALL_OF(pointer, member)                                                                   \
	((struct qmp_call *)(void *)((char *)(pointer)-offsetof(struct qmp_call, member)))

/** Asks gRPC for the next call of @p binding. False when memory is out or gRPC refuses. */
bool qmp_call_arm(struct qmp_binding *binding);

/** Sends without waiting: nothing may be on its way. The sent hook follows. */
qmla_status_t qmp_call_send_now(struct qmp_call *call, const ProtobufCMessage *message);

/** Cancels a call whose end has waited too long behind an unread message. */
void qmp_call_expire(struct qmp_call *call);

/** Drops one reference; the last one frees the call. */
void qmp_call_put(struct qmp_call *call);

#endif /* QMP_RPC_CALL_H */
