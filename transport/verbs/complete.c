/* SPDX-License-Identifier: Apache-2.0 */
/* What comes back to an endpoint: completions and the server's messages. */
#include <string.h>

#include "common/log.h"
#include "transport/verbs/endpoint_internal.h"

#define POLL_BATCH 32
#define POLL_TURNS 4
#define RECEIVE    (UINT64_C(1) << 63)
#define EVENTS_ACK 64

qmla_status_t qmt_verbs_listen(struct qmt_verbs_rail *rail)
{
	qmla_status_t status = QMLA_OK;

	for (uint32_t i = 0; i < QMT_RECEIVES && status == QMLA_OK; i++)
		status = qmt_mail_receive(&rail->mail, &rail->qp, i, RECEIVE | i);
	return status;
}

/* ---- the end of operations ---- */

static void retire(struct qmt_verbs_endpoint *endpoint)
{
	struct qmt_queue *queue = &endpoint->queue;
	struct qmt_wire_op *wire;

	while ((wire = qmt_queue_front(queue)) != NULL &&
	       qmt_verbs_extra(endpoint, queue->head)->stage == STAGE_DONE) {
		qmla_status_t status = qmt_verbs_extra(endpoint, queue->head)->status;

		qmt_queue_unbusy(wire, queue);
		qmt_queue_retire(queue, status);
	}
}

void qmt_verbs_finish(struct qmt_verbs_endpoint *endpoint, uint64_t index, qmla_status_t status)
{
	const struct qmt_wire_op *wire = qmt_verbs_wire(endpoint, index);
	struct qmt_verbs_extra *extra = qmt_verbs_extra(endpoint, index);

	if (extra->stage == STAGE_DONE)
		return;
	extra->stage = STAGE_DONE;
	extra->status = status;
	if (wire->access == QMT_WRITE) {
		endpoint->writing--;
	} else if (status == QMLA_OK) {
		endpoint->reads_done++;
		endpoint->bytes_done += wire->length;
	}
	retire(endpoint);
}

/* ---- work requests ---- */

static void on_read_segment(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail,
			    const struct qmt_segment *segment)
{
	const struct qmt_wire_op *wire = qmt_verbs_wire(endpoint, segment->op);
	struct qmt_verbs_extra *extra = qmt_verbs_extra(endpoint, segment->op);

	rail->reads--;
	extra->segments--;
	if (segment->bounce != QMT_NO_BOUNCE) {
		bool copied = wire->cancelled ||
			      qmt_bounce_copy(endpoint, segment->local,
					      qmt_bounce_memory(endpoint, segment->bounce),
					      segment->bytes);

		qmt_bounce_give(endpoint, segment->bounce);
		if (!copied) {
			qmt_verbs_die(endpoint, "a copy to the GPU failed");
			return;
		}
	}
	if (extra->segments == 0 && (wire->cancelled || extra->issued == wire->length))
		qmt_verbs_finish(endpoint, segment->op, QMLA_OK);
}

static void on_write_segment(struct qmt_verbs_endpoint *endpoint, const struct qmt_segment *segment)
{
	struct qmt_verbs_extra *extra = qmt_verbs_extra(endpoint, segment->op);

	qmt_bounce_give(endpoint, segment->bounce);
	extra->segments--;
	/* The reply may be seen before the device tells that it is done with the memory. */
	if (extra->segments == 0 && extra->replied)
		qmt_verbs_finish(endpoint, segment->op, extra->status);
}

/* Everything up to ring place @last is done. */
static void retire_segments(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail,
			    uint64_t last)
{
	while (endpoint->alive && rail->head != rail->tail && rail->head <= last) {
		const struct qmt_segment segment = rail->ring[rail->head++ % QMT_RING];

		rail->bytes -= segment.bytes;
		switch (segment.kind) {
		case SEGMENT_MESSAGE:
			qmt_mail_sent(&rail->mail);
			break;
		case SEGMENT_PROBE:
			break;
		case SEGMENT_READ:
			on_read_segment(endpoint, rail, &segment);
			break;
		case SEGMENT_WRITE:
			on_write_segment(endpoint, &segment);
			break;
		}
	}
}

/* ---- messages ---- */

/* The write that a message is about; NULL when there is none in @stage. */
static struct qmt_verbs_extra *find_write(struct qmt_verbs_endpoint *endpoint, uint64_t index)
{
	const struct qmt_queue *queue = &endpoint->queue;

	if (index < queue->head || index >= queue->tail ||
	    qmt_verbs_wire(endpoint, index)->access != QMT_WRITE)
		return NULL;
	return qmt_verbs_extra(endpoint, index);
}

static bool on_grant(struct qmt_verbs_endpoint *endpoint, const struct qmt_verbs_rail *rail,
		     const struct qmt_message *message)
{
	struct qmt_verbs_extra *extra = find_write(endpoint, message->id);

	if (!extra || extra->stage != STAGE_ASKED || extra->rail != rail->port)
		return false;
	memcpy(extra->rkeys, message->rkeys, sizeof(extra->rkeys));
	extra->stage = STAGE_WRITING;
	return true;
}

