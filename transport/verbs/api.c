/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/api.h"

#include <dlfcn.h>
#include <net/if.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/log.h"

#define LIBRARY "libibverbs.so.1"

/* Real symbols whose C names verbs.h hides behind macros or inlines. */
static int (*real_query_port)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *);
static int (*real_query_gid_ex)(struct ibv_context *, uint32_t, uint32_t, struct ibv_gid_entry *,
				uint32_t, size_t);

static ssize_t (*real_query_gid_table)(struct ibv_context *, struct ibv_gid_entry *, size_t,
				       uint32_t, size_t);

static struct qmt_verbs_api real;
static const struct qmt_verbs_api *_Atomic chosen; /* a test's own */
static atomic_uint changes;
static bool loaded;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	/* The old symbol fills a prefix of the structure, which holds all that is used here. */
	memset(attr, 0, sizeof(*attr));
	return real_query_port(context, port, (struct _compat_ibv_port_attr *)(void *)attr);
}

static int query_gid(struct ibv_context *context, uint32_t port, uint32_t index,
		     struct ibv_gid_entry *entry)
{
	return real_query_gid_ex(context, port, index, entry, 0, sizeof(*entry));
}

static long query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t room)
{
	return (long)real_query_gid_table(context, entries, room, 0, sizeof(*entries));
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	return ibv_alloc_mw(pd, type);
}

static int dealloc_mw(struct ibv_mw *mw)
{
	return ibv_dealloc_mw(mw);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return ibv_req_notify_cq(cq, solicited_only);
}

static int poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
	return ibv_poll_cq(cq, entries, wc);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return ibv_post_send(qp, wr, bad);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return ibv_post_recv(qp, wr, bad);
}

/* A function pointer out of dlsym, which C does not let one cast. */
static bool find(void *library, const char *name, void *slot)
{
	void *symbol = dlsym(library, name);

	memcpy(slot, &symbol, sizeof(symbol));
	return symbol != NULL;
}

static bool resolve(void *library)
{
	const struct {
		const char *name;
		void *slot;
		bool optional;
	} symbols[] = {
		{"ibv_get_device_list", &real.get_device_list, false},
		{"ibv_free_device_list", &real.free_device_list, false},
		{"ibv_get_device_name", &real.get_device_name, false},
		{"ibv_open_device", &real.open_device, false},
		{"ibv_close_device", &real.close_device, false},
		{"ibv_query_device", &real.query_device, false},
		{"ibv_query_port", &real_query_port, false},
		{"_ibv_query_gid_ex", &real_query_gid_ex, false},
		{"_ibv_query_gid_table", &real_query_gid_table, false},
		{"ibv_get_async_event", &real.get_async_event, false},
		{"ibv_ack_async_event", &real.ack_async_event, false},
		{"ibv_alloc_pd", &real.alloc_pd, false},
		{"ibv_dealloc_pd", &real.dealloc_pd, false},
		{"ibv_reg_mr", &real.reg_mr, false},
		{"ibv_reg_dmabuf_mr", &real.reg_dmabuf_mr, true},
		{"ibv_dereg_mr", &real.dereg_mr, false},
		{"ibv_create_ah", &real.create_ah, false},
		{"ibv_destroy_ah", &real.destroy_ah, false},
		{"ibv_create_comp_channel", &real.create_comp_channel, false},
		{"ibv_destroy_comp_channel", &real.destroy_comp_channel, false},
		{"ibv_create_cq", &real.create_cq, false},
		{"ibv_destroy_cq", &real.destroy_cq, false},
		{"ibv_get_cq_event", &real.get_cq_event, false},
		{"ibv_ack_cq_events", &real.ack_cq_events, false},
		{"ibv_create_qp", &real.create_qp, false},
		{"ibv_modify_qp", &real.modify_qp, false},
		{"ibv_destroy_qp", &real.destroy_qp, false},
		{"ibv_wc_status_str", &real.wc_status_str, false},
		{"ibv_event_type_str", &real.event_type_str, false},
	};

	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		if (!find(library, symbols[i].name, symbols[i].slot) && !symbols[i].optional) {
			qmc_warn("verbs", "%s is too old: it has no %s (rdma-core 34 or newer)",
				 LIBRARY, symbols[i].name);
			return false;
		}
	}
	return true;
}

static void load(void)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		qmc_debug("verbs", "%s is not installed: no verbs transport", LIBRARY);
		return;
	}
	real.query_port = query_port;
	real.query_gid = query_gid;
	real.query_gid_table = query_gid_table;
	real.alloc_mw = alloc_mw;
	real.dealloc_mw = dealloc_mw;
	real.req_notify_cq = req_notify_cq;
	real.poll_cq = poll_cq;
	real.post_send = post_send;
	real.post_recv = post_recv;
	real.interface_name = if_indextoname;
	real.sysfs = "/sys";
	/* Never closed: its providers keep threads and handlers of their own. */
	loaded = resolve(library);
}

const struct qmt_verbs_api *qmt_verbs_api(void)
{
	/* Pairs with the release below: a test's table is complete when it is seen. */
	const struct qmt_verbs_api *api = atomic_load_explicit(&chosen, memory_order_acquire);

	if (api)
		return api;
	pthread_once(&once, load);
	return loaded ? &real : NULL;
}

void qmt_verbs_api_use(const struct qmt_verbs_api *api)
{
	atomic_store_explicit(&chosen, api, memory_order_release);
	atomic_fetch_add_explicit(&changes, 1, memory_order_relaxed);
}

unsigned qmt_verbs_api_changes(void)
{
	/* Relaxed: only tests change it, while nothing else runs. */
	return atomic_load_explicit(&changes, memory_order_relaxed);
}
