/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/lane.h"

#include <string.h>

#include "client/cache/calls.h"
#include "common/log.h"

#define LANE_OPS          128 /* as many on the wire as come in and wait to be verified */
#define LANE_WINDOW_BYTES (UINT64_C(16) << 20)

enum slot_state { SLOT_FREE, SLOT_POSTED, SLOT_AGAIN };

struct slot {
	struct qmt_op op;
	struct qml_piece *piece;
	enum slot_state state;
};

struct lane {
	struct qml_transfer *transfer;
	struct qml_link *link;
	struct qml_connection connection; /* endpoint NULL: none */
	struct slot slots[LANE_OPS];
	size_t posted, again;
	uint64_t posted_bytes;
	qmc_time_t progress; /* when something last got through */
	unsigned breaks;     /* connections lost since then */
};

static qmc_time_t sooner(qmc_time_t a, qmc_time_t b)
{
	return a < b ? a : b;
}

static int64_t stall_ns(const struct lane *lane)
{
	return qml_node_settings(lane->transfer->node)->call_ns;
}

static void lower_stop(struct qml_transfer *transfer, size_t index)
{
	size_t stop = atomic_load_explicit(transfer->stop, memory_order_relaxed);

	/* Relaxed: a hint that saves work, results are joined by the crew's lock. */
	while (index < stop &&
	       !atomic_compare_exchange_weak_explicit(transfer->stop, &stop, index,
						      memory_order_relaxed, memory_order_relaxed))
		;
}

static void settle_piece(struct lane *lane, struct qml_piece *piece, qmla_status_t status)
{
	piece->status = status;
	if (status != QMLA_OK)
		lower_stop(lane->transfer, piece->index);
}

static struct qml_piece *next_piece(struct qml_transfer *transfer)
{
	size_t at = atomic_fetch_add_explicit(&transfer->next_, 1, memory_order_relaxed);

	if (at >= transfer->count)
		return NULL;
	if (transfer->pieces[at].index > atomic_load_explicit(transfer->stop, memory_order_relaxed))
		return NULL; /* in rising order: none of the later ones is wanted either */
	return &transfer->pieces[at];
}

/* A link that can be connected to: a transport that does not reach gives way to the next. */
static qmla_status_t open_connection(struct lane *lane)
{
	struct qml_transfer *transfer = lane->transfer;
	qmc_time_t limit = sooner(transfer->deadline,
				  qmc_clock_after(qml_node_settings(transfer->node)->connect_ns));
	int64_t given = limit - qmc_clock_now();
	qmla_status_t status;

	for (;;) {
		qml_link_put(lane->link);
		lane->link = NULL;
		status = qml_calls_link(transfer->node, limit, &lane->link);
		if (status != QMLA_OK)
			return status;
		if (lane->link->incarnation != transfer->incarnation)
			return QMLA_ERR_PEER_RESTARTED;
		status = qml_calls_connection(transfer->node, lane->link, limit, &lane->connection);
		if (status == QMLA_OK) {
			qml_node_ruled_in(transfer->node, lane->link->ops);
			return QMLA_OK;
		}
		lane->connection.endpoint = NULL;
		if (status == QMLA_ERR_PEER_RESTARTED || !qml_node_usable(transfer->node))
			return status;
		if (!qml_node_rule_out(transfer->node, lane->link->ops))
			break;
	}
	qml_node_judge(transfer->node, status, given);
	return status;
}

static void close_connection(struct lane *lane)
{
	if (!lane->connection.endpoint)
		return;
	if (lane->posted == 0)
		qml_link_give(lane->link, &lane->connection);
	else
		qml_link_drop(lane->link, &lane->connection);
}

/* Everything under way or waiting to be sent again gets @p status. */
static void fail_all(struct lane *lane, qmla_status_t status)
{
	if (lane->connection.endpoint)
		qml_link_drop(lane->link, &lane->connection);
	for (size_t i = 0; i < LANE_OPS; i++) {
		if (lane->slots[i].state != SLOT_FREE)
			settle_piece(lane, lane->slots[i].piece, status);
		lane->slots[i].state = SLOT_FREE;
	}
	lane->posted = 0;
	lane->again = 0;
	lane->posted_bytes = 0;
}

