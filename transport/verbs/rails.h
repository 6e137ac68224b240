/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A server's open devices and the regions registered with them: what must be made anew
 * when a device dies. The caller serialises.
 */
#ifndef QMT_VERBS_RAILS_H
#define QMT_VERBS_RAILS_H

#include "transport/verbs/peer.h"

SLIST_HEAD(qmt_region_list, qmt_verbs_region);

struct qmt_rails {
	struct qmt_port ports[QMT_RAILS_MAX];
	struct ibv_comp_channel *channels[QMT_RAILS_MAX];
	size_t count; /**< 0: closed */
	struct qmt_monitor *monitor;
};

/** Opens the ports of @p spec near @p place, their channels and the monitor. */
qmla_status_t qmt_rails_open(const struct qmt_verbs_api *api, const char *spec,
			     const struct qmt_place *place, struct qmt_rails *rails);

/** No peer may be left and no region be registered. Accepts closed ones. */
void qmt_rails_close(struct qmt_rails *rails);

/** Registers region->memory with every port, cut alike on all. Logs the kind of memory. */
qmla_status_t qmt_rails_register(struct qmt_rails *rails, struct qmt_verbs_region *region);

/** Undoes register; the region may be registered again. */
void qmt_rails_unregister(struct qmt_rails *rails, struct qmt_verbs_region *region);

#endif /* QMT_VERBS_RAILS_H */
