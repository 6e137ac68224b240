/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Reliable-connected queue pairs: made, brought up, taken down. Both sides use these;
 * what one needs of the other travels as a struct qmt_qp_address. Any thread, one at a
 * time for each queue pair.
 */
#ifndef QMT_VERBS_QP_H
#define QMT_VERBS_QP_H

#include "transport/verbs/device.h"

/** What one side of a queue pair tells the other. */
struct qmt_qp_address {
	uint32_t qpn;
	uint32_t psn; /**< 24 bits, random */
	union ibv_gid gid;
	uint16_t lid;
	uint8_t mtu;           /**< enum ibv_mtu */
	uint8_t reads_served;  /**< READs of the peer that are served at a time */
	uint8_t reads_started; /**< READs that are started at a time */
	bool ethernet;
};

struct qmt_qp {
	const struct qmt_port *port;
	struct ibv_pd *pd; /**< borrowed */
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq; /**< of both queues */
	struct ibv_qp *qp;
	unsigned events; /**< of the CQ, not acknowledged yet */
	struct qmt_qp_address self;
	struct qmt_port_state state; /**< of the port when it was made */
};

struct qmt_qp_limits {
	uint32_t sends, receives; /**< work requests */
	uint32_t inline_bytes;
};

/**
 * Makes a queue pair in @p pd, in state INIT, with peers allowed @p access. @p channel:
 * the one to use, which stays the caller's, or NULL: makes one of its own. @p user:
 * context of CQ and QP. QMLA_ERR_UNAVAILABLE: the port is down; QMLA_ERR_RESOURCE_EXHAUSTED.
 */
qmla_status_t qmt_qp_create(const struct qmt_port *port, struct ibv_pd *pd, int access,
			    const struct qmt_qp_limits *limits, struct ibv_comp_channel *channel,
			    void *user, struct qmt_qp *qp);

/** Connects to @p peer: ready to receive and to send. QMLA_ERR_UNAVAILABLE (logged). */
qmla_status_t qmt_qp_connect(struct qmt_qp *qp, const struct qmt_qp_address *peer);

/** READs this side may have under way at a time towards @p peer. */
uint32_t qmt_qp_read_depth(const struct qmt_qp *qp, const struct qmt_qp_address *peer);

/** Error state: the peer reaches nothing through it any more, and what is posted is flushed. */
void qmt_qp_fail(struct qmt_qp *qp);

/**
 * Waits, at most 100 ms, until everything that was posted to a failed queue pair has come
 * back; its completions are thrown away. A device may not let go of a busy one.
 */
void qmt_qp_drain(struct qmt_qp *qp);

/** Takes it down for good; on return the device touches no memory for it. Accepts a zeroed one. */
void qmt_qp_destroy(struct qmt_qp *qp, struct ibv_comp_channel *shared);

/** True when both may be connected: same kind of link and, for InfiniBand, same subnet. */
bool qmt_qp_can_pair(const struct qmt_qp_address *a, const struct qmt_qp_address *b);

/** Leading bits that two GIDs have in common: the more, the more likely one fabric. */
unsigned qmt_gid_common_bits(const union ibv_gid *a, const union ibv_gid *b);

#endif /* QMT_VERBS_QP_H */
