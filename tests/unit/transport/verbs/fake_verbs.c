/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_verbs.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <unistd.h>

#define OBJECTS_MAX  8192
#define ASYNC_MAX    256
#define CHANNEL_MAX  1024
#define IFINDEX_SEEN 1000 /* net devices below this are visible */

struct fake_context {
	struct ibv_context base;
	int device;
	struct ibv_async_event events[ASYNC_MAX];
	unsigned head, tail, unacknowledged;
	LIST_ENTRY(fake_context) link;
};

struct fake_pd {
	struct ibv_pd base;
	unsigned users;
};

struct fake_mr {
	struct ibv_mr base;
	int access;
	unsigned windows;
};

struct fake_mw {
	struct ibv_mw base;
	uint32_t index;
	uint32_t rkey; /* the device's; the one in base is the program's to keep */
	bool valid;
	struct fake_qp *qp;
	struct fake_mr *mr;
	uint64_t address, length;
	unsigned access;
};

struct fake_channel {
	struct ibv_comp_channel base;
	struct fake_cq *events[CHANNEL_MAX];
	unsigned head, tail;
};

struct fake_wc {
	struct ibv_wc wc;
	struct fake_qp *sender; /* NULL: of a receive */
	uint64_t place;
};

struct fake_cq {
	struct ibv_cq base;
	struct fake_channel *channel;
	struct fake_wc *entries;
	unsigned size, head, tail;
	bool armed;
	unsigned delivered, acknowledged;
};

struct fake_send {
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	uint32_t window_key; /* as the program had it when it posted */
	uint64_t place;
	STAILQ_ENTRY(fake_send) link;
};

struct fake_receive {
	uint64_t wr_id;
	struct ibv_sge sge;
	STAILQ_ENTRY(fake_receive) link;
};

struct fake_qp {
	struct ibv_qp base;
	struct fake_cq *cq;
	int device;
	enum ibv_qp_state state;
	unsigned access;
	uint32_t peer;
	union ibv_gid peer_gid;
	uint32_t max_send, max_receive, receives;
	uint64_t posted, retired;
	uint8_t rd_atomic;
	STAILQ_HEAD(, fake_send) sends;
	STAILQ_HEAD(, fake_receive) queue;
};

static struct {
	pthread_mutex_t lock;
	struct fake_device devices[FAKE_DEVICES];
	struct ibv_device handles[FAKE_DEVICES];
	int count;
	LIST_HEAD(, fake_context) contexts;
	struct fake_qp *qps[OBJECTS_MAX];
	struct fake_mr *mrs[OBJECTS_MAX];
	struct fake_mw *mws[OBJECTS_MAX];
	uint32_t next_qp, next_mr, next_mw;
	unsigned pds, cqs, channels, open_contexts, registrations;
	bool injecting;
	enum ibv_wr_opcode inject_opcode;
	unsigned inject_skip;
	enum ibv_wc_status inject_status;
	int held;
	uint64_t done, signalled;
	uint64_t bytes_read[FAKE_DEVICES];
	int largest_rd_atomic;
	char sysfs[256];
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void enter(void)
{
	pthread_mutex_lock(&fake.lock);
}

static void leave(void)
{
	pthread_mutex_unlock(&fake.lock);
}

/* What no program may do with real verbs. */
static void demand(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "fake verbs: %s\n", what);
	abort();
}

/* ---- devices ---- */

static struct ibv_device **get_device_list(int *count)
{
	struct ibv_device **list = calloc(FAKE_DEVICES + 1, sizeof(struct ibv_device *));

	enter();
	for (int i = 0; i < fake.count && list; i++)
		list[i] = &fake.handles[i];
	if (count)
		*count = fake.count;
	leave();
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	free(list);
}

static int device_of(const struct ibv_device *device)
{
	return (int)(device - fake.handles);
}

static const char *get_device_name(struct ibv_device *device)
{
	return fake.devices[device_of(device)].name;
}

