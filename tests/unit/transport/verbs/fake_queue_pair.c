/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs of the fake verbs: what moves, and what is refused. */
#include "fake_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct fake_qp *qp = calloc(1, sizeof(*qp));

	fake_demand(qp != NULL, "no memory");
	qp->base.context = pd->context;
	qp->base.pd = pd;
	qp->base.qp_context = attr->qp_context;
	qp->base.qp_type = attr->qp_type;
	qp->cq = (struct fake_cq *)attr->send_cq;
	qp->device = fake_context_of(pd->context)->device;
	qp->state = IBV_QPS_RESET;
	qp->max_send = attr->cap.max_send_wr;
	qp->max_receive = attr->cap.max_recv_wr;
	STAILQ_INIT(&qp->sends);
	STAILQ_INIT(&qp->queue);
	fake_enter();
	qp->base.qp_num = fake_place((void **)fake.qps, &fake.next_qp, qp);
	fake_pd_of(pd)->users++;
	fake_leave();
	return &qp->base;
}

static void complete_locked(struct fake_qp *qp, const struct fake_send *send,
			    enum ibv_wc_status status)
{
	const struct ibv_wc wc = {
		.wr_id = send->wr.wr_id, .status = status, .qp_num = qp->base.qp_num};

	fake.done++;
	if (status == IBV_WC_SUCCESS && !(send->wr.send_flags & IBV_SEND_SIGNALED))
		return;
	fake.signalled++;
	fake_push_locked(qp->cq, &wc, qp, send->place);
}

static void flush_locked(struct fake_qp *qp)
{
	struct fake_receive *receive;
	struct fake_send *send;

	qp->state = IBV_QPS_ERR;
	while ((send = STAILQ_FIRST(&qp->sends)) != NULL) {
		STAILQ_REMOVE_HEAD(&qp->sends, link);
		complete_locked(qp, send, IBV_WC_WR_FLUSH_ERR);
		free(send);
	}
	while ((receive = STAILQ_FIRST(&qp->queue)) != NULL) {
		const struct ibv_wc wc = {.wr_id = receive->wr_id,
					  .status = IBV_WC_WR_FLUSH_ERR,
					  .qp_num = qp->base.qp_num};

		STAILQ_REMOVE_HEAD(&qp->queue, link);
		fake_push_locked(qp->cq, &wc, NULL, 0);
		free(receive);
	}
}

static struct fake_mr *find_mr(uint32_t key)
{
	struct fake_mr *mr = key >> 8 < OBJECTS_MAX ? fake.mrs[key >> 8] : NULL;

	return mr && mr->base.lkey == key ? mr : NULL;
}

static bool inside(uint64_t address, uint64_t length, uint64_t base, uint64_t bytes)
{
	return address >= base && length <= bytes && address - base <= bytes - length;
}

static bool local_is_good(const struct fake_qp *qp, const struct ibv_sge *sge, int access)
{
	const struct fake_mr *mr = find_mr(sge->lkey);

	return mr && mr->base.pd == qp->base.pd && (mr->access & access) == access &&
	       inside(sge->addr, sge->length, (uint64_t)(uintptr_t)mr->base.addr, mr->base.length);
}

static bool window_allows(const struct fake_qp *remote, uint32_t key, uint64_t address,
			  uint64_t length, unsigned access)
{
	uint32_t index = (key & ~WINDOW_KEY) >> 8;
	const struct fake_mw *mw = index < OBJECTS_MAX ? fake.mws[index] : NULL;

	return mw && mw->valid && mw->rkey == key && mw->qp == remote && (mw->access & access) &&
	       inside(address, length, mw->address, mw->length);
}

static bool remote_allows(const struct fake_qp *remote, uint32_t key, uint64_t address,
			  uint64_t length, unsigned access)
{
	const struct fake_mr *mr;

	if (!(remote->access & access))
		return false;
	if (length == 0)
		return true;
	if (key & WINDOW_KEY)
		return window_allows(remote, key, address, length, access);
	mr = find_mr(key);
	return mr && mr->base.pd == remote->base.pd && ((unsigned)mr->access & access) &&
	       inside(address, length, (uint64_t)(uintptr_t)mr->base.addr, mr->base.length);
}

