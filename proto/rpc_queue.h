/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A completion queue and the one thread that polls it. I/O moves only while
 * somebody is in grpc_completion_queue_next, so callbacks must be short.
 * Internal to proto/.
 */
#ifndef QMP_RPC_QUEUE_H
#define QMP_RPC_QUEUE_H

#include <grpc/grpc.h>
#include <stdbool.h>
#include <stddef.h>

#include <qmla/status.h>

/*
 * libgrpc is not instrumented, so ThreadSanitizer does not see that an operation
 * started on one thread completes on another. This pair tells it: release before
 * a tag is handed to gRPC, acquire when it comes back.
 */
#if defined(__SANITIZE_THREAD__)
#define QMP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define QMP_TSAN 1
#endif
#endif
#ifdef QMP_TSAN
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define QMP_HAND_OVER(tag) __tsan_release(tag)
#define QMP_TAKE_OVER(tag) __tsan_acquire(tag)
#else
#define QMP_HAND_OVER(tag) ((void)(tag))
#define QMP_TAKE_OVER(tag) ((void)(tag))
#endif

/** What gRPC gives back when an operation ends; embedded in the operation's owner. */
struct qmp_tag {
	/** Runs on the queue's thread; must not block. @p tag may be gone when it returns. */
	void (*done)(struct qmp_tag *tag, bool ok);
};

struct qmp_queue;

/**
 * Makes a queue and its thread. @p tick, unless NULL, runs on that thread about
 * once a second with @p argument.
 */
qmla_status_t qmp_queue_create(const char *thread_name, void (*tick)(void *argument),
			       void *argument, struct qmp_queue **queue);

/** Shuts the queue down, runs what is left in it, joins, frees. Accepts NULL. */
void qmp_queue_destroy(struct qmp_queue *queue);

/** gRPC's handle, borrowed. */
grpc_completion_queue *qmp_queue_handle(struct qmp_queue *queue);

/** The queue that all channels of the process share; made by its first user. */
qmla_status_t qmp_queue_shared_get(struct qmp_queue **queue);

/** Gives it back; the last user's put ends it. Not on the queue's own thread. */
void qmp_queue_shared_put(void);

/**
 * Starts one batch. A refusal is a defect of this runtime: it is logged, and the
 * tag will not come. @return true when the tag will come.
 */
bool qmp_batch_start(grpc_call *call, const grpc_op *ops, size_t count, struct qmp_tag *tag);

#endif /* QMP_RPC_QUEUE_H */
