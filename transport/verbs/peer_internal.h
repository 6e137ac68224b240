/* SPDX-License-Identifier: Apache-2.0 */
/** @file What the files behind peer.h share. */
#ifndef QMT_VERBS_PEER_INTERNAL_H
#define QMT_VERBS_PEER_INTERNAL_H

#include "transport/verbs/peer.h"

/** Kind of a work request, in the upper half of its wr_id. */
enum qmt_wr_kind { WR_RECEIVE = 1, WR_MESSAGE, WR_OPEN, WR_CLOSE, WR_PULL, WR_PING };

static inline uint64_t qmt_wr(enum qmt_wr_kind kind, uint32_t index)
{
	return (uint64_t)kind << 32 | index;
}

static inline enum qmt_wr_kind qmt_wr_kind(uint64_t wr_id)
{
	return (enum qmt_wr_kind)(wr_id >> 32);
}

static inline uint32_t qmt_wr_index(uint64_t wr_id)
{
	return (uint32_t)wr_id;
}

/** Marks the peer for its end; the first reason counts, and is logged. */
void qmt_verbs_peer_give_up(struct qmt_verbs_peer *peer, qmla_status_t why, const char *what);

/** As give up, but the peer is told first, and has a moment to hear it. */
void qmt_verbs_peer_part(struct qmt_verbs_peer *peer, qmla_status_t why, const char *what);

/** Sends @p message; gives the peer up when it cannot. */
void qmt_verbs_peer_send(struct qmt_verbs_peer_rail *rail, const struct qmt_message *message);

/* Writes: peer_write.c. Each answers by message, now or when its work completes. */

void qmt_verbs_peer_on_write(struct qmt_verbs_peer_rail *rail, const struct qmt_message *message);
void qmt_verbs_peer_on_done(struct qmt_verbs_peer_rail *rail, const struct qmt_message *message);
void qmt_verbs_peer_on_pull(struct qmt_verbs_peer_rail *rail, const struct qmt_message *message);

/** The device has bound the windows of grant @p index. */
void qmt_verbs_peer_on_opened(struct qmt_verbs_peer_rail *rail, uint32_t index);

/** Posts local work that waits; nothing may be on the wire. For ports with local_alone. */
void qmt_verbs_peer_do_local(struct qmt_verbs_peer_rail *rail);

/** The device has invalidated the windows of grant @p index, or fetched its bytes. */
void qmt_verbs_peer_on_closed(struct qmt_verbs_peer_rail *rail, uint32_t index);

#endif /* QMT_VERBS_PEER_INTERNAL_H */
