/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What makes shared memory safe between processes that do not trust each other:
 * seals. Any thread; the functions that log say so.
 */
#ifndef QMT_SHM_MEMORY_H
#define QMT_SHM_MEMORY_H

#include "transport/transport.h"

/**
 * Seals the memfd of a region so that whoever gets a descriptor of it can
 * neither write, resize nor punch it (the owner's mapping stays writable), and
 * opens it again read-only. @p fd is the caller's. Logs.
 * QMLA_ERR_INVALID_ARGUMENT: no memfd, smaller than the region, or made without
 * MFD_ALLOW_SEALING.
 */
qmla_status_t qmt_shm_region_seal(const struct qmt_memory *memory, int *fd);

/** Makes a memfd of @p bytes, sealed against resizing, mapped writable at @p base. Logs. */
qmla_status_t qmt_shm_staging_create(uint64_t bytes, int *fd, void **base);

/**
 * Checks that @p fd is a memfd of at least @p bytes that can never shrink: only
 * then is reading it free of surprises. QMLA_ERR_PERMISSION otherwise.
 */
qmla_status_t qmt_shm_check(int fd, uint64_t bytes);

/** Maps the first @p bytes of @p fd read-only, after qmt_shm_check. */
qmla_status_t qmt_shm_map(int fd, uint64_t bytes, const void **base);

#endif /* QMT_SHM_MEMORY_H */
