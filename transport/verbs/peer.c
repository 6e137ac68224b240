/* SPDX-License-Identifier: Apache-2.0 */
/* What comes in on a peer's queue pairs. */
#include "transport/verbs/peer.h"

#include <string.h>

#include "common/log.h"
#include "transport/verbs/peer_internal.h"

#define TURN_POLLS 8 /* then others have their turn */
#define POLL_BATCH 16
#define EVENTS_ACK 64
#define PART_NS    (20 * QMC_NS_PER_MS) /* a fence waits that long at most */

void qmt_verbs_peer_give_up(struct qmt_verbs_peer *peer, qmla_status_t why, const char *what)
{
	if (peer->gone)
		return;
	peer->gone = true;
	if (!peer->parting) /* then the reason is known */
		peer->why = why;
	if (what)
		qmc_warn_limited("verbs", "connection %016llx is dropped: %s",
				 (unsigned long long)qmt_connection_number(peer->connection), what);
}

/*
 * A queue pair that is just taken away says nothing to a peer that waits for a message.
 * Whether it hears or not, its queue pair goes after that moment.
 */
void qmt_verbs_peer_part(struct qmt_verbs_peer *peer, qmla_status_t why, const char *what)
{
	if (peer->gone || peer->parting)
		return;
	peer->parting = qmc_clock_after(PART_NS);
	peer->why = why;
	qmc_warn_limited("verbs", "connection %016llx is dropped: %s",
			 (unsigned long long)qmt_connection_number(peer->connection), what);
	qmt_verbs_peer_leave(peer);
}

static void post_message(struct qmt_verbs_peer_rail *rail, const struct qmt_message *message)
{
	struct ibv_send_wr wr = {0}, *bad;
	struct ibv_sge sge;

	if (!qmt_mail_has_room(&rail->mail)) {
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE, "it takes no messages");
		return;
	}
	sge = qmt_mail_write(&rail->mail, message);
	wr.wr_id = qmt_wr(WR_MESSAGE, 0);
	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	rail->wires++;
	if (rail->peer->context->api->post_send(rail->qp.qp, &wr, &bad) != 0)
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE,
				       "a message cannot be posted");
}

void qmt_verbs_peer_send(struct qmt_verbs_peer_rail *rail, const struct qmt_message *message)
{
	if (rail->peer->gone)
		return;
	if (!rail->qp.port->local_alone ||
	    (rail->locals == 0 && rail->waiting_head == rail->waiting_tail))
		post_message(rail, message);
	else if (rail->waiting_tail - rail->waiting_head < QMT_WAITING_MAX)
		rail->waiting[rail->waiting_tail++ % QMT_WAITING_MAX] = *message;
	else
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE, "it takes no messages");
}

/* One kind of work after the other: messages, then windows once all of those have arrived. */
static void alternate(struct qmt_verbs_peer_rail *rail)
{
	if (!rail->qp.port->local_alone)
		return;
	while (rail->locals == 0 && rail->waiting_head != rail->waiting_tail && !rail->peer->gone)
		post_message(rail, &rail->waiting[rail->waiting_head++ % QMT_WAITING_MAX]);
	if (rail->wires == 0 && !rail->peer->gone)
		qmt_verbs_peer_do_local(rail);
}

static void count_report(struct qmt_verbs_peer *peer, const struct qmt_message *message)
{
	/* Relaxed: figures for an operator, and only as true as the peer is. */
	atomic_fetch_add_explicit(&peer->context->reads, message->offset, memory_order_relaxed);
	atomic_fetch_add_explicit(&peer->context->bytes_read, message->length,
				  memory_order_relaxed);
}

static void on_hello(struct qmt_verbs_peer_rail *rail, const struct qmt_message *message)
{
	const struct qmt_message welcome = {.kind = QMT_MESSAGE_WELCOME, .id = message->id};

	if (rail->heard || message->id != qmt_connection_number(rail->peer->connection)) {
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE, "a wrong hello");
		return;
	}
	rail->heard = true;
	rail->peer->greeted = true;
	qmt_verbs_peer_send(rail, &welcome);
}

