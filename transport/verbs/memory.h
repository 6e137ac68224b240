/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Registered memory. A region larger than the device's largest registration is split
 * into equal chunks. GPU memory is registered through dma-buf where device and driver
 * can, else through nvidia_peermem; where neither works the caller stages through host
 * memory. One thread at a time for each region.
 */
#ifndef QMT_VERBS_MEMORY_H
#define QMT_VERBS_MEMORY_H

#include "transport/transport.h"
#include "transport/verbs/device.h"
#include "transport/verbs/gpu.h"

#define QMT_CHUNKS_MAX 64

enum qmt_memory_kind {
	QMT_MEMORY_HOST,    /**< ordinary pages */
	QMT_MEMORY_HUGE,    /**< huge pages */
	QMT_MEMORY_DMABUF,  /**< a GPU's, through dma-buf */
	QMT_MEMORY_PEERMEM, /**< a GPU's, through nvidia_peermem */
	QMT_MEMORY_STAGED,  /**< a GPU's that cannot be registered: through pinned host memory */
};

/** "host memory, huge pages"… Constant. */
const char *qmt_memory_kind_text(enum qmt_memory_kind kind);

/** Memory registered with one device. */
struct qmt_registration {
	struct ibv_mr *chunks[QMT_CHUNKS_MAX];
	size_t count;
	uint64_t chunk_bytes; /**< of all but the last */
	enum qmt_memory_kind kind;
};

/**
 * Registers @p memory in @p pd with @p access. @p gpu may be NULL: no GPU. Logs.
 * QMLA_ERR_UNSUPPORTED: a GPU's memory that can only be staged; QMLA_ERR_TOO_LARGE: more
 * than QMT_CHUNKS_MAX chunks; QMLA_ERR_RESOURCE_EXHAUSTED: the limit of locked memory or of
 * the device (with the remedy in the log).
 */
qmla_status_t qmt_registration_create(const struct qmt_port *port, struct ibv_pd *pd,
				      const struct qmt_gpu_api *gpu,
				      const struct qmt_memory *memory, int access,
				      struct qmt_registration *registration);

/** Ends it; accepts a zeroed one. */
void qmt_registration_end(const struct qmt_verbs_api *api, struct qmt_registration *registration);

/** Bytes from @p offset to the end of its chunk. */
static inline uint64_t qmt_chunk_left(uint64_t chunk_bytes, uint64_t offset)
{
	return chunk_bytes - offset % chunk_bytes;
}

/** True when the page under @p address is a huge one; false too when that cannot be told. */
bool qmt_memory_is_huge(const void *address);

/** NUMA node of the page under @p address; QMT_NUMA_UNKNOWN. */
int qmt_memory_numa_node(void *address);

#endif /* QMT_VERBS_MEMORY_H */