static struct ibv_context *open_device(struct ibv_device *device)
{
	struct fake_context *context = calloc(1, sizeof(*context));

	enter();
	if (!context || fake.devices[device_of(device)].open_fails) {
		leave();
		free(context);
		errno = ENODEV;
		return NULL;
	}
	context->base.device = device;
	context->base.async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	context->device = device_of(device);
	LIST_INSERT_HEAD(&fake.contexts, context, link);
	fake.open_contexts++;
	leave();
	return &context->base;
}

static struct fake_context *context_of(struct ibv_context *context)
{
	return (struct fake_context *)context;
}

static int close_device(struct ibv_context *base)
{
	struct fake_context *context = context_of(base);

	enter();
	demand(context->unacknowledged == 0, "a device is closed with events not acknowledged");
	LIST_REMOVE(context, link);
	fake.open_contexts--;
	leave();
	close(base->async_fd);
	free(context);
	return 0;
}

static struct fake_device *facts(struct ibv_context *context)
{
	return &fake.devices[context_of(context)->device];
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	const struct fake_device *device = facts(context);

	memset(attr, 0, sizeof(*attr));
	enter();
	attr->phys_port_cnt = 1;
	attr->vendor_id = device->soft ? 0xffffff : 0x2c9;
	attr->max_mr_size = device->max_mr_size ? device->max_mr_size : UINT64_MAX;
	attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = device->rd_atomic;
	if (device->windows)
		attr->device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	leave();
	return 0;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	const struct fake_device *device = facts(context);

	memset(attr, 0, sizeof(*attr));
	if (port != 1)
		return EINVAL;
	enter();
	attr->state = device->state;
	attr->active_mtu = device->mtu;
	attr->lid = device->lid;
	attr->max_msg_sz = device->max_msg_sz;
	attr->gid_tbl_len = FAKE_GIDS;
	attr->link_layer = device->infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
	leave();
	return 0;
}

static int query_gid(struct ibv_context *context, uint32_t port, uint32_t index,
		     struct ibv_gid_entry *entry)
{
	static const union ibv_gid none;
	int result = 0;

	if (port != 1 || index >= FAKE_GIDS)
		return EINVAL;
	enter();
	*entry = facts(context)->gids[index];
	if (memcmp(&entry->gid, &none, sizeof(none)) == 0)
		result = ENODATA;
	leave();
	return result;
}

static long query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t room)
{
	static const union ibv_gid none;
	long count = 0;

	enter();
	for (uint32_t i = 0; i < FAKE_GIDS && (size_t)count < room; i++) {
		if (memcmp(&facts(context)->gids[i].gid, &none, sizeof(none)) != 0)
			entries[count++] = facts(context)->gids[i];
	}
	leave();
	return count;
}

/* ---- events ---- */

static int get_async_event(struct ibv_context *base, struct ibv_async_event *event)
{
	struct fake_context *context = context_of(base);
	eventfd_t value;

	if (eventfd_read(base->async_fd, &value) != 0)
		return -1;
	enter();
	*event = context->events[context->head++ % ASYNC_MAX];
	context->unacknowledged++;
	leave();
	return 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
	struct fake_context *context;

	(void)event;
	enter();
	/* One thread reads at a time, so that it can only be the context with one open. */
	for (context = LIST_FIRST(&fake.contexts); context; context = LIST_NEXT(context, link)) {
		if (context->unacknowledged > 0) {
			context->unacknowledged--;
			break;
		}
	}
	leave();
}

static void raise_locked(struct fake_context *context, const struct ibv_async_event *event)
{
	demand(context->tail - context->head < ASYNC_MAX, "too many events");
	context->events[context->tail++ % ASYNC_MAX] = *event;
	(void)eventfd_write(context->base.async_fd, 1);
}

