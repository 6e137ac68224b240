/* SPDX-License-Identifier: Apache-2.0 */
/* Work requests of an endpoint's rails: collected, then posted in one call. */
#include <string.h>

#include "transport/verbs/endpoint_internal.h"

/* So much and the device is told at once, to be at work while more is collected. */
#define POST_BYTES   (UINT64_C(16) << 10)
#define SIGNAL_EVERY 8
#define SIGNAL_BYTES (UINT64_C(256) << 10) /* a block is told as soon as it is there */

static void post_batch(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail)
{
	struct ibv_send_wr *bad;
	size_t count = rail->batched;

	if (count == 0 || !rail->qp.qp)
		return;
	rail->batched = 0;
	rail->batched_bytes = 0;
	for (size_t i = 0; i + 1 < count; i++)
		rail->wrs[i].next = &rail->wrs[i + 1];
	rail->wrs[count - 1].next = NULL;
	if (endpoint->domain->api->post_send(rail->qp.qp, rail->wrs, &bad) != 0)
		qmt_verbs_die(endpoint, "the device takes no work");
}

static void flush_rail(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail)
{
	if (rail->batched > 0) {
		/* The last always: without it nothing would tell of those before. */
		rail->wrs[rail->batched - 1].send_flags |= IBV_SEND_SIGNALED;
		rail->unsignalled = 0;
		rail->unsignalled_bytes = 0;
	}
	post_batch(endpoint, rail);
}

void qmt_verbs_flush(struct qmt_verbs_endpoint *endpoint)
{
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		if (endpoint->rails[i].used)
			flush_rail(endpoint, &endpoint->rails[i]);
	}
}

struct ibv_send_wr *qmt_verbs_add(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail,
				  const struct qmt_segment *segment, struct ibv_sge sge)
{
	struct ibv_send_wr *wr;

	/* What is posted here need not tell of its end: there is more behind it. */
	if (rail->batched == QMT_BATCH || rail->batched_bytes >= POST_BYTES)
		post_batch(endpoint, rail);
	rail->sges[rail->batched] = sge;
	wr = &rail->wrs[rail->batched];
	memset(wr, 0, sizeof(*wr));
	wr->wr_id = rail->tail;
	wr->sg_list = &rail->sges[rail->batched++];
	wr->num_sge = 1;
	rail->ring[rail->tail++ % QMT_RING] = *segment;
	rail->bytes += segment->bytes;
	rail->batched_bytes += segment->bytes;
	rail->unsignalled_bytes += segment->bytes;
	if (++rail->unsignalled >= SIGNAL_EVERY || rail->unsignalled_bytes >= SIGNAL_BYTES) {
		wr->send_flags = IBV_SEND_SIGNALED;
		rail->unsignalled = 0;
		rail->unsignalled_bytes = 0;
	}
	return wr;
}

bool qmt_verbs_tell(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail,
		    const struct qmt_message *message)
{
	const struct qmt_segment segment = {.kind = SEGMENT_MESSAGE, .bounce = QMT_NO_BOUNCE};
	struct ibv_send_wr *wr;

	if (!qmt_verbs_has_room(rail) || !qmt_mail_has_room(&rail->mail))
		return false;
	wr = qmt_verbs_add(endpoint, rail, &segment, qmt_mail_write(&rail->mail, message));
	wr->opcode = IBV_WR_SEND;
	return true;
}

void qmt_verbs_probe(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail)
{
	const struct qmt_segment segment = {.kind = SEGMENT_PROBE, .bounce = QMT_NO_BOUNCE};
	struct ibv_send_wr *wr;

	if (!qmt_verbs_has_room(rail))
		return;
	wr = qmt_verbs_add(endpoint, rail, &segment, (struct ibv_sge){0});
	wr->num_sge = 0;
	/* Servers without windows let nobody write, not even nothing. */
	wr->opcode = endpoint->answer.write_mode == QMT_WRITE_WINDOW ? IBV_WR_RDMA_WRITE
								     : IBV_WR_RDMA_READ;
}
