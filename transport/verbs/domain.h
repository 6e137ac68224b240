/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What all endpoints of a process share: its open ports, a protection domain on each,
 * the memory registered there (once, however many endpoints name it) and the watch for
 * events. Nothing in it can be reached by peers but the buffers they are told to fetch
 * from. Made with the first endpoint, gone with the last. Any thread.
 */
#ifndef QMT_VERBS_DOMAIN_H
#define QMT_VERBS_DOMAIN_H

#include "transport/verbs/memory.h"
#include "transport/verbs/monitor.h"

struct qmt_domain {
	const struct qmt_verbs_api *api;
	struct qmt_port ports[QMT_RAILS_MAX];
	struct ibv_pd *pds[QMT_RAILS_MAX];
	size_t count;
	struct qmt_monitor *monitor;
	const struct qmt_gpu_api *gpu; /**< NULL: none */
};

/** Memory registered with every port; counted. */
struct qmt_area {
	uint8_t *base;
	uint64_t bytes;
	bool staged; /**< could not be registered: go through host memory */
	bool gpu;
	bool near[QMT_RAILS_MAX]; /**< ports at the least distance to it */
	struct qmt_registration rails[QMT_RAILS_MAX];
};

/**
 * The process's domain with a reference; the environment variable QMLA_RDMA_DEVICES
 * ("name[:port[:gid]],…") picks the ports of a new one. QMLA_ERR_UNSUPPORTED: no
 * libibverbs; statuses of qmt_ports_open.
 */
qmla_status_t qmt_domain_get(struct qmt_domain **domain);
void qmt_domain_put(struct qmt_domain *domain); /**< accepts NULL */

/** Registers @p memory, or takes a reference when it is. Statuses of qmt_registration_create. */
qmla_status_t qmt_domain_register(struct qmt_domain *domain, const struct qmt_memory *memory,
				  struct qmt_area **area);
void qmt_domain_unregister(struct qmt_domain *domain, struct qmt_area *area);

#endif /* QMT_VERBS_DOMAIN_H */
