/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Real cache nodes, a client of them, and blocks with known bytes. A test's main
 * thread only.
 */
#ifndef CACHE_RIG_H
#define CACHE_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/cache.h>

#include "kernels/layout.h"
#include "worker_cluster.h"

#define RIG_NODES 4

struct rig {
	struct cluster cluster;
	struct process *nodes[RIG_NODES];
	size_t node_count;
	char node_list[512];
	qmla_layout_t layout;
	struct qmk_layout bytes;
	qmla_identity_t identity;
	qmla_client_config_t config;
	qmla_client_t *client;
	size_t count;
	qmla_key_t *keys;
	uint8_t *memory;
	void **written; /**< [count] sealed blocks */
	void **read;    /**< [count] room to fetch into */
};

/** How a rig differs from the plain one; zero means the default. */
struct rig_plan {
	size_t nodes;             /**< 1 */
	size_t blocks;            /**< 32 */
	uint32_t layers;          /**< 2 */
	const char *pool;         /**< "64MiB" */
	const char *const *flags; /**< further flags of the nodes, NULL-terminated */
	const char *transport;    /**< "auto" */
	uint32_t replicas;
	uint32_t lease_ms;
	uint32_t connections;
};

/** True when qmla-node is built; prints why not. */
bool rig_available(void);

/** Aborts when a node does not start. */
struct rig *rig_create(const struct rig_plan *plan);
void rig_destroy(struct rig *rig);

/** Another client with the same configuration. */
qmla_client_t *rig_client(struct rig *rig);

/** Starts node @p index again under its name and port, after process_kill. */
void rig_restart(struct rig *rig, size_t index);

/** Publishes the first @p count blocks; aborts unless each is there then. */
void rig_publish(struct rig *rig, size_t count);

/** Fetches; aborts when a block of the prefix is not what was written. */
size_t rig_fetch(struct rig *rig, size_t count, uint32_t timeout_ms, qmla_status_t *statuses,
		 qmla_fetch_stats_t *stats);

/** Fetches again and again, up to ten seconds, until @p count blocks come. */
bool rig_fetch_reaches(struct rig *rig, size_t count);

/** Sum over the nodes of what Stats says of the blocks; nodes that do not answer count nothing. */
uint64_t rig_blocks(struct rig *rig);

#endif /* CACHE_RIG_H */
