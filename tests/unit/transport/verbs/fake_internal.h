/* SPDX-License-Identifier: Apache-2.0 */
/** @file What the files of the fake verbs share: its objects and its one state, under one lock. */
#ifndef FAKE_INTERNAL_H
#define FAKE_INTERNAL_H

#include <pthread.h>
#include <sys/queue.h>

#include "fake_verbs.h"

#define OBJECTS_MAX  8192
#define ASYNC_MAX    256
#define CHANNEL_MAX  1024
#define IFINDEX_SEEN 1000 /* net devices below this are visible */

/* Keys: index and eight bits of tag; the top bit tells windows from registrations. */
#define WINDOW_KEY UINT32_C(0x80000000)

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

struct fake_state {
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
	uint64_t done, signalled, calls;
	uint64_t bytes_read[FAKE_DEVICES];
	int largest_rd_atomic;
	char sysfs[256];
};

extern struct fake_state fake;

void fake_enter(void);
void fake_leave(void);

/** Ends the test with @p what: what no program may do with real verbs. */
void fake_demand(bool holds, const char *what);

/** Each file's functions, into the table. */
void fake_device_ops(struct qmt_verbs_api *api);
void fake_memory_ops(struct qmt_verbs_api *api);
void fake_completion_ops(struct qmt_verbs_api *api);
void fake_queue_pair_ops(struct qmt_verbs_api *api);

struct fake_context *fake_context_of(struct ibv_context *context);
struct fake_pd *fake_pd_of(struct ibv_pd *pd);
/** What the test said about the device of @p context. */
struct fake_device *fake_facts(struct ibv_context *context);
/** A free entry of @p table for @p object, from *@p next on: its number. */
uint32_t fake_place(void **table, uint32_t *next, void *object);
void fake_unbind_locked(struct fake_mw *mw);
void fake_push_locked(struct fake_cq *cq, const struct ibv_wc *wc, struct fake_qp *sender,
		      uint64_t place);
/** Lets every queue pair do what it can. */
void fake_run_all(void);

#endif /* FAKE_INTERNAL_H */
