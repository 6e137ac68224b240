/* SPDX-License-Identifier: Apache-2.0 */
/** @file A client's read-only mappings of a server's regions. One thread. */
#ifndef QMT_SHM_MAPPING_H
#define QMT_SHM_MAPPING_H

#include "transport/transport.h"

struct qmt_mapping {
	uint64_t region;
	uint64_t bytes;
	const uint8_t *base;
};

struct qmt_mappings {
	struct qmt_mapping *list;
	size_t count;
};

/** Unmaps everything. */
void qmt_mappings_fini(struct qmt_mappings *mappings);

/**
 * Maps the memfd @p fd (which stays the caller's) as @p region, in place of an
 * older mapping of it. QMLA_ERR_PERMISSION: not sealed; QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmt_mappings_add(struct qmt_mappings *mappings, uint64_t region, int fd,
			       uint64_t bytes);

/** First byte of a range of @p region; NULL when it is not mapped or not that large. */
const uint8_t *qmt_mappings_find(const struct qmt_mappings *mappings, uint64_t region,
				 uint64_t offset, uint64_t length);

#endif /* QMT_SHM_MAPPING_H */