static struct fake_qp *find_remote(const struct fake_qp *qp)
{
	struct fake_qp *remote = qp->peer < OBJECTS_MAX ? fake.qps[qp->peer] : NULL;
	const struct fake_device *near = &fake.devices[qp->device], *far;
	bool addressed = false;

	if (!remote || (remote->state != IBV_QPS_RTR && remote->state != IBV_QPS_RTS) ||
	    remote->peer != qp->base.qp_num)
		return NULL;
	far = &fake.devices[remote->device];
	for (int i = 0; i < FAKE_GIDS && !near->infiniband; i++)
		addressed = addressed ||
			    memcmp(&far->gids[i].gid, &qp->peer_gid, sizeof(qp->peer_gid)) == 0;
	if (near->infiniband)
		addressed = far->infiniband;
	return addressed && near->fabric == far->fabric && near->state == IBV_PORT_ACTIVE &&
			       far->state == IBV_PORT_ACTIVE
		       ? remote
		       : NULL;
}

static enum ibv_wc_status bind_window(struct fake_qp *qp, const struct ibv_send_wr *wr,
				      uint32_t key)
{
	struct fake_mw *mw = (struct fake_mw *)wr->bind_mw.mw;
	struct fake_mr *mr = (struct fake_mr *)wr->bind_mw.bind_info.mr;
	uint32_t rkey = (mw->rkey & ~UINT32_C(0xff)) | (wr->bind_mw.rkey & 0xff);

	if (mw->valid || key != mw->rkey || mw->base.pd != qp->base.pd ||
	    mr->base.pd != qp->base.pd || !(mr->access & IBV_ACCESS_MW_BIND) ||
	    !(mr->access & IBV_ACCESS_LOCAL_WRITE) || rkey == mw->rkey ||
	    !inside(wr->bind_mw.bind_info.addr, wr->bind_mw.bind_info.length,
		    (uint64_t)(uintptr_t)mr->base.addr, mr->base.length))
		return IBV_WC_MW_BIND_ERR;
	mw->rkey = rkey;
	mw->qp = qp;
	mw->mr = mr;
	mw->address = wr->bind_mw.bind_info.addr;
	mw->length = wr->bind_mw.bind_info.length;
	mw->access = wr->bind_mw.bind_info.mw_access_flags;
	mw->valid = true;
	mr->windows++;
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status invalidate(struct fake_qp *qp, uint32_t key)
{
	uint32_t index = (key & ~WINDOW_KEY) >> 8;
	struct fake_mw *mw = index < OBJECTS_MAX ? fake.mws[index] : NULL;

	if (!(key & WINDOW_KEY) || !mw || mw->rkey != key || !mw->valid || mw->qp != qp)
		return IBV_WC_MW_BIND_ERR;
	fake_unbind_locked(mw);
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status deliver(struct fake_qp *remote, const struct fake_send *send)
{
	struct fake_receive *receive = STAILQ_FIRST(&remote->queue);
	struct ibv_wc wc = {.status = IBV_WC_SUCCESS, .opcode = IBV_WC_RECV};

	if (!receive)
		return IBV_WC_RNR_RETRY_EXC_ERR;
	if (send->sge.length > receive->sge.length)
		return IBV_WC_REM_INV_REQ_ERR;
	STAILQ_REMOVE_HEAD(&remote->queue, link);
	remote->receives--;
	memcpy((void *)(uintptr_t)receive->sge.addr, (void *)(uintptr_t)send->sge.addr,
	       send->sge.length);
	wc.wr_id = receive->wr_id;
	wc.byte_len = send->sge.length;
	wc.qp_num = remote->base.qp_num;
	fake_push_locked(remote->cq, &wc, NULL, 0);
	free(receive);
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status move(struct fake_qp *qp, struct fake_qp *remote,
			       const struct fake_send *send)
{
	bool read = send->wr.opcode == IBV_WR_RDMA_READ;
	uint64_t length = send->wr.num_sge ? send->sge.length : 0;
	uint64_t address = send->wr.wr.rdma.remote_addr;

	if (length > fake.devices[qp->device].max_msg_sz)
		return IBV_WC_LOC_LEN_ERR;
	if (length > 0 && !local_is_good(qp, &send->sge, read ? IBV_ACCESS_LOCAL_WRITE : 0))
		return IBV_WC_LOC_PROT_ERR;
	if (!remote_allows(remote, send->wr.wr.rdma.rkey, address, length,
			   read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE))
		return IBV_WC_REM_ACCESS_ERR;
	if (read) {
		memcpy((void *)(uintptr_t)send->sge.addr, (void *)(uintptr_t)address, length);
		fake.bytes_read[qp->device] += length;
	} else if (length > 0) {
		memcpy((void *)(uintptr_t)address, (void *)(uintptr_t)send->sge.addr, length);
	}
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status execute(struct fake_qp *qp, const struct fake_send *send)
{
	struct fake_qp *remote;
	enum ibv_wc_status status;

	if (fake.injecting && send->wr.opcode == fake.inject_opcode && fake.inject_skip-- == 0) {
		fake.injecting = false;
		return fake.inject_status;
	}
	if (send->wr.opcode == IBV_WR_BIND_MW)
		return bind_window(qp, &send->wr, send->window_key);
	if (send->wr.opcode == IBV_WR_LOCAL_INV)
		return invalidate(qp, send->wr.invalidate_rkey);
	remote = find_remote(qp);
	if (!remote)
		return IBV_WC_RETRY_EXC_ERR;
	if (send->wr.opcode == IBV_WR_SEND) {
		if (!local_is_good(qp, &send->sge, 0))
			return IBV_WC_LOC_PROT_ERR;
		return deliver(remote, send);
	}
	status = move(qp, remote, send);
	/* As on a wire, the one whose memory was meant to be touched stops too. */
	if (status == IBV_WC_REM_ACCESS_ERR)
		flush_locked(remote);
	return status;
}

static void run_locked(struct fake_qp *qp)
{
	struct fake_send *send;

	while (qp->state == IBV_QPS_RTS && (send = STAILQ_FIRST(&qp->sends)) != NULL) {
		enum ibv_wc_status status;

		if (fake.held == (int)send->wr.opcode)
			return;
		status = execute(qp, send);
		/* What it did may have taken this queue pair down. */
		if (STAILQ_FIRST(&qp->sends) != send)
			return;
		STAILQ_REMOVE_HEAD(&qp->sends, link);
		complete_locked(qp, send, status);
		free(send);
		if (status != IBV_WC_SUCCESS)
			flush_locked(qp);
	}
}

void fake_run_all(void)
{
	for (uint32_t i = 0; i < OBJECTS_MAX; i++) {
		if (fake.qps[i])
			run_locked(fake.qps[i]);
	}
}

void fake_hold(int opcode)
{
	fake_enter();
	fake.held = opcode;
	fake_run_all();
	fake_leave();
}

static int modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
	struct fake_qp *qp = (struct fake_qp *)base;
	int result = 0;

	fake_enter();
	if (mask & IBV_QP_ACCESS_FLAGS)
		qp->access = attr->qp_access_flags;
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
		qp->state = IBV_QPS_INIT;
		break;
	case IBV_QPS_RTR:
		if (qp->state != IBV_QPS_INIT ||
		    fake.devices[qp->device].infiniband == (attr->ah_attr.is_global != 0)) {
			result = EINVAL;
			break;
		}
		qp->peer = attr->dest_qp_num;
		qp->peer_gid = attr->ah_attr.grh.dgid;
		qp->state = IBV_QPS_RTR;
		break;
	case IBV_QPS_RTS:
		if (qp->state != IBV_QPS_RTR || attr->timeout < 14 || attr->timeout > 16) {
			result = EINVAL;
			break;
		}
		qp->rd_atomic = attr->max_rd_atomic;
		if (qp->rd_atomic > fake.largest_rd_atomic)
			fake.largest_rd_atomic = qp->rd_atomic;
		qp->state = IBV_QPS_RTS;
		break;
	case IBV_QPS_ERR:
		flush_locked(qp);
		break;
	default:
		result = EINVAL;
	}
	fake_leave();
	return result;
}

/* Completions that nobody polled must not point to a queue pair that is gone. */
static void forget_sender(struct fake_qp *qp)
{
	for (unsigned i = qp->cq->head; i != qp->cq->tail; i++) {
		if (qp->cq->entries[i % qp->cq->size].sender == qp)
			qp->cq->entries[i % qp->cq->size].sender = NULL;
	}
}

static int destroy_qp(struct ibv_qp *base)
{
	struct fake_qp *qp = (struct fake_qp *)base;
	struct fake_receive *receive;
	struct fake_send *send;

	fake_enter();
	while ((send = STAILQ_FIRST(&qp->sends)) != NULL) {
		STAILQ_REMOVE_HEAD(&qp->sends, link);
		free(send);
	}
	while ((receive = STAILQ_FIRST(&qp->queue)) != NULL) {
		STAILQ_REMOVE_HEAD(&qp->queue, link);
		free(receive);
	}
	forget_sender(qp);
	/* Soft-RoCE waits for ever then. */
	for (uint32_t i = 0; i < OBJECTS_MAX; i++)
		fake_demand(!fake.mws[i] || !fake.mws[i]->valid || fake.mws[i]->qp != qp,
			    "a queue pair goes while a window is bound to it");
	fake.qps[base->qp_num] = NULL;
	fake_pd_of(base->pd)->users--;
	fake_leave();
	free(qp);
	return 0;
}

static bool is_local(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV;
}

/* On Soft-RoCE the two kinds of work must never be in the queue together. */
static void check_turns(const struct fake_qp *qp, enum ibv_wr_opcode opcode)
{
	const struct fake_send *send = STAILQ_FIRST(&qp->sends);

	if (!fake.devices[qp->device].soft || qp->state != IBV_QPS_RTS)
		return;
	for (; send; send = STAILQ_NEXT(send, link))
		fake_demand(is_local(send->wr.opcode) == is_local(opcode),
			    "messages and windows are in one send queue");
}

static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)base;

	fake_enter();
	fake.calls++;
	for (; wr; wr = wr->next) {
		struct fake_send *send;

		if (qp->posted - qp->retired >= qp->max_send ||
		    (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR)) {
			*bad = wr;
			fake_leave();
			return qp->state == IBV_QPS_RTS ? ENOMEM : EINVAL;
		}
		check_turns(qp, wr->opcode);
		send = calloc(1, sizeof(*send));
		fake_demand(send != NULL, "no memory");
		send->wr = *wr;
		if (wr->num_sge)
			send->sge = wr->sg_list[0];
		if (wr->opcode == IBV_WR_BIND_MW)
			send->window_key = wr->bind_mw.mw->rkey;
		send->place = qp->posted++;
		STAILQ_INSERT_TAIL(&qp->sends, send, link);
	}
	if (qp->state == IBV_QPS_ERR)
		flush_locked(qp);
	else
		run_locked(qp);
	fake_leave();
	return 0;
}

static int post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)base;
	struct fake_receive *receive = calloc(1, sizeof(*receive));

	fake_demand(receive != NULL && !wr->next, "one receive at a time");
	fake_enter();
	if (qp->state == IBV_QPS_RESET || qp->receives >= qp->max_receive) {
		fake_leave();
		free(receive);
		*bad = wr;
		return ENOMEM;
	}
	fake_demand(local_is_good(qp, wr->sg_list, IBV_ACCESS_LOCAL_WRITE),
		    "a receive's key is wrong");
	receive->wr_id = wr->wr_id;
	receive->sge = wr->sg_list[0];
	qp->receives++;
	STAILQ_INSERT_TAIL(&qp->queue, receive, link);
	if (qp->state == IBV_QPS_ERR)
		flush_locked(qp);
	fake_leave();
	return 0;
}

void fake_queue_pair_ops(struct qmt_verbs_api *api)
{
	api->create_qp = create_qp;
	api->modify_qp = modify_qp;
	api->destroy_qp = destroy_qp;
	api->post_send = post_send;
	api->post_recv = post_recv;
}
