/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The store of a node: blocks in memory, found by key, one pool an identity. It
 * knows no network; the service gives it callbacks for what it cannot do itself.
 *
 * The budget is cut into equal arenas, one for each identity that the node may
 * hold at a time. An identity gets one when it is opened. When none is left, the
 * identity unused for longest gives up its arena, if it has no lease, ticket, pin
 * or transfer and was not used for `identity_idle_ns`.
 *
 * Threads: every function may be called from any thread; none blocks but for
 * short locks, save qms_store_create (prefault) and those that say so.
 */
#ifndef QMS_STORE_H
#define QMS_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "common/clock.h"
#include "server/store/types.h"
#include "server/store/watch.h"

struct qms_store;

/** What fixes a block's bytes. The store compares it and uses block_bytes; the rest is the
 * service's. */
struct qms_layout {
	uint32_t format, layers, content_dim, rope_dim, page_tokens, version;
	uint64_t fingerprint;
	uint64_t block_bytes;
};

/** A written block before it becomes visible. */
struct qms_block_view {
	const void *data;
	struct qms_key key;
	struct qms_identity identity;
	struct qms_layout layout;
	uint64_t generation;
	uint64_t digest; /**< as the writer gave it */
};

struct qms_store_callbacks {
	void *user;
	/** Judges a block at commit: QMLA_OK or why it is refused. No lock is held; may take its
	 * time. NULL: accept. */
	qmla_status_t (*verify)(void *user, const struct qms_block_view *block);
	/** Returns when no write under @p capability can land any more. No lock is held; may block.
	 * NULL: nothing to do. */
	void (*fence)(void *user, const struct qms_capability *capability);
	/** The arena @p region is about to go from one identity to another, with the store's lock
	 * held: cut off whoever can read it without asking. Must not call the store. NULL: nobody
	 * can. */
	void (*dropped)(void *user, uint32_t region);
	/** Something expires before the time given to qms_store_arm. Must not block or call the
	 * store. NULL: nobody waits. */
	void (*rearm)(void *user);
};

/** Zero means the default where one is given. */
struct qms_store_config {
	uint64_t pool_bytes;         /**< of all identities together */
	uint32_t max_identities;     /**< 1 … QMS_MAX_IDENTITIES; default 4 */
	uint32_t max_leases;         /**< default 65,536 */
	uint32_t max_leased_slots;   /**< over all leases; default 1,048,576 */
	uint32_t max_tickets;        /**< default 65,536 */
	uint32_t max_pins;           /**< default 65,536 */
	uint32_t max_leased_percent; /**< of a pool's slots; default 100 */
	uint32_t max_watchers;       /**< default 64 */
	uint32_t watch_ring;         /**< events a watcher may fall behind; default 4,096 */
	int64_t max_lease_ns;        /**< default 60 s */
	int64_t default_lease_ns;    /**< when a caller names none; default 10 s */
	int64_t default_pin_ns;      /**< default 10 min */
	int64_t max_pin_ns;          /**< default 24 h */
	int64_t identity_idle_ns;    /**< see above; 0 is no wait */
	bool huge_pages, prefault;
	struct qms_store_callbacks callbacks;
};

struct qms_pool_info {
	struct qms_identity identity;
	struct qms_layout layout;
	uint32_t region; /**< number of the arena */
	uint64_t slots, used_slots, slot_bytes;
};

struct qms_lookup_entry {
	qmla_status_t
		status; /**< OK or NOT_FOUND; RESOURCE_EXHAUSTED: there, but too much is leased */
	uint64_t offset, length, generation, digest;
};

struct qms_reserve_entry {
	qmla_status_t status; /**< OK, ALREADY_EXISTS, BUSY or RESOURCE_EXHAUSTED */
	uint64_t ticket, offset, length, generation;
};