static void post_slot(struct lane *lane, struct slot *slot)
{
	const struct qml_piece *piece = slot->piece;

	memset(&slot->op, 0, sizeof(slot->op));
	slot->op.access = lane->transfer->access;
	slot->op.remote = &lane->link->region;
	slot->op.remote_offset = piece->offset;
	slot->op.local = piece->local;
	slot->op.length = piece->length;
	memcpy(slot->op.capability, piece->capability, QMT_CAPABILITY_BYTES);
	slot->op.deadline = lane->transfer->deadline;
	slot->op.user = slot;
	if (lane->link->ops->endpoint_post(lane->connection.endpoint, &slot->op) == QMLA_OK) {
		slot->state = SLOT_POSTED;
		lane->posted++;
		lane->posted_bytes += piece->length;
	} else {
		slot->state = SLOT_AGAIN;
		lane->again++;
	}
}

static struct slot *free_slot(struct lane *lane)
{
	for (size_t i = 0; i < LANE_OPS; i++) {
		if (lane->slots[i].state == SLOT_FREE)
			return &lane->slots[i];
	}
	return NULL;
}

static void post_new(struct lane *lane)
{
	struct slot *slot;

	while (lane->again == 0 && (slot = free_slot(lane)) != NULL &&
	       (lane->posted < 2 || lane->posted_bytes < LANE_WINDOW_BYTES)) {
		slot->piece = next_piece(lane->transfer);
		if (!slot->piece)
			return;
		post_slot(lane, slot);
	}
}

/* A new connection for what was under way on a broken one. */
static qmla_status_t revive(struct lane *lane)
{
	bool stale = !lane->connection.fresh;
	qmla_status_t status;

	if (lane->connection.endpoint)
		qml_link_drop(lane->link, &lane->connection);
	/* An idle connection that the node had closed meanwhile is no sign of trouble. */
	if (!stale && ++lane->breaks > 1 &&
	    !(lane->link->ops->endpoint_offer &&
	      qml_node_rule_out(lane->transfer->node, lane->link->ops))) {
		qml_node_judge(lane->transfer->node, QMLA_ERR_UNAVAILABLE, 0);
		return QMLA_ERR_UNAVAILABLE;
	}
	status = open_connection(lane);
	for (size_t i = 0; i < LANE_OPS && status == QMLA_OK; i++) {
		if (lane->slots[i].state != SLOT_AGAIN)
			continue;
		lane->again--;
		post_slot(lane, &lane->slots[i]);
	}
	return status;
}

static qmla_status_t judge_read(struct lane *lane, struct qml_piece *piece)
{
	struct qml_transfer *transfer = lane->transfer;

	/* The bytes may be anyone's once the lease had ended: throw them away. */
	if (piece->lease && !qml_lease_covers(piece->lease, qmc_clock_now()))
		return QMLA_ERR_LEASE_EXPIRED;
	return transfer->landed ? transfer->landed(transfer->user, piece) : QMLA_OK;
}

/* The pool behind the link may belong to another identity by now: connect anew. */
static void doubt_link(struct lane *lane)
{
	qml_node_forget(lane->transfer->node, lane->link->incarnation);
}

static qmla_status_t judge_piece(struct lane *lane, struct qml_piece *piece, qmla_status_t status)
{
	if (status == QMLA_ERR_PERMISSION)
		doubt_link(lane);
	if (lane->transfer->access == QMT_WRITE)
		return status == QMLA_OK && qmc_clock_now() >= piece->expires
			       ? QMLA_ERR_LEASE_EXPIRED
			       : status;
	if (status == QMLA_OK)
		return judge_read(lane, piece);
	if (status == QMLA_ERR_PERMISSION && piece->lease &&
	    !qml_lease_covers(piece->lease, qmc_clock_now()))
		return QMLA_ERR_LEASE_EXPIRED;
	return status;
}