static void raise_port_locked(int device, enum ibv_event_type type)
{
	const struct ibv_async_event event = {.element.port_num = 1, .event_type = type};
	struct fake_context *context;

	for (context = LIST_FIRST(&fake.contexts); context; context = LIST_NEXT(context, link)) {
		if (context->device == device)
			raise_locked(context, &event);
	}
}

void fake_port_event(int device, enum ibv_event_type type)
{
	enter();
	raise_port_locked(device, type);
	leave();
}

static void run_all(void);

void fake_set_port(int device, enum ibv_port_state state)
{
	enter();
	fake.devices[device].state = state;
	raise_port_locked(device,
			  state == IBV_PORT_ACTIVE ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
	leave();
}

void fake_qp_event(unsigned nth, enum ibv_event_type type)
{
	struct ibv_async_event event = {.event_type = type};

	enter();
	for (uint32_t i = 0; i < OBJECTS_MAX; i++) {
		if (!fake.qps[i] || nth-- > 0)
			continue;
		event.element.qp = &fake.qps[i]->base;
		raise_locked(context_of(fake.qps[i]->base.context), &event);
		break;
	}
	leave();
}

/* ---- domains and memory ---- */

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	struct fake_pd *pd = calloc(1, sizeof(*pd));

	if (!pd)
		return NULL;
	pd->base.context = context;
	enter();
	fake.pds++;
	leave();
	return &pd->base;
}

static struct fake_pd *pd_of(struct ibv_pd *pd)
{
	return (struct fake_pd *)pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	enter();
	demand(pd_of(pd)->users == 0, "a protection domain is in use");
	fake.pds--;
	leave();
	free(pd);
	return 0;
}

static uint32_t place_object(void **table, uint32_t *next, void *object)
{
	for (uint32_t tries = 0; tries < OBJECTS_MAX; tries++) {
		uint32_t i = ++*next % OBJECTS_MAX;

		if (i != 0 && !table[i]) {
			table[i] = object;
			return i;
		}
	}
	demand(false, "too many objects");
	return 0;
}

/* Keys: index and eight bits of tag; the top bit tells windows from registrations. */
#define WINDOW_KEY UINT32_C(0x80000000)

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *base, size_t bytes, int access)
{
	const struct fake_device *device = facts(pd->context);
	struct fake_mr *mr;

	enter();
	if ((device->max_mr_size && bytes > device->max_mr_size) ||
	    (device->real_mr_size && bytes > device->real_mr_size)) {
		leave();
		errno = ENOMEM;
		return NULL;
	}
	mr = calloc(1, sizeof(*mr));
	demand(mr != NULL, "no memory");
	mr->base.context = pd->context;
	mr->base.pd = pd;
	mr->base.addr = base;
	mr->base.length = bytes;
	mr->access = access;
	mr->base.lkey = place_object((void **)fake.mrs, &fake.next_mr, mr) << 8;
	mr->base.rkey = mr->base.lkey;
	pd_of(pd)->users++;
	fake.registrations++;
	leave();
	return &mr->base;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova,
				    int fd, int access)
{
	const struct fake_device *device = facts(pd->context);

	(void)offset;
	if (fd < 0 || device->dmabuf_errno != EBADF) {
		errno = fd < 0 ? device->dmabuf_errno : EOPNOTSUPP;
		return NULL;
	}
	if (access & IBV_ACCESS_MW_BIND) {
		errno = EINVAL;
		return NULL;
	}
	return reg_mr(pd, (void *)(uintptr_t)iova, bytes, access);
}

