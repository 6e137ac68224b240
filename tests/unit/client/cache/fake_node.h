/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A cache node in this process with a store of a few slots, whose answers a test
 * can bend: what a broken, hostile or dying node might do. Real RPC, real
 * transport.
 */
#ifndef FAKE_NODE_H
#define FAKE_NODE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <qmla/cache.h>

#define FAKE_SLOTS 64

/** Faults, all off at first; set before a call, from the test's thread. */
struct fake_faults {
	_Atomic int64_t lookup_delay_ns;
	_Atomic int64_t read_delay_ns; /**< before a read is allowed */
	_Atomic uint32_t lease_ms;     /**< grants this instead of what was asked */
	_Atomic bool refuse_renewal;
	_Atomic bool short_answer; /**< one entry too few */
	_Atomic bool outside_pool; /**< offsets past the end */
	_Atomic bool wrong_length;
	_Atomic bool no_capability;
	_Atomic bool unknown_code;
	_Atomic int64_t generation_shift; /**< added to a Lookup's generations */
	_Atomic bool other_digest;
	_Atomic bool other_incarnation; /**< in every answer but Connect's */
	_Atomic bool draining;          /**< refuses Reserve */
	_Atomic uint32_t full_times;    /**< Reserve answers resource_exhausted this often */
	_Atomic uint32_t full_after;    /**< Reserve grants only so many keys of a call (0: all) */
	_Atomic bool deny_reads;
	_Atomic bool connect_nonsense; /**< Connect names a transport that is not there */
	_Atomic bool no_pool;          /**< until the next Connect: the pool went to another */
	_Atomic bool never_answers;    /**< calls are taken and left open */
};

struct fake_counts {
	_Atomic uint32_t connects, lookups, leases, renewals, releases, reserves, commits, aborts;
	_Atomic uint32_t reports, reads, writes, describes;
};

struct fake_node {
	struct fake_faults faults;
	struct fake_counts counts;
	char address[64]; /**< for qmla_client_config_t.nodes */
	struct fake_state *state;
};

/** A node for blocks of @p layout on port @p port (0: any). Asserts on failure. */
struct fake_node *fake_node_start(const qmla_layout_t *layout, uint16_t port);
void fake_node_stop(struct fake_node *node);

/** Blocks that are committed. */
uint32_t fake_node_blocks(struct fake_node *node);
bool fake_node_has(struct fake_node *node, const qmla_key_t *key);
void fake_node_remove(struct fake_node *node, const qmla_key_t *key);
/** Reserves a slot for @p key and leaves it at that. */
void fake_node_reserve(struct fake_node *node, const qmla_key_t *key);
/** The bytes of a committed block in the pool, NULL when it is not there. */
uint8_t *fake_node_block(struct fake_node *node, const qmla_key_t *key);
uint16_t fake_node_port(const struct fake_node *node);

/** Sends an event of one key to every watcher (kind: qmla.v1.WatchEvent.Kind). */
void fake_node_event(struct fake_node *node, int kind, const qmla_key_t *key);
/** Ends every watcher's stream. */
void fake_node_end_watches(struct fake_node *node);
uint32_t fake_node_watchers(struct fake_node *node);

#endif /* FAKE_NODE_H */
