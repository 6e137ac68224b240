/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/qp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/digest.h"
#include "common/log.h"

#define PSN_MASK     UINT32_C(0xffffff)
#define ACK_VARIABLE "QMLA_RDMA_ACK_TIMEOUT"
#define ACK_TIMEOUT  15 /* 4.096 us * 2^15 = 134 ms */
#define ACK_LEAST    14
#define ACK_MOST     22 /* 17 s a try */
#define RETRIES      6  /* 0.9 s until a peer counts as gone; 7 is for ever on Soft-RoCE */
#define RNR_RETRIES  6  /* 7 would be for ever */
#define RNR_TIMER    12 /* 0.64 ms */
#define HOPS         255
#define READS_MAX    64 /* more gain nothing and cost the device memory */

static uint8_t clamp_reads(int value)
{
	if (value < 1)
		return 1;
	return (uint8_t)(value > READS_MAX ? READS_MAX : value);
}

static qmla_status_t make_channel(struct qmt_qp *qp)
{
	int flags;

	qp->channel = qp->port->api->create_comp_channel(qp->port->context);
	if (!qp->channel)
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	flags = fcntl(qp->channel->fd, F_GETFL);
	if (flags < 0 || fcntl(qp->channel->fd, F_SETFL, flags | O_NONBLOCK) != 0)
		return QMLA_ERR_INTERNAL;
	return QMLA_OK;
}

static qmla_status_t make_queues(struct qmt_qp *qp, const struct qmt_qp_limits *limits, void *user)
{
	const struct qmt_verbs_api *api = qp->port->api;
	struct ibv_qp_init_attr attr = {
		.qp_context = user,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = limits->sends,
			.max_recv_wr = limits->receives,
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = limits->inline_bytes},
	};

	/* One entry for each work request there can be: it cannot overrun. */
	qp->cq = api->create_cq(qp->port->context, (int)(limits->sends + limits->receives), user,
				qp->channel, 0);
	if (!qp->cq)
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	attr.send_cq = attr.recv_cq = qp->cq;
	qp->qp = api->create_qp(qp->pd, &attr);
	return qp->qp ? QMLA_OK : QMLA_ERR_RESOURCE_EXHAUSTED;
}

static qmla_status_t initialise(struct qmt_qp *qp, int access)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = 0,
		.port_num = qp->port->number,
		.qp_access_flags = (unsigned)access,
	};

	return qp->port->api->modify_qp(qp->qp, &attr,
					IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS) == 0
		       ? QMLA_OK
		       : QMLA_ERR_INTERNAL;
}

static qmla_status_t describe_self(struct qmt_qp *qp)
{
	uint32_t psn;
	qmla_status_t status = qmc_random_bytes(&psn, sizeof(psn));

	qp->self = (struct qmt_qp_address){
		.qpn = qp->qp->qp_num,
		.psn = psn & PSN_MASK,
		.gid = qp->state.gid,
		.lid = qp->state.lid,
		.mtu = (uint8_t)qp->state.mtu,
		.reads_served = clamp_reads(qp->port->attr.max_qp_rd_atom),
		.reads_started = clamp_reads(qp->port->attr.max_qp_init_rd_atom),
		.ethernet = qp->state.ethernet,
	};
	return status;
}

qmla_status_t qmt_qp_create(const struct qmt_port *port, struct ibv_pd *pd, int access,
			    const struct qmt_qp_limits *limits, struct ibv_comp_channel *channel,
			    void *user, struct qmt_qp *out)
{
	struct qmt_qp made = {.port = port, .pd = pd, .channel = channel};
	qmla_status_t status = qmt_port_query(port, &made.state);

	if (status != QMLA_OK) {
		qmc_warn_limited("verbs", "%s port %u is down or has no usable GID", port->name,
				 port->number);
		return status;
	}
	if (!channel)
		status = make_channel(&made);
	if (status == QMLA_OK)
		status = make_queues(&made, limits, user);
	if (status == QMLA_OK)
		status = initialise(&made, access);
	if (status == QMLA_OK)
		status = describe_self(&made);
	if (status != QMLA_OK) {
		qmc_warn_limited("verbs", "%s: cannot make a queue pair: %s", port->name,
				 strerror(errno));
		qmt_qp_destroy(&made, channel);
		return status;
	}
	*out = made;
	return QMLA_OK;
}

static uint8_t smaller(uint8_t a, uint8_t b)
{
	return a < b ? a : b;
}

uint32_t qmt_qp_read_depth(const struct qmt_qp *qp, const struct qmt_qp_address *peer)
{
	return smaller(qp->self.reads_started, peer->reads_served);
}