static int dereg_mr(struct ibv_mr *base)
{
	struct fake_mr *mr = (struct fake_mr *)base;

	enter();
	demand(mr->windows == 0, "a registration goes while a window is bound to it");
	fake.mrs[base->lkey >> 8] = NULL;
	pd_of(base->pd)->users--;
	leave();
	free(mr);
	return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct fake_mw *mw;

	enter();
	if (!facts(pd->context)->windows || type != IBV_MW_TYPE_2) {
		leave();
		errno = EOPNOTSUPP;
		return NULL;
	}
	mw = calloc(1, sizeof(*mw));
	demand(mw != NULL, "no memory");
	mw->base.context = pd->context;
	mw->base.pd = pd;
	mw->base.type = type;
	mw->index = place_object((void **)fake.mws, &fake.next_mw, mw);
	mw->base.rkey = mw->rkey = WINDOW_KEY | mw->index << 8;
	pd_of(pd)->users++;
	leave();
	return &mw->base;
}

static void unbind_locked(struct fake_mw *mw)
{
	if (mw->valid)
		mw->mr->windows--;
	mw->valid = false;
}

static int dealloc_mw(struct ibv_mw *base)
{
	struct fake_mw *mw = (struct fake_mw *)base;

	enter();
	unbind_locked(mw);
	fake.mws[mw->index] = NULL;
	pd_of(base->pd)->users--;
	leave();
	free(mw);
	return 0;
}

static struct ibv_ah *create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah;

	if (facts(pd->context)->bad_gid[attr->grh.sgid_index]) {
		errno = ENETUNREACH;
		return NULL;
	}
	ah = calloc(1, sizeof(*ah));
	return ah;
}

static int destroy_ah(struct ibv_ah *ah)
{
	free(ah);
	return 0;
}

/* ---- completions ---- */

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
	struct fake_channel *channel = calloc(1, sizeof(*channel));

	if (!channel)
		return NULL;
	channel->base.context = context;
	channel->base.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	enter();
	fake.channels++;
	leave();
	return &channel->base;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	enter();
	fake.channels--;
	leave();
	free(channel);
	return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int entries, void *user,
				struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *cq = calloc(1, sizeof(*cq));

	(void)vector;
	demand(cq != NULL, "no memory");
	cq->base.context = context;
	cq->base.cq_context = user;
	cq->base.cqe = entries;
	cq->channel = (struct fake_channel *)channel;
	cq->size = (unsigned)entries;
	cq->entries = calloc(cq->size, sizeof(*cq->entries));
	demand(cq->entries != NULL, "no memory");
	enter();
	fake.cqs++;
	leave();
	return &cq->base;
}

/* Events that nobody has taken yet go with it. */
static void forget_events(struct fake_channel *channel, const struct fake_cq *cq)
{
	unsigned kept = channel->head;
	eventfd_t value;

	for (unsigned i = channel->head; i != channel->tail; i++) {
		struct fake_cq *at = channel->events[i % CHANNEL_MAX];

		if (at == cq)
			(void)eventfd_read(channel->base.fd, &value);
		else
			channel->events[kept++ % CHANNEL_MAX] = at;
	}
	channel->tail = kept;
}

static int destroy_cq(struct ibv_cq *base)
{
	struct fake_cq *cq = (struct fake_cq *)base;

	enter();
	forget_events(cq->channel, cq);
	demand(cq->delivered == cq->acknowledged, "a CQ goes with events not acknowledged");
	fake.cqs--;
	leave();
	free(cq->entries);
	free(cq);
	return 0;
}

static int req_notify_cq(struct ibv_cq *base, int solicited_only)
{
	(void)solicited_only;
	enter();
	((struct fake_cq *)base)->armed = true;
	leave();
	return 0;
}

static int get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **cq, void **user)
{
	struct fake_channel *channel = (struct fake_channel *)base;
	struct fake_cq *got;
	eventfd_t value;

	enter();
	if (channel->head == channel->tail || eventfd_read(base->fd, &value) != 0) {
		leave();
		errno = EAGAIN;
		return -1;
	}
	got = channel->events[channel->head++ % CHANNEL_MAX];
	got->delivered++;
	*cq = &got->base;
	*user = got->base.cq_context;
	leave();
	return 0;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	enter();
	((struct fake_cq *)cq)->acknowledged += count;
	leave();
}

