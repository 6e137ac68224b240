/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Remembers fingerprints of keys that were evicted young, for as many evictions
 * as the cache has slots (the ghost queue of S3-FIFO, as a table with time
 * stamps in buckets of four: Yang et al., SOSP 2023, section 4.2). Fixed size; an entry
 * may be forgotten early when its bucket is crowded. Guarded by its owner's lock.
 */
#ifndef QMS_GHOST_H
#define QMS_GHOST_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

struct qms_ghost;

qmla_status_t qms_ghost_create(uint32_t capacity, struct qms_ghost **ghost);
void qms_ghost_destroy(struct qms_ghost *ghost); /**< accepts NULL */

/** Remembers @p hash as the newest. */
void qms_ghost_add(struct qms_ghost *ghost, uint64_t hash);

/** True when @p hash was remembered; forgets it. */
bool qms_ghost_take(struct qms_ghost *ghost, uint64_t hash);

#endif /* QMS_GHOST_H */