static int ready_to_receive(struct qmt_qp *qp, const struct qmt_qp_address *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = (enum ibv_mtu)smaller((uint8_t)qp->state.mtu, peer->mtu),
		.dest_qp_num = peer->qpn,
		.rq_psn = peer->psn & PSN_MASK,
		.max_dest_rd_atomic = smaller(qp->self.reads_served, peer->reads_started),
		.min_rnr_timer = RNR_TIMER,
		.ah_attr = {.dlid = peer->lid, .port_num = qp->port->number},
	};

	/* RoCE has no other address; InfiniBand needs the LID only, inside of one subnet. */
	if (qp->state.ethernet) {
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.dgid = peer->gid;
		attr.ah_attr.grh.sgid_index = (uint8_t)qp->state.gid_index;
		attr.ah_attr.grh.hop_limit = HOPS;
	}
	return qp->port->api->modify_qp(qp->qp, &attr,
					IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

/* For fabrics, or emulators, that take longer: as the standard counts, 4.096 us * 2^n. */
static uint8_t ack_timeout(void)
{
	const char *text = getenv(ACK_VARIABLE);
	char *end;
	long value;

	if (!text || !text[0])
		return ACK_TIMEOUT;
	value = strtol(text, &end, 10);
	if (*end || value < ACK_LEAST || value > ACK_MOST) {
		qmc_warn_limited("verbs", ACK_VARIABLE "=%s is not %d to %d: using %d", text,
				 ACK_LEAST, ACK_MOST, ACK_TIMEOUT);
		return ACK_TIMEOUT;
	}
	return (uint8_t)value;
}

static int ready_to_send(struct qmt_qp *qp, const struct qmt_qp_address *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = ack_timeout(),
		.retry_cnt = RETRIES,
		.rnr_retry = RNR_RETRIES,
		.sq_psn = qp->self.psn,
		.max_rd_atomic = (uint8_t)qmt_qp_read_depth(qp, peer),
	};

	return qp->port->api->modify_qp(qp->qp, &attr,
					IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC);
}

qmla_status_t qmt_qp_connect(struct qmt_qp *qp, const struct qmt_qp_address *peer)
{
	int error = ready_to_receive(qp, peer);

	if (error == 0)
		error = ready_to_send(qp, peer);
	if (error == 0)
		return QMLA_OK;
	/* libibverbs gives an errno value, or -1 and errno. */
	qmc_warn_limited("verbs", "%s: the queue pair does not come up: %s", qp->port->name,
			 strerror(error > 0 ? error : errno));
	return QMLA_ERR_UNAVAILABLE;
}

void qmt_qp_fail(struct qmt_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	if (qp->qp)
		(void)qp->port->api->modify_qp(qp->qp, &attr, IBV_QP_STATE);
}

#define DRAIN_NS   (100 * QMC_NS_PER_MS)
#define DRAIN_MARK UINT64_MAX
#define DRAIN_POLL 16

/* True when the mark came. */
static bool poll_for_mark(struct qmt_qp *qp, bool *any)
{
	struct ibv_wc wcs[DRAIN_POLL];
	int n = qp->port->api->poll_cq(qp->cq, DRAIN_POLL, wcs);

	*any = n > 0;
	for (int i = 0; i < n; i++) {
		if (wcs[i].wr_id == DRAIN_MARK)
			return true;
	}
	return n < 0;
}

void qmt_qp_drain(struct qmt_qp *qp)
{
	struct ibv_send_wr mark = {.wr_id = DRAIN_MARK,
				   .opcode = IBV_WR_RDMA_WRITE,
				   .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	qmc_time_t deadline = qmc_clock_after(DRAIN_NS);
	bool any;

	/* What is posted in error state is flushed behind all the rest. */
	if (!qp->qp || qp->port->api->post_send(qp->qp, &mark, &bad) != 0)
		return;
	while (!poll_for_mark(qp, &any) && qmc_clock_now() < deadline) {
		if (!any)
			qmc_clock_sleep_until(qmc_clock_after(200 * QMC_NS_PER_US));
	}
}

void qmt_qp_destroy(struct qmt_qp *qp, struct ibv_comp_channel *shared)
{
	const struct qmt_verbs_api *api = qp->port ? qp->port->api : NULL;

	if (!api)
		return;
	if (qp->qp && api->destroy_qp(qp->qp) != 0)
		qmc_error("verbs", "%s: a queue pair cannot be destroyed: %s", qp->port->name,
			  strerror(errno));
	if (qp->cq) {
		if (qp->events)
			api->ack_cq_events(qp->cq, qp->events);
		if (api->destroy_cq(qp->cq) != 0)
			qmc_error("verbs", "%s: a completion queue cannot be destroyed: %s",
				  qp->port->name, strerror(errno));
	}
	if (qp->channel && qp->channel != shared)
		api->destroy_comp_channel(qp->channel);
	memset(qp, 0, sizeof(*qp));
}

unsigned qmt_gid_common_bits(const union ibv_gid *a, const union ibv_gid *b)
{
	unsigned bits = 0;

	for (size_t i = 0; i < sizeof(a->raw); i++) {
		uint8_t differ = a->raw[i] ^ b->raw[i];

		if (differ == 0) {
			bits += 8;
			continue;
		}
		while (!(differ & 0x80)) {
			differ = (uint8_t)(differ << 1);
			bits++;
		}
		break;
	}
	return bits;
}

bool qmt_qp_can_pair(const struct qmt_qp_address *a, const struct qmt_qp_address *b)
{
	if (a->ethernet != b->ethernet)
		return false;
	/* The first half of an InfiniBand GID is the subnet. */
	return a->ethernet || qmt_gid_common_bits(&a->gid, &b->gid) >= 64;
}