static bool on_window_reply(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail,
			    const struct qmt_message *message)
{
	struct qmt_verbs_extra *extra = find_write(endpoint, message->id);

	if (!extra || extra->replied || extra->rail != rail->port ||
	    (extra->stage != STAGE_ASKED && extra->stage != STAGE_FINISHING))
		return false;
	rail->writes--;
	extra->replied = true;
	extra->status = message->status;
	if (extra->segments == 0)
		qmt_verbs_finish(endpoint, message->id, message->status);
	return true;
}

static bool on_pull_reply(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail,
			  const struct qmt_message *message)
{
	uint64_t index = message->id >> 8;
	int bounce = (int)(message->id & 0xff);
	struct qmt_verbs_extra *extra = find_write(endpoint, index);
	const struct qmt_wire_op *wire = qmt_verbs_wire(endpoint, index);

	if (!extra || extra->stage != STAGE_PULLING || extra->segments == 0 ||
	    bounce >= QMT_BOUNCES || !endpoint->bounce.taken[bounce])
		return false;
	qmt_bounce_give(endpoint, bounce);
	rail->writes--;
	extra->segments--;
	if (extra->status == QMLA_OK)
		extra->status = message->status;
	if (extra->segments == 0 &&
	    (wire->cancelled || extra->status != QMLA_OK || extra->issued == wire->length))
		qmt_verbs_finish(endpoint, index, extra->status);
	return true;
}

static bool on_message(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail,
		       const struct qmt_message *message)
{
	switch (message->kind) {
	case QMT_MESSAGE_WELCOME:
		if (message->id != qmt_connection_number(endpoint->connection))
			return false;
		rail->up = true;
		return true;
	case QMT_MESSAGE_GRANT:
		return on_grant(endpoint, rail, message);
	case QMT_MESSAGE_REPLY:
		return endpoint->answer.write_mode == QMT_WRITE_WINDOW
			       ? on_window_reply(endpoint, rail, message)
			       : on_pull_reply(endpoint, rail, message);
	case QMT_MESSAGE_REPORT:
		endpoint->reporting = false;
		return true;
	case QMT_MESSAGE_BYE:
		qmt_verbs_die(endpoint, "the server said goodbye");
		return true;
	case QMT_MESSAGE_HELLO:
	case QMT_MESSAGE_WRITE:
	case QMT_MESSAGE_DONE:
	case QMT_MESSAGE_PULL:
		break;
	}
	return false;
}

static void on_receive(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail,
		       const struct ibv_wc *wc)
{
	uint32_t slot = (uint32_t)(wc->wr_id & ~RECEIVE);
	struct qmt_message message;

	if (qmt_mail_read(&rail->mail, slot, wc->byte_len, &message) != QMLA_OK ||
	    qmt_mail_receive(&rail->mail, &rail->qp, slot, wc->wr_id) != QMLA_OK ||
	    !on_message(endpoint, rail, &message))
		qmt_verbs_die(endpoint, "the server sent what makes no sense");
}

/* ---- polling ---- */

static void on_error(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail,
		     const struct ibv_wc *wc)
{
	/* The first error of a queue pair counts; what follows is flushed. */
	if (rail->up)
		qmt_verbs_die(endpoint, endpoint->domain->api->wc_status_str(wc->status));
	else if (!rail->broken)
		qmc_warn_limited("verbs", "%s: no connection: %s", rail->qp.port->name,
				 endpoint->domain->api->wc_status_str(wc->status));
	rail->broken = true;
}

static bool poll_rail(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail)
{
	struct ibv_wc wcs[POLL_BATCH];
	int n = endpoint->domain->api->poll_cq(rail->qp.cq, POLL_BATCH, wcs);

	if (n < 0) {
		qmt_verbs_die(endpoint, "completions are lost");
		return false;
	}
	if (n > 0)
		endpoint->heard = qmc_clock_now();
	for (int i = 0; i < n && endpoint->alive; i++) {
		if (wcs[i].status != IBV_WC_SUCCESS)
			on_error(endpoint, rail, &wcs[i]);
		else if (wcs[i].wr_id & RECEIVE)
			on_receive(endpoint, rail, &wcs[i]);
		else
			retire_segments(endpoint, rail, wcs[i].wr_id);
	}
	return n > 0;
}

bool qmt_verbs_poll(struct qmt_verbs_endpoint *endpoint)
{
	bool any = false;

	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		struct qmt_verbs_rail *rail = &endpoint->rails[i];
		const char *reason;

		if (!rail->used || rail->broken || !endpoint->alive)
			continue;
		reason = qmt_watched_reason(&rail->watched);
		if (reason) {
			if (rail->up)
				qmt_verbs_die(endpoint, reason);
			rail->broken = true;
			any = true;
			continue;
		}
		for (int turn = 0; turn < POLL_TURNS && endpoint->alive; turn++) {
			if (!poll_rail(endpoint, rail))
				break;
			any = true;
		}
	}
	return any;
}
