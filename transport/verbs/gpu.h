/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The few functions of the CUDA driver that registering GPU memory takes, loaded at run
 * time as libibverbs is. Any thread.
 */
#ifndef QMT_VERBS_GPU_H
#define QMT_VERBS_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct qmt_gpu_api {
	/** True when @p address is memory of a GPU; @p pci gets "0000:17:00.0" of it. */
	bool (*owns)(const void *address, char pci[16]);
	/** A dma-buf descriptor of [@p base, @p base + @p bytes), page aligned; -1: not to be had.
	 */
	int (*export_dmabuf)(void *base, size_t bytes);
	/** Makes the driver finish synchronous copies before they return, as RDMA needs. */
	void (*order)(void *base);
	/** Copies between a GPU's and host memory, either way; false on failure. */
	bool (*copy)(void *to, const void *from, size_t bytes);
	const char *peermem; /**< exists when nvidia_peermem is loaded */
};

/** The table in use; NULL when there is no CUDA driver. */
const struct qmt_gpu_api *qmt_gpu_api(void);

/** For tests: uses @p api from now on (NULL: the real one). */
void qmt_gpu_api_use(const struct qmt_gpu_api *api);

#endif /* QMT_VERBS_GPU_H */