static void take_completion(struct lane *lane, struct qmt_op *op)
{
	struct slot *slot = op->user;

	lane->posted--;
	lane->posted_bytes -= slot->piece->length;
	if (op->status == QMLA_ERR_UNAVAILABLE &&
	    !lane->link->ops->endpoint_alive(lane->connection.endpoint)) {
		slot->state = SLOT_AGAIN;
		lane->again++;
		return;
	}
	slot->state = SLOT_FREE;
	lane->progress = qmc_clock_now();
	lane->breaks = 0;
	lane->connection.fresh = true; /* it works: the next break is a real one */
	settle_piece(lane, slot->piece, judge_piece(lane, slot->piece, op->status));
}

/* Tends the leases of what is under way; returns when to look again. */
static qmc_time_t tend_leases(struct lane *lane)
{
	qmc_time_t next = QMC_TIME_NEVER;
	struct qml_lease *last = NULL;

	for (size_t i = 0; i < LANE_OPS; i++) {
		struct slot *slot = &lane->slots[i];

		if (slot->state == SLOT_FREE || !slot->piece->lease || slot->piece->lease == last)
			continue;
		last = slot->piece->lease;
		next = sooner(next, qml_lease_tend(last));
	}
	return next;
}

/* The endpoint failed as a whole: whatever it still held goes on the next one. */
static void break_up(struct lane *lane)
{
	qml_link_drop(lane->link, &lane->connection);
	for (size_t i = 0; i < LANE_OPS; i++) {
		if (lane->slots[i].state == SLOT_POSTED) {
			lane->slots[i].state = SLOT_AGAIN;
			lane->again++;
		}
	}
	lane->posted = 0;
	lane->posted_bytes = 0;
}

/* Nothing came for a while: only a lease wanted attention, or this node is given up. */
static qmla_status_t handle_silence(struct lane *lane)
{
	struct qml_node *node = lane->transfer->node;
	qmc_time_t now = qmc_clock_now();

	if (now >= lane->transfer->deadline) {
		qml_node_judge(node, QMLA_ERR_DEADLINE, now - lane->progress);
		return QMLA_ERR_DEADLINE;
	}
	if (now - lane->progress < stall_ns(lane))
		return QMLA_OK;
	qmc_warn_limited("client", "node %s moved nothing for %lld ms", qml_node_name(node),
			 (long long)(stall_ns(lane) / QMC_NS_PER_MS));
	qml_node_judge(node, QMLA_ERR_DEADLINE, stall_ns(lane));
	return QMLA_ERR_DEADLINE;
}

static qmla_status_t wait_once(struct lane *lane)
{
	qmc_time_t limit = sooner(lane->transfer->deadline, lane->progress + stall_ns(lane));
	struct qmt_op *completed = NULL;
	qmla_status_t status;

	limit = sooner(limit, tend_leases(lane));
	status = lane->link->ops->endpoint_wait(lane->connection.endpoint, limit, &completed);
	if (status == QMLA_ERR_DEADLINE)
		return handle_silence(lane);
	if (status == QMLA_OK && completed)
		take_completion(lane, completed);
	else
		break_up(lane);
	return QMLA_OK;
}

void qml_lane_run(void *transfer)
{
	struct lane lane = {.transfer = transfer, .progress = qmc_clock_now()};
	qmla_status_t status = open_connection(&lane);

	while (status == QMLA_OK) {
		post_new(&lane);
		if (lane.posted)
			status = wait_once(&lane);
		else if (lane.again)
			status = revive(&lane);
		else
			break;
	}
	if (status != QMLA_OK) {
		fail_all(&lane, status);
		/* Pieces that no other lane takes are given this as their reason. */
		atomic_store_explicit(&lane.transfer->failure_, status, memory_order_relaxed);
	}
	close_connection(&lane);
	qml_link_put(lane.link);
}