static void push_locked(struct fake_cq *cq, const struct ibv_wc *wc, struct fake_qp *sender,
			uint64_t place)
{
	demand(cq->tail - cq->head < cq->size, "a CQ overruns");
	cq->entries[cq->tail++ % cq->size] = (struct fake_wc){*wc, sender, place};
	if (!cq->armed)
		return;
	cq->armed = false;
	demand(cq->channel->tail - cq->channel->head < CHANNEL_MAX, "a channel overruns");
	cq->channel->events[cq->channel->tail++ % CHANNEL_MAX] = cq;
	(void)eventfd_write(cq->channel->base.fd, 1);
}

static int poll_cq(struct ibv_cq *base, int entries, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)base;
	int n = 0;

	enter();
	while (n < entries && cq->head != cq->tail) {
		struct fake_wc *entry = &cq->entries[cq->head++ % cq->size];

		if (entry->sender && entry->place + 1 > entry->sender->retired)
			entry->sender->retired = entry->place + 1;
		wc[n++] = entry->wc;
	}
	leave();
	return n;
}

/* ---- queue pairs ---- */

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct fake_qp *qp = calloc(1, sizeof(*qp));

	demand(qp != NULL, "no memory");
	qp->base.context = pd->context;
	qp->base.pd = pd;
	qp->base.qp_context = attr->qp_context;
	qp->base.qp_type = attr->qp_type;
	qp->cq = (struct fake_cq *)attr->send_cq;
	qp->device = context_of(pd->context)->device;
	qp->state = IBV_QPS_RESET;
	qp->max_send = attr->cap.max_send_wr;
	qp->max_receive = attr->cap.max_recv_wr;
	STAILQ_INIT(&qp->sends);
	STAILQ_INIT(&qp->queue);
	enter();
	qp->base.qp_num = place_object((void **)fake.qps, &fake.next_qp, qp);
	pd_of(pd)->users++;
	leave();
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
	push_locked(qp->cq, &wc, qp, send->place);
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
		push_locked(qp->cq, &wc, NULL, 0);
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
	unbind_locked(mw);
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
	push_locked(remote->cq, &wc, NULL, 0);
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

static void run_all(void)
{
	for (uint32_t i = 0; i < OBJECTS_MAX; i++) {
		if (fake.qps[i])
			run_locked(fake.qps[i]);
	}
}

void fake_hold(int opcode)
{
	enter();
	fake.held = opcode;
	run_all();
	leave();
}

static int modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
	struct fake_qp *qp = (struct fake_qp *)base;
	int result = 0;

	enter();
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
	leave();
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

	enter();
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
		demand(!fake.mws[i] || !fake.mws[i]->valid || fake.mws[i]->qp != qp,
		       "a queue pair goes while a window is bound to it");
	fake.qps[base->qp_num] = NULL;
	pd_of(base->pd)->users--;
	leave();
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
		demand(is_local(send->wr.opcode) == is_local(opcode),
		       "messages and windows are in one send queue");
}

static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)base;

	enter();
	for (; wr; wr = wr->next) {
		struct fake_send *send;

		if (qp->posted - qp->retired >= qp->max_send ||
		    (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR)) {
			*bad = wr;
			leave();
			return qp->state == IBV_QPS_RTS ? ENOMEM : EINVAL;
		}
		check_turns(qp, wr->opcode);
		send = calloc(1, sizeof(*send));
		demand(send != NULL, "no memory");
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
	leave();
	return 0;
}

