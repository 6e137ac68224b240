/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The functions of libibverbs as a table. The real one is loaded at run time, so that
 * the same program runs where there is no RDMA; tests put in one of their own. Part of
 * verbs.h is static inline and goes through the context, part is real symbols: the table
 * hides which. Conventions are libibverbs's own. Any thread, as libibverbs allows.
 *
 * Only files below transport/verbs include this header, since it needs verbs.h.
 */
#ifndef QMT_VERBS_API_H
#define QMT_VERBS_API_H

#include <infiniband/verbs.h>

#include <qmla/status.h>

struct qmt_verbs_api {
	struct ibv_device **(*get_device_list)(int *count);
	void (*free_device_list)(struct ibv_device **list);
	const char *(*get_device_name)(struct ibv_device *device);
	struct ibv_context *(*open_device)(struct ibv_device *device);
	int (*close_device)(struct ibv_context *context);
	int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
	int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);
	int (*query_gid)(struct ibv_context *context, uint32_t port, uint32_t index,
			 struct ibv_gid_entry *entry); /**< 0, or an errno value */
	/** Every entry in use, of all ports; their number, or negative. */
	long (*query_gid_table)(struct ibv_context *context, struct ibv_gid_entry *entries,
				size_t room);
	int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
	void (*ack_async_event)(struct ibv_async_event *event);

	struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
	int (*dealloc_pd)(struct ibv_pd *pd);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *base, size_t bytes, int access);
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t bytes,
					uint64_t iova, int fd, int access); /**< may be NULL */
	int (*dereg_mr)(struct ibv_mr *mr);
	struct ibv_mw *(*alloc_mw)(struct ibv_pd *pd, enum ibv_mw_type type);
	int (*dealloc_mw)(struct ibv_mw *mw);
	struct ibv_ah *(*create_ah)(struct ibv_pd *pd, struct ibv_ah_attr *attr);
	int (*destroy_ah)(struct ibv_ah *ah);

	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
	int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
	struct ibv_cq *(*create_cq)(struct ibv_context *context, int entries, void *user,
				    struct ibv_comp_channel *channel, int vector);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
	int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **user);
	void (*ack_cq_events)(struct ibv_cq *cq, unsigned int count);
	int (*poll_cq)(struct ibv_cq *cq, int entries, struct ibv_wc *wc);

	struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
	int (*destroy_qp)(struct ibv_qp *qp);
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

	const char *(*wc_status_str)(enum ibv_wc_status status);
	const char *(*event_type_str)(enum ibv_event_type type);
	/** if_indextoname: NULL for a net device that this process cannot see. */
	char *(*interface_name)(unsigned int index, char *name);
	const char *sysfs; /**< where PCI and NUMA facts are read: "/sys" */
};

/**
 * The table in use: what qmt_verbs_api_use set, else the real one, loaded on first
 * use; NULL when libibverbs.so.1 is not there or too old (said once in the log).
 */
const struct qmt_verbs_api *qmt_verbs_api(void);

/** For tests: uses @p api (NULL: the real one) from now on. Nothing may be open. */
void qmt_verbs_api_use(const struct qmt_verbs_api *api);

/** How often qmt_verbs_api_use was called: what was found out before is void. */
unsigned qmt_verbs_api_changes(void);

#endif /* QMT_VERBS_API_H */
