/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/queue.h"

static void list_init(struct qmt_op_list *list)
{
	list->head = NULL;
	list->tail = &list->head;
}

static void list_push(struct qmt_op_list *list, struct qmt_op *op)
{
	op->next_ = NULL;
	*list->tail = op;
	list->tail = &op->next_;
}

static struct qmt_op *list_pop(struct qmt_op_list *list)
{
	struct qmt_op *op = list->head;

	if (!op)
		return NULL;
	list->head = op->next_;
	if (!list->head)
		list->tail = &list->head;
	op->next_ = NULL;
	return op;
}

void qmt_queue_init(struct qmt_queue *queue)
{
	*queue = (struct qmt_queue){.next_deadline = QMC_TIME_NEVER};
	list_init(&queue->queued);
	list_init(&queue->completed);
}

void qmt_queue_push(struct qmt_queue *queue, struct qmt_op *op)
{
	op->id_ = queue->next_id++;
	if (op->deadline < queue->next_deadline)
		queue->next_deadline = op->deadline;
	list_push(&queue->queued, op);
}

bool qmt_queue_is_empty(const struct qmt_queue *queue)
{
	if (queue->queued.head || queue->completed.head)
		return false;
	/* What is cancelled on the wire belongs to nobody. */
	for (uint64_t i = queue->head; i != queue->tail; i++) {
		if (queue->wire[i % QMT_WINDOW_OPS].op)
			return false;
	}
	return true;
}

static void complete(struct qmt_queue *queue, struct qmt_op *op, qmla_status_t status)
{
	op->status = status;
	list_push(&queue->completed, op);
}

bool qmt_queue_has_room(const struct qmt_queue *queue)
{
	uint64_t used = queue->tail - queue->head;

	if (!queue->queued.head || used == QMT_WINDOW_OPS)
		return false;
	/* One op may be larger than the window, but then it goes alone. */
	return used == 0 || queue->wire_bytes + queue->queued.head->length <= QMT_WINDOW_BYTES;
}

struct qmt_wire_op *qmt_queue_start(struct qmt_queue *queue)
{
	struct qmt_wire_op *wire;
	struct qmt_op *op;

	if (!qmt_queue_has_room(queue))
		return NULL;
	op = list_pop(&queue->queued);
	wire = &queue->wire[queue->tail++ % QMT_WINDOW_OPS];
	*wire = (struct qmt_wire_op){
		.op = op, .id = op->id_, .length = op->length, .access = op->access};
	queue->wire_bytes += op->length;
	return wire;
}

struct qmt_wire_op *qmt_queue_at(struct qmt_queue *queue, uint64_t index)
{
	if (index >= queue->tail - queue->head)
		return NULL;
	return &queue->wire[(queue->head + index) % QMT_WINDOW_OPS];
}

struct qmt_wire_op *qmt_queue_front(struct qmt_queue *queue)
{
	return qmt_queue_at(queue, 0);
}

void qmt_queue_retire(struct qmt_queue *queue, qmla_status_t status)
{
	struct qmt_wire_op *wire = &queue->wire[queue->head++ % QMT_WINDOW_OPS];

	queue->wire_bytes -= wire->length;
	if (wire->op)
		complete(queue, wire->op, status);
	wire->op = NULL;
}

void qmt_queue_unbusy(struct qmt_wire_op *wire, struct qmt_queue *queue)
{
	wire->busy = false;
	if (!wire->cancelled || !wire->op)
		return;
	complete(queue, wire->op, QMLA_ERR_CANCELLED);
	wire->op = NULL;
}

/* Takes @op out of the queued list; false when it is not there. */
static bool unqueue(struct qmt_queue *queue, struct qmt_op *op)
{
	struct qmt_op **link = &queue->queued.head;

	while (*link && *link != op)
		link = &(*link)->next_;
	if (!*link)
		return false;
	*link = op->next_;
	if (!*link)
		queue->queued.tail = link;
	return true;
}

void qmt_queue_cancel(struct qmt_queue *queue, struct qmt_op *op)
{
	for (uint64_t i = queue->head; i != queue->tail; i++) {
		struct qmt_wire_op *wire = &queue->wire[i % QMT_WINDOW_OPS];

		if (wire->op != op)
			continue;
		wire->cancelled = true;
		if (!wire->busy)
			qmt_queue_unbusy(wire, queue);
		return;
	}
	if (unqueue(queue, op))
		complete(queue, op, QMLA_ERR_CANCELLED);
}

static void earlier(qmc_time_t *deadline, const struct qmt_op *op)
{
	if (op->deadline < *deadline)
		*deadline = op->deadline;
}

bool qmt_queue_expire(struct qmt_queue *queue, qmc_time_t now)
{
	struct qmt_op **link = &queue->queued.head;
	qmc_time_t next = QMC_TIME_NEVER;
	struct qmt_op *op;

	if (now < queue->next_deadline)
		return false;
	while ((op = *link) != NULL) {
		if (op->deadline > now) {
			earlier(&next, op);
			link = &op->next_;
			continue;
		}
		*link = op->next_;
		complete(queue, op, QMLA_ERR_DEADLINE);
	}
	queue->queued.tail = link;
	for (uint64_t i = queue->head; i != queue->tail; i++) {
		op = queue->wire[i % QMT_WINDOW_OPS].op;
		if (op)
			earlier(&next, op);
	}
	queue->next_deadline = next;
	return now >= next;
}

static qmla_status_t failure_of(const struct qmt_op *op, qmc_time_t now, qmla_status_t status)
{
	return op->deadline <= now ? QMLA_ERR_DEADLINE : status;
}

void qmt_queue_fail(struct qmt_queue *queue, qmc_time_t now, qmla_status_t status)
{
	struct qmt_wire_op *wire;
	struct qmt_op *op;

	while ((wire = qmt_queue_front(queue)) != NULL) {
		qmla_status_t why = status;

		if (wire->op)
			why = wire->cancelled ? QMLA_ERR_CANCELLED
					      : failure_of(wire->op, now, status);
		qmt_queue_retire(queue, why);
	}
	while ((op = list_pop(&queue->queued)) != NULL)
		complete(queue, op, failure_of(op, now, status));
	queue->next_deadline = QMC_TIME_NEVER;
}

struct qmt_op *qmt_queue_pop(struct qmt_queue *queue)
{
	return list_pop(&queue->completed);
}