static void on_message(struct qmt_verbs_peer_rail *rail, const struct qmt_message *message)
{
	const struct qmt_message heard = {.kind = QMT_MESSAGE_REPORT};
	struct qmt_verbs_peer *peer = rail->peer;

	if (peer->parting)
		return;
	if (message->kind != QMT_MESSAGE_HELLO && !rail->heard) {
		qmt_verbs_peer_give_up(peer, QMLA_ERR_UNAVAILABLE, "no hello came first");
		return;
	}
	switch (message->kind) {
	case QMT_MESSAGE_HELLO:
		on_hello(rail, message);
		break;
	case QMT_MESSAGE_WRITE:
		qmt_verbs_peer_on_write(rail, message);
		break;
	case QMT_MESSAGE_DONE:
		qmt_verbs_peer_on_done(rail, message);
		break;
	case QMT_MESSAGE_PULL:
		qmt_verbs_peer_on_pull(rail, message);
		break;
	case QMT_MESSAGE_REPORT:
		count_report(peer, message);
		qmt_verbs_peer_send(rail, &heard);
		break;
	case QMT_MESSAGE_BYE:
		count_report(peer, message);
		qmt_verbs_peer_give_up(peer, QMLA_ERR_UNAVAILABLE, NULL);
		break;
	case QMT_MESSAGE_WELCOME:
	case QMT_MESSAGE_GRANT:
	case QMT_MESSAGE_REPLY:
		qmt_verbs_peer_give_up(peer, QMLA_ERR_UNAVAILABLE,
				       "a message that only servers send");
		break;
	}
}

static void on_receive(struct qmt_verbs_peer_rail *rail, uint32_t slot, uint32_t bytes)
{
	struct qmt_message message;

	if (qmt_mail_read(&rail->mail, slot, bytes, &message) != QMLA_OK) {
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE, "a malformed message");
		return;
	}
	/* Back in the queue first: the answer allows the peer to send the next. */
	if (qmt_mail_receive(&rail->mail, &rail->qp, slot, qmt_wr(WR_RECEIVE, slot)) != QMLA_OK) {
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE,
				       "a receive cannot be posted");
		return;
	}
	on_message(rail, &message);
}

static void on_completion(struct qmt_verbs_peer_rail *rail, const struct ibv_wc *wc)
{
	struct qmt_verbs_peer *peer = rail->peer;

	if (wc->status != IBV_WC_SUCCESS) {
		/* Only the first error says something; the rest is flushed. */
		qmt_verbs_peer_give_up(peer, QMLA_ERR_UNAVAILABLE,
				       peer->context->api->wc_status_str(wc->status));
		return;
	}
	peer->heard = qmc_clock_now();
	switch (qmt_wr_kind(wc->wr_id)) {
	case WR_RECEIVE:
		on_receive(rail, qmt_wr_index(wc->wr_id), wc->byte_len);
		break;
	case WR_MESSAGE:
		rail->wires--;
		qmt_mail_sent(&rail->mail);
		break;
	case WR_OPEN:
		rail->locals--;
		qmt_verbs_peer_on_opened(rail, qmt_wr_index(wc->wr_id));
		break;
	case WR_CLOSE:
		rail->locals--;
		qmt_verbs_peer_on_closed(rail, qmt_wr_index(wc->wr_id));
		break;
	case WR_PULL:
		rail->wires--;
		qmt_verbs_peer_on_closed(rail, qmt_wr_index(wc->wr_id));
		break;
	case WR_PING:
		rail->wires--;
		rail->pinged = 0;
		break;
	}
}

/* False when the queue is empty. */
static bool poll_once(struct qmt_verbs_peer_rail *rail)
{
	struct ibv_wc wcs[POLL_BATCH];
	int n = rail->peer->context->api->poll_cq(rail->qp.cq, POLL_BATCH, wcs);

	if (n < 0) {
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE,
				       "its completions are lost");
		return false;
	}
	for (int i = 0; i < n && !rail->peer->gone; i++)
		on_completion(rail, &wcs[i]);
	alternate(rail);
	return n > 0 && !rail->peer->gone;
}

void qmt_verbs_peer_serve(struct qmt_verbs_peer_rail *rail)
{
	const struct qmt_verbs_api *api = rail->peer->context->api;

	rail->again = false;
	if (rail->qp.events >= EVENTS_ACK) {
		api->ack_cq_events(rail->qp.cq, rail->qp.events);
		rail->qp.events = 0;
	}
	for (int turn = 0; turn < TURN_POLLS; turn++) {
		if (poll_once(rail))
			continue;
		if (rail->peer->gone)
			return;
		/* What completed before the bell was set makes no sound: look once more. */
		if (api->req_notify_cq(rail->qp.cq, 0) != 0)
			qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE, "no events come");
		if (!poll_once(rail))
			return;
	}
	rail->again = true;
}

