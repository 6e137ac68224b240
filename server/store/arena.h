/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * One stretch of shared memory (memfd), mapped once for the life of the node.
 * Its size is sealed, and nobody who gets the descriptor can write through it:
 * only the mapping made here is writable.
 */
#ifndef QMS_ARENA_H
#define QMS_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

struct qms_arena;

struct qms_arena_config {
	uint64_t bytes;  /**< rounded up to the page size */
	uint32_t number; /**< shown in /proc/PID/maps: "qmla-pool-<number>" */
	bool huge_pages; /**< 2 MiB pages; they must have been set aside */
	bool prefault;   /**< take the memory now instead of on first use */
};

/**
 * Makes and maps an arena. Blocks while prefaulting. QMLA_ERR_NO_MEMORY, logged
 * with the size and the remedy.
 */
qmla_status_t qms_arena_create(const struct qms_arena_config *config, struct qms_arena **arena);

/** Unmaps and closes. Accepts NULL. */
void qms_arena_destroy(struct qms_arena *arena);

void *qms_arena_base(const struct qms_arena *arena);
uint64_t qms_arena_bytes(const struct qms_arena *arena);
int qms_arena_fd(const struct qms_arena *arena); /**< stays the arena's */

#endif /* QMS_ARENA_H */
