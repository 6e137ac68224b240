/* SPDX-License-Identifier: Apache-2.0 */
/** @file One variant's entries (contracts: kernels/ops.h) and what they share. */
#ifndef QMK_CPU_CPU_H
#define QMK_CPU_CPU_H

#include <stdbool.h>

#include "kernels/cpu/check.h"
#include "kernels/ops.h"

/** Bytes of workspace that pack wants. */
size_t qmk_cpu_pack_workspace(const struct qmk_pack_args *args);

/** Quantises rows into pages. */
qmla_status_t qmk_cpu_pack(const struct qmk_pack_args *args);

/** Pages back into rows of values. */
qmla_status_t qmk_cpu_unpack(const struct qmk_unpack_args *args);

/** Bytes of workspace that attend wants. */
size_t qmk_cpu_attend_workspace(const struct qmk_attend_args *args);

/** Attention of queries over packed pages and plain rows. */
qmla_status_t qmk_cpu_attend(const struct qmk_attend_args *args);

/** Merges partial results by their log-sum-exp. */
qmla_status_t qmk_cpu_merge(const struct qmk_merge_args *args);

/** Checksums of pages. */
qmla_status_t qmk_cpu_checksum(const struct qmk_checksum_args *args);

/** As qmk_page_checksum of kernels/block.h. */
uint64_t qmk_cpu_page_checksum(const void *page, size_t bytes);

/** First byte of a slot's page of @p layer. */
static inline uint8_t *qmk_cpu_page(const struct qmk_layout *layout, const struct qmk_pool *pool,
				    uint32_t slot, uint32_t layer)
{
	return (uint8_t *)pool->base + slot * pool->stride + qmk_layout_page_offset(layout, layer);
}

/** Rounds a scratch pointer or size up to a cache line. */
#define QMK_CPU_LINE 64u
static inline size_t qmk_cpu_lines(size_t bytes)
{
	return (bytes + QMK_CPU_LINE - 1) / QMK_CPU_LINE * QMK_CPU_LINE;
}

#endif /* QMK_CPU_CPU_H */