/** What was granted for a whole call. */
struct qms_grant {
	uint64_t lease; /**< 0: none (also for tickets) */
	int64_t granted_ns;
	struct qms_capability capability;
};

struct qms_store_stats {
	uint64_t capacity_bytes, used_bytes, slots, blocks;
	uint64_t leases, tickets, pins, watchers, inflight;
	uint64_t lookups, hits, reserves, commits, evictions, removals;
	uint64_t expired_leases, expired_tickets, expired_pins, rejected_full, busy_writers;
	uint64_t corrupt_commits, corrupt_reports, lost_watchers, identities, dropped_identities;
};

qmla_status_t qms_store_create(const struct qms_store_config *config, struct qms_store **store);
/** No call may be running, no transfer in flight, every watcher closed. Accepts NULL. */
void qms_store_destroy(struct qms_store *store);

/** Arenas, to be registered with the transports: as many as max_identities. */
uint32_t qms_store_regions(const struct qms_store *store);
void qms_store_region(const struct qms_store *store, uint32_t region, void **base, uint64_t *bytes,
		      int *fd);

/* Times that may change while the store runs (SIGHUP). */
void qms_store_set_limits(struct qms_store *store, int64_t max_lease_ns, int64_t default_pin_ns,
			  int64_t identity_idle_ns);
int64_t qms_store_max_lease(const struct qms_store *store);

/* --- store.c --- */

/**
 * Opens the pool of @p identity, making it on first use. QMLA_ERR_LAYOUT_MISMATCH: the
 * identity is open with another layout; QMLA_ERR_TOO_LARGE: a block does not fit
 * an arena; QMLA_ERR_RESOURCE_EXHAUSTED: no arena is free or idle. All logged.
 */
qmla_status_t qms_store_open(struct qms_store *store, const struct qms_identity *identity,
			     const struct qms_layout *layout, struct qms_pool_info *info);

/** Open pools; @p count is in: room, out: filled. */
void qms_store_pools(struct qms_store *store, struct qms_pool_info *infos, size_t *count);

void qms_store_stats(struct qms_store *store, struct qms_store_stats *stats);

/**
 * Ends what expired by @p now. May block in the fence. Returns the time of the
 * next expiry, which may be past when there was much to do.
 */
qmc_time_t qms_store_expire(struct qms_store *store, qmc_time_t now);

/** Tells the store when qms_store_expire will be called next: rearm is called if that is too late.
 * INT64_MAX: at any new expiry. */
void qms_store_arm(struct qms_store *store, qmc_time_t when);

/* --- store_read.c --- */

/**
 * Finds @p keys. With @p lease_ns > 0 everything found is leased together, for
 * at most max_lease_ns. @p stop_at_hole: what follows the first miss is not_found
 * and not leased. QMLA_ERR_NOT_FOUND: the identity is not open;
 * QMLA_ERR_RESOURCE_EXHAUSTED: no room for another lease.
 */
qmla_status_t qms_store_lookup(struct qms_store *store, const struct qms_identity *identity,
			       const struct qms_key *keys, size_t count, int64_t lease_ns,
			       bool stop_at_hole, struct qms_lookup_entry *entries,
			       struct qms_grant *grant);

/** @p lease_ns 0: the default. QMLA_ERR_LEASE_EXPIRED. */
qmla_status_t qms_store_renew(struct qms_store *store, uint64_t lease, int64_t lease_ns,
			      int64_t *granted_ns);
/** QMLA_ERR_LEASE_EXPIRED: it ended before. */
qmla_status_t qms_store_release(struct qms_store *store, uint64_t lease);

/**
 * Authorises a peer's access to [offset, offset + length) of @p region and holds
 * the slot until qms_store_access_end(@p token). QMLA_ERR_PERMISSION,
 * QMLA_ERR_LEASE_EXPIRED, QMLA_ERR_INVALID_ARGUMENT (not inside one slot).
 */