/* ---- times ---- */

/* A write of no bytes: the peer's device confirms it, without its processor. */
static void ping(struct qmt_verbs_peer_rail *rail)
{
	struct ibv_send_wr wr = {0}, *bad;

	wr.wr_id = qmt_wr(WR_PING, 0);
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.send_flags = IBV_SEND_SIGNALED;
	rail->pinged = qmc_clock_now();
	rail->wires++;
	if (rail->peer->context->api->post_send(rail->qp.qp, &wr, &bad) != 0)
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE, "a ping cannot be posted");
}

static void tend_grants(struct qmt_verbs_peer_rail *rail, qmc_time_t now, qmc_time_t *next)
{
	for (size_t i = 0; i < QMT_WRITE_DEPTH && rail->open > 0; i++) {
		struct qmt_grant *grant = &rail->grants[i];

		if (grant->state == GRANT_FREE)
			continue;
		/* The writer is not asked: its queue pair goes, so that nothing of it can land. */
		if (qmt_flight_is_fenced(&grant->flight))
			qmt_verbs_peer_part(
				rail->peer, QMLA_ERR_UNAVAILABLE,
				grant->state == GRANT_OPEN
					? "a ticket ended while its window was open"
					: "a ticket ended while its write was concluded");
		else if (now >= grant->deadline)
			qmt_verbs_peer_part(rail->peer, QMLA_ERR_DEADLINE,
					    "it stalls inside a write");
		else if (grant->deadline < *next)
			*next = grant->deadline;
	}
}

static void tend_rail(struct qmt_verbs_peer_rail *rail, qmc_time_t now, bool silent,
		      qmc_time_t *next)
{
	const char *reason = qmt_watched_reason(&rail->watched);

	if (reason)
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE, reason);
	tend_grants(rail, now, next);
	if (rail->pinged && now - rail->pinged >= rail->peer->context->idle_timeout_ns)
		qmt_verbs_peer_give_up(rail->peer, QMLA_ERR_UNAVAILABLE, "it answers no ping");
	if (silent && !rail->peer->parting && rail->locals == 0 && rail->heard && !rail->pinged &&
	    !rail->peer->gone)
		ping(rail);
}

/* Everything that was sent has been acknowledged by its device. */
static bool has_heard(const struct qmt_verbs_peer *peer)
{
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		if (peer->rails[i].used && peer->rails[i].mail.done != peer->rails[i].mail.sent)
			return false;
	}
	return true;
}

qmc_time_t qmt_verbs_peer_tend(struct qmt_verbs_peer *peer, qmc_time_t now)
{
	int64_t patience = peer->context->idle_timeout_ns;
	qmc_time_t next = peer->heard + (peer->greeted ? patience / 2 : patience);
	bool silent = peer->greeted && now >= next;

	/* Acquire: pairs with the release in qmt_verbs_peer_cut. */
	if (atomic_load_explicit(&peer->cut, memory_order_acquire))
		qmt_verbs_peer_give_up(peer, QMLA_ERR_PERMISSION, "its region has another owner");
	if (!peer->greeted && now >= next)
		qmt_verbs_peer_give_up(peer, QMLA_ERR_UNAVAILABLE,
				       "it never came to use its connection");
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		if (peer->rails[i].used)
			tend_rail(&peer->rails[i], now, silent, &next);
	}
	if (peer->parting && !peer->gone) {
		if (now >= peer->parting || has_heard(peer))
			qmt_verbs_peer_give_up(peer, peer->why, NULL);
		return peer->parting;
	}
	/* A ping is under way: its end wakes the thread, good or bad. */
	return silent ? now + patience : next;
}

void qmt_verbs_peer_leave(struct qmt_verbs_peer *peer)
{
	const struct qmt_message bye = {.kind = QMT_MESSAGE_BYE};

	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		if (!peer->rails[i].used || !peer->rails[i].heard)
			continue;
		qmt_verbs_peer_send(&peer->rails[i], &bye);
		return; /* one will do */
	}
}
