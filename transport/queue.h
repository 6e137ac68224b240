/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * An endpoint's operations: queued (the peer knows nothing of them), on the wire
 * (in order; at most QMT_WINDOW_OPS of them and QMT_WINDOW_BYTES) and completed.
 * Holds deadlines and cancellation; the back end moves the bytes. One thread.
 */
#ifndef QMT_QUEUE_H
#define QMT_QUEUE_H

#include "transport/blob.h"

/* The rest waits in the queue, where cancelling costs nothing. */
#define QMT_WINDOW_OPS   128
#define QMT_WINDOW_BYTES (UINT64_C(32) << 20)

/** An operation on the wire, outliving its op when that was cancelled. */
struct qmt_wire_op {
	struct qmt_op *op; /**< NULL: cancelled; its bytes are to be ignored */
	uint64_t id;
	uint64_t length;
	enum qmt_access access;
	bool cancelled; /**< complete it with QMLA_ERR_CANCELLED as soon as possible */
	bool busy;      /**< the back end reads or writes op->local across calls: keep op */
};

struct qmt_op_list {
	struct qmt_op *head, **tail;
};

struct qmt_queue {
	struct qmt_op_list queued, completed;
	struct qmt_wire_op wire[QMT_WINDOW_OPS]; /**< ring */
	uint64_t head, tail;                     /**< of the ring; counting up */
	uint64_t wire_bytes;
	uint64_t next_id;
	qmc_time_t next_deadline; /**< not later than the earliest of all ops not completed */
};

/** Empties the queue: no operation, no deadline. */
void qmt_queue_init(struct qmt_queue *queue);

/** Takes @p op at the end. */
void qmt_queue_push(struct qmt_queue *queue, struct qmt_op *op);

/** True when no op is queued, on the wire or completed. */
bool qmt_queue_is_empty(const struct qmt_queue *queue);

/** True when qmt_queue_start would move one. */
bool qmt_queue_has_room(const struct qmt_queue *queue);

/** Moves the first queued op onto the wire; NULL when there is none or the window is full. */
struct qmt_wire_op *qmt_queue_start(struct qmt_queue *queue);

/** Oldest op on the wire, NULL when there is none. */
struct qmt_wire_op *qmt_queue_front(struct qmt_queue *queue);

/** The @p index-th op on the wire, 0 the oldest; NULL past the last. */
struct qmt_wire_op *qmt_queue_at(struct qmt_queue *queue, uint64_t index);

/** Ends the oldest op on the wire: completes it unless it was cancelled already. */
void qmt_queue_retire(struct qmt_queue *queue, qmla_status_t status);

/** The back end no longer touches the op's memory: completes it if it was cancelled. */
void qmt_queue_unbusy(struct qmt_wire_op *wire, struct qmt_queue *queue);

/** Completes with QMLA_ERR_CANCELLED now, or as soon as the op is not busy. */
void qmt_queue_cancel(struct qmt_queue *queue, struct qmt_op *op);

/**
 * Completes queued ops whose deadline has passed at @p now. True when one on the
 * wire has passed: call qmt_queue_fail.
 */
bool qmt_queue_expire(struct qmt_queue *queue, qmc_time_t now);

/**
 * The endpoint died: completes everything, ops past their deadline at @p now
 * with QMLA_ERR_DEADLINE, cancelled ones with QMLA_ERR_CANCELLED, others with
 * @p status.
 */
void qmt_queue_fail(struct qmt_queue *queue, qmc_time_t now, qmla_status_t status);

/** Takes a completed op out; NULL when there is none. */
struct qmt_op *qmt_queue_pop(struct qmt_queue *queue);

#endif /* QMT_QUEUE_H */