static int post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)base;
	struct fake_receive *receive = calloc(1, sizeof(*receive));

	demand(receive != NULL && !wr->next, "one receive at a time");
	enter();
	if (qp->state == IBV_QPS_RESET || qp->receives >= qp->max_receive) {
		leave();
		free(receive);
		*bad = wr;
		return ENOMEM;
	}
	demand(local_is_good(qp, wr->sg_list, IBV_ACCESS_LOCAL_WRITE), "a receive's key is wrong");
	receive->wr_id = wr->wr_id;
	receive->sge = wr->sg_list[0];
	qp->receives++;
	STAILQ_INSERT_TAIL(&qp->queue, receive, link);
	if (qp->state == IBV_QPS_ERR)
		flush_locked(qp);
	leave();
	return 0;
}

/* ---- the rest ---- */

static const char *wc_status_str(enum ibv_wc_status status)
{
	static const char *const names[] = {
		[IBV_WC_WR_FLUSH_ERR] = "flushed",
		[IBV_WC_REM_ACCESS_ERR] = "remote access error",
		[IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
		[IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded",
		[IBV_WC_MW_BIND_ERR] = "window bind error",
		[IBV_WC_LOC_PROT_ERR] = "local protection error",
		[IBV_WC_LOC_LEN_ERR] = "local length error",
	};

	return (size_t)status < sizeof(names) / sizeof(names[0]) && names[status] ? names[status]
										  : "error";
}

static const char *event_type_str(enum ibv_event_type type)
{
	switch (type) {
	case IBV_EVENT_PORT_ERR:
		return "port error";
	case IBV_EVENT_GID_CHANGE:
		return "GID table change";
	case IBV_EVENT_DEVICE_FATAL:
		return "local catastrophic error";
	case IBV_EVENT_QP_FATAL:
		return "local work queue catastrophic error";
	default:
		return "event";
	}
}

static char *interface_name(unsigned int index, char *name)
{
	if (index == 0 || index >= IFINDEX_SEEN)
		return NULL;
	snprintf(name, 16, "eth%u", index);
	return name;
}

static const struct qmt_verbs_api table = {
	.get_device_list = get_device_list,
	.free_device_list = free_device_list,
	.get_device_name = get_device_name,
	.open_device = open_device,
	.close_device = close_device,
	.query_device = query_device,
	.query_port = query_port,
	.query_gid = query_gid,
	.query_gid_table = query_gid_table,
	.get_async_event = get_async_event,
	.ack_async_event = ack_async_event,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.reg_mr = reg_mr,
	.reg_dmabuf_mr = reg_dmabuf_mr,
	.dereg_mr = dereg_mr,
	.alloc_mw = alloc_mw,
	.dealloc_mw = dealloc_mw,
	.create_ah = create_ah,
	.destroy_ah = destroy_ah,
	.create_comp_channel = create_comp_channel,
	.destroy_comp_channel = destroy_comp_channel,
	.create_cq = create_cq,
	.destroy_cq = destroy_cq,
	.req_notify_cq = req_notify_cq,
	.get_cq_event = get_cq_event,
	.ack_cq_events = ack_cq_events,
	.poll_cq = poll_cq,
	.create_qp = create_qp,
	.modify_qp = modify_qp,
	.destroy_qp = destroy_qp,
	.post_send = post_send,
	.post_recv = post_recv,
	.wc_status_str = wc_status_str,
	.event_type_str = event_type_str,
	.interface_name = interface_name,
	.sysfs = fake.sysfs,
};

const struct qmt_verbs_api *fake_start(void)
{
	enter();
	memset(fake.devices, 0, sizeof(fake.devices));
	fake.count = 0;
	fake.injecting = false;
	fake.held = -1;
	fake.done = fake.signalled = 0;
	fake.registrations = 0;
	fake.largest_rd_atomic = 0;
	memset(fake.bytes_read, 0, sizeof(fake.bytes_read));
	strcpy(fake.sysfs, "/nonexistent");
	leave();
	return &table;
}

bool fake_stop(void)
{
	unsigned left = 0;

	enter();
	for (uint32_t i = 0; i < OBJECTS_MAX; i++)
		left += (unsigned)(fake.qps[i] != NULL) + (fake.mrs[i] != NULL) +
			(fake.mws[i] != NULL);
	left += fake.pds + fake.cqs + fake.channels + fake.open_contexts;
	if (left)
		fprintf(stderr, "fake verbs: %u objects are left (%u contexts, %u pds, %u cqs)\n",
			left, fake.open_contexts, fake.pds, fake.cqs);
	leave();
	return left == 0;
}

struct fake_device *fake_get(int device)
{
	return &fake.devices[device];
}

void fake_set_ipv4(int device, uint32_t index, uint32_t type, const uint8_t address[4])
{
	struct ibv_gid_entry entry = {
		.gid_index = index, .port_num = 1, .gid_type = type, .ndev_ifindex = 2};

	entry.gid.raw[10] = entry.gid.raw[11] = 0xff;
	memcpy(entry.gid.raw + 12, address, 4);
	enter();
	fake.devices[device].gids[index] = entry;
	leave();
}

int fake_add_roce(const char *name, uint8_t host)
{
	const uint8_t address[4] = {10, 0, 0, host};
	struct fake_device *device;
	int index;

	enter();
	index = fake.count++;
	demand(index < FAKE_DEVICES, "too many devices");
	device = &fake.devices[index];
	*device = (struct fake_device){
		.name = name,
		.state = IBV_PORT_ACTIVE,
		.mtu = IBV_MTU_4096,
		.max_msg_sz = UINT32_C(1) << 30,
		.rd_atomic = 16,
		.windows = true,
		.dmabuf_errno = EOPNOTSUPP,
	};
	device->gids[0] = (struct ibv_gid_entry){
		.gid.raw = {0xfe, 0x80, [15] = host},
		.gid_index = 0,
		.port_num = 1,
		.gid_type = IBV_GID_TYPE_ROCE_V2,
		.ndev_ifindex = 2,
	};
	leave();
	fake_set_ipv4(index, 1, IBV_GID_TYPE_ROCE_V2, address);
	return index;
}

void fake_set_sysfs(const char *root)
{
	snprintf(fake.sysfs, sizeof(fake.sysfs), "%s", root);
}

void fake_inject(enum ibv_wr_opcode opcode, unsigned skip, enum ibv_wc_status status)
{
	enter();
	fake.injecting = true;
	fake.inject_opcode = opcode;
	fake.inject_skip = skip;
	fake.inject_status = status;
	leave();
}

unsigned fake_qps(void)
{
	unsigned count = 0;

	enter();
	for (uint32_t i = 0; i < OBJECTS_MAX; i++)
		count += fake.qps[i] != NULL;
	leave();
	return count;
}

unsigned fake_mrs(void)
{
	unsigned count = 0;

	enter();
	for (uint32_t i = 0; i < OBJECTS_MAX; i++)
		count += fake.mrs[i] != NULL;
	leave();
	return count;
}

unsigned fake_registrations(void)
{
	unsigned value;

	enter();
	value = fake.registrations;
	leave();
	return value;
}

uint64_t fake_work_requests(void)
{
	uint64_t value;

	enter();
	value = fake.done;
	leave();
	return value;
}

uint64_t fake_signalled(void)
{
	uint64_t value;

	enter();
	value = fake.signalled;
	leave();
	return value;
}

int fake_largest_rd_atomic(void)
{
	int value;

	enter();
	value = fake.largest_rd_atomic;
	leave();
	return value;
}

uint64_t fake_bytes_read(int device)
{
	uint64_t value;

	enter();
	value = fake.bytes_read[device];
	leave();
	return value;
}

void fake_set_fabric(int device, int fabric)
{
	enter();
	fake.devices[device].fabric = fabric;
	leave();
}

void fake_clear_gid(int device, uint32_t index)
{
	enter();
	memset(&fake.devices[device].gids[index], 0, sizeof(fake.devices[device].gids[index]));
	leave();
}
