/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/queue.h"

#define MIB (UINT64_C(1) << 20)

static void push(struct qmt_queue *queue, struct qmt_op *op, uint64_t length, qmc_time_t deadline)
{
	*op = (struct qmt_op){
		.access = QMT_READ, .length = length, .deadline = deadline, .status = 1};
	qmt_queue_push(queue, op);
}

static void operations_complete_in_order(void **state)
{
	struct qmt_queue queue;
	struct qmt_op ops[5];

	(void)state;
	qmt_queue_init(&queue);
	assert_true(qmt_queue_is_empty(&queue));
	assert_null(qmt_queue_start(&queue));
	assert_null(qmt_queue_front(&queue));
	for (size_t i = 0; i < 5; i++)
		push(&queue, &ops[i], 10, QMC_TIME_NEVER);
	for (uint64_t i = 0; i < 5; i++)
		assert_int_equal(qmt_queue_start(&queue)->id, i);
	assert_null(qmt_queue_start(&queue));
	assert_null(qmt_queue_pop(&queue));
	for (size_t i = 0; i < 5; i++) {
		assert_ptr_equal(qmt_queue_front(&queue)->op, &ops[i]);
		qmt_queue_retire(&queue, i == 2 ? QMLA_ERR_PERMISSION : QMLA_OK);
	}
	for (size_t i = 0; i < 5; i++) {
		assert_false(qmt_queue_is_empty(&queue));
		assert_ptr_equal(qmt_queue_pop(&queue), &ops[i]);
		assert_int_equal(ops[i].status, i == 2 ? QMLA_ERR_PERMISSION : QMLA_OK);
	}
	assert_true(qmt_queue_is_empty(&queue));
}

static void the_window_bounds_operations_and_bytes(void **state)
{
	struct qmt_queue queue;
	struct qmt_op *ops = calloc(QMT_WINDOW_OPS + 2, sizeof(*ops));
	unsigned started = 0;

	(void)state;
	qmt_queue_init(&queue);
	for (size_t i = 0; i < QMT_WINDOW_OPS + 2; i++)
		push(&queue, &ops[i], 1, QMC_TIME_NEVER);
	while (qmt_queue_start(&queue))
		started++;
	assert_int_equal(started, QMT_WINDOW_OPS);
	qmt_queue_retire(&queue, QMLA_OK);
	assert_non_null(qmt_queue_start(&queue));
	assert_null(qmt_queue_start(&queue));

	qmt_queue_init(&queue);
	for (size_t i = 0; i < 4; i++)
		push(&queue, &ops[i], i == 1 ? 2 * QMT_WINDOW_BYTES : QMT_WINDOW_BYTES / 2,
		     QMC_TIME_NEVER);
	assert_non_null(qmt_queue_start(&queue));
	assert_null(qmt_queue_start(&queue)); /* too large beside another */
	qmt_queue_retire(&queue, QMLA_OK);
	assert_non_null(qmt_queue_start(&queue)); /* alone it may go */
	assert_null(qmt_queue_start(&queue));
	qmt_queue_retire(&queue, QMLA_OK);
	assert_non_null(qmt_queue_start(&queue));
	assert_non_null(qmt_queue_start(&queue));
	free(ops);
}