qmla_status_t qms_store_access_begin(struct qms_store *store, bool write, uint64_t region,
				     uint64_t offset, uint64_t length,
				     const struct qms_capability *capability, uint64_t *token);
void qms_store_access_end(struct qms_store *store, uint64_t token);

/* --- store_write.c --- */

/**
 * Reserves a slot for each key that nobody has or is writing; evicts to make room.
 * Once the pool is full every later new key is refused too, so that no hole
 * arises. QMLA_ERR_NOT_FOUND: the identity is not open; QMLA_ERR_RESOURCE_EXHAUSTED:
 * the table of tickets is full.
 */
qmla_status_t qms_store_reserve(struct qms_store *store, const struct qms_identity *identity,
				const struct qms_key *keys, size_t count, int64_t lease_ns,
				struct qms_reserve_entry *entries, struct qms_grant *grant);

/** Milliseconds after which a refused reserve may succeed: until the next expiry, 10 to 1,000. */
uint32_t qms_store_retry_hint(struct qms_store *store);

/**
 * Verifies the block and makes it visible. QMLA_ERR_ALREADY_EXISTS: the ticket
 * was committed before; QMLA_ERR_LEASE_EXPIRED; QMLA_ERR_BUSY: a write under the
 * ticket is still moving or another commit runs (the ticket lives on); or what verify
 * says, and then the ticket has ended and the slot is dropped.
 */
qmla_status_t qms_store_commit(struct qms_store *store, uint64_t ticket, uint64_t digest);

/** Gives a reserved slot up. Statuses as commit. May block in the fence. */
qmla_status_t qms_store_abort(struct qms_store *store, uint64_t ticket);

/* --- store_admin.c --- */

/** QMLA_ERR_NOT_FOUND; QMLA_ERR_BUSY: pinned. A leased block is gone at once for others, its memory
 * when the leases end. */
qmla_status_t qms_store_remove(struct qms_store *store, const struct qms_identity *identity,
			       const struct qms_key *key);
/** Removes every block of @p identity that is not pinned; @p busy counts those that are. */
void qms_store_remove_all(struct qms_store *store, const struct qms_identity *identity,
			  uint64_t *removed, uint64_t *busy);
/** Drops a bad block, pinned or not. QMLA_ERR_NOT_FOUND; QMLA_ERR_STALE: another generation by now.
 */
qmla_status_t qms_store_report(struct qms_store *store, const struct qms_identity *identity,
			       const struct qms_key *key, uint64_t generation);
/** @p ttl_ns 0: the default. QMLA_ERR_NOT_FOUND, QMLA_ERR_RESOURCE_EXHAUSTED,
 * QMLA_ERR_INVALID_ARGUMENT (owner's length). */
qmla_status_t qms_store_pin(struct qms_store *store, const struct qms_identity *identity,
			    const struct qms_key *key, const char *owner, int64_t ttl_ns);
/** QMLA_ERR_NOT_FOUND: no such key, or @p owner has no pin on it. */
qmla_status_t qms_store_unpin(struct qms_store *store, const struct qms_identity *identity,
			      const struct qms_key *key, const char *owner);

struct qms_watch_hub *
qms_store_watch_hub(struct qms_store *store); /**< lives as long as the store */

/** Where a walk over the keys stands; zero-initialise. */
struct qms_scan {
	uint32_t region;
	uint32_t bucket;
};
/**
 * Next keys of @p identity (NULL: all), as inserted events; none at the end. Keys
 * that come or go meanwhile may or may not be seen. @p max is at least 256.
 */
size_t qms_store_scan(struct qms_store *store, const struct qms_identity *identity,
		      struct qms_scan *scan, struct qms_event *events, size_t max);

/* --- store_check.c --- */

/** Checks every invariant. No other call may be running. False, with the reason in @p why, when one
 * is broken. */
bool qms_store_check(struct qms_store *store, char *why, size_t size);

#endif /* QMS_STORE_H */