static void cancelling(void **state)
{
	struct qmt_queue queue;
	struct qmt_op ops[5];
	struct qmt_wire_op *busy;

	(void)state;
	qmt_queue_init(&queue);
	for (size_t i = 0; i < 5; i++)
		push(&queue, &ops[i], 10, QMC_TIME_NEVER);
	qmt_queue_start(&queue);
	busy = qmt_queue_start(&queue);
	busy->busy = true;

	qmt_queue_cancel(&queue, &ops[4]); /* last queued: the tail must follow */
	qmt_queue_cancel(&queue, &ops[0]); /* on the wire */
	qmt_queue_cancel(&queue, &ops[1]); /* on the wire, its memory in use */
	assert_ptr_equal(qmt_queue_pop(&queue), &ops[4]);
	assert_ptr_equal(qmt_queue_pop(&queue), &ops[0]);
	assert_null(qmt_queue_pop(&queue));
	assert_int_equal(ops[4].status, QMLA_ERR_CANCELLED);
	assert_int_equal(ops[0].status, QMLA_ERR_CANCELLED);
	qmt_queue_unbusy(busy, &queue);
	assert_ptr_equal(qmt_queue_pop(&queue), &ops[1]);
	assert_int_equal(ops[1].status, QMLA_ERR_CANCELLED);

	push(&queue, &ops[4], 10, QMC_TIME_NEVER);
	assert_ptr_equal(qmt_queue_start(&queue)->op, &ops[2]);
	assert_ptr_equal(qmt_queue_start(&queue)->op, &ops[3]);
	assert_ptr_equal(qmt_queue_start(&queue)->op, &ops[4]);
	/* The replies to what was cancelled complete nothing. */
	qmt_queue_retire(&queue, QMLA_OK);
	qmt_queue_retire(&queue, QMLA_OK);
	assert_null(qmt_queue_pop(&queue));
	qmt_queue_retire(&queue, QMLA_OK);
	assert_ptr_equal(qmt_queue_pop(&queue), &ops[2]);
}

static void deadlines(void **state)
{
	struct qmt_queue queue;
	struct qmt_op ops[5];

	(void)state;
	qmt_queue_init(&queue);
	push(&queue, &ops[0], 10, 500);
	qmt_queue_start(&queue);
	push(&queue, &ops[1], 10, 300);
	push(&queue, &ops[2], 10, 900);
	push(&queue, &ops[3], 10, 100);
	assert_false(qmt_queue_expire(&queue, 99));
	assert_int_equal(queue.next_deadline, 100);
	assert_false(qmt_queue_expire(&queue, 100));
	assert_ptr_equal(qmt_queue_pop(&queue), &ops[3]);
	assert_int_equal(ops[3].status, QMLA_ERR_DEADLINE);
	assert_int_equal(queue.next_deadline, 300);
	assert_false(qmt_queue_expire(&queue, 400));
	assert_ptr_equal(qmt_queue_pop(&queue), &ops[1]);
	/* After removals the list still takes ops at its end. */
	push(&queue, &ops[4], 10, 2000);
	assert_int_equal(queue.next_deadline, 500);
	assert_true(qmt_queue_expire(&queue, 500));
	qmt_queue_fail(&queue, 500, QMLA_ERR_UNAVAILABLE);
	assert_ptr_equal(qmt_queue_pop(&queue), &ops[0]);
	assert_int_equal(ops[0].status, QMLA_ERR_DEADLINE);
	assert_ptr_equal(qmt_queue_pop(&queue), &ops[2]);
	assert_int_equal(ops[2].status, QMLA_ERR_UNAVAILABLE);
	assert_ptr_equal(qmt_queue_pop(&queue), &ops[4]);
	assert_int_equal(ops[4].status, QMLA_ERR_UNAVAILABLE);
	assert_true(qmt_queue_is_empty(&queue));
	assert_int_equal(queue.next_deadline, QMC_TIME_NEVER);
}

/* What was cancelled on the wire belongs to nobody: its deadline kills nothing. */
static void cancelled_operations_have_no_deadline(void **state)
{
	struct qmt_queue queue;
	struct qmt_op op;

	(void)state;
	qmt_queue_init(&queue);
	push(&queue, &op, MIB, 100);
	qmt_queue_start(&queue);
	qmt_queue_cancel(&queue, &op);
	assert_ptr_equal(qmt_queue_pop(&queue), &op);
	assert_true(qmt_queue_is_empty(&queue));
	assert_false(qmt_queue_expire(&queue, 1000));
	assert_int_equal(queue.next_deadline, QMC_TIME_NEVER);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(operations_complete_in_order),
		cmocka_unit_test(the_window_bounds_operations_and_bytes),
		cmocka_unit_test(cancelling),
		cmocka_unit_test(deadlines),
		cmocka_unit_test(cancelled_operations_have_no_deadline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
