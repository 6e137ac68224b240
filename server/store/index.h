/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Finds the slot of a key: a hash table in shards, each with its own lock. The
 * chains run through one fixed entry a slot, so the table never grows, never
 * allocates and costs 24 bytes a slot plus 4 to 8 a bucket. Keys are hashed with
 * a secret of this process: keys crafted to collide do not.
 */
#ifndef QMS_INDEX_H
#define QMS_INDEX_H

#include <stdint.h>

#include <qmla/status.h>

#include "server/store/types.h"

#define QMS_INDEX_SHARDS 64u

struct qms_index;

/** For at most @p slots entries. */
qmla_status_t qms_index_create(uint32_t slots, struct qms_index **index);
void qms_index_destroy(struct qms_index *index); /**< accepts NULL */

/** Keyed hash; also names the shard. Any thread, no lock. */
uint64_t qms_index_hash(const struct qms_index *index, const struct qms_key *key);

/** Starts loading the bucket of @p hash into the cache. No lock. */
void qms_index_prefetch(const struct qms_index *index, uint64_t hash);

/**
 * Slot at the head of the bucket of @p hash, whose entry it starts loading:
 * most likely where a find will end. No lock; only a guess. QMS_SLOT_NONE: empty.
 */
uint32_t qms_index_guess(const struct qms_index *index, uint64_t hash);

/** Lock of the shard that @p hash belongs to. Never two at a time. */
void qms_index_lock(struct qms_index *index, uint64_t hash);
void qms_index_unlock(struct qms_index *index, uint64_t hash);

/** Slot of @p key or QMS_SLOT_NONE. Shard locked. */
uint32_t qms_index_find(const struct qms_index *index, uint64_t hash, const struct qms_key *key);

/** Adds @p key, which must not be there, for @p slot, which must not be in use. Shard locked. */
void qms_index_insert(struct qms_index *index, uint64_t hash, const struct qms_key *key,
		      uint32_t slot);

/** Takes out the entry of @p slot. Shard locked. */
void qms_index_remove(struct qms_index *index, uint64_t hash, uint32_t slot);

/** Key last inserted for @p slot. Shard locked. */
const struct qms_key *qms_index_key(const struct qms_index *index, uint32_t slot);

/** Buckets, for walks: bucket b is guarded by the shard of hash value b. */
uint32_t qms_index_buckets(const struct qms_index *index);
/** First slot of a bucket, then the next of a slot; QMS_SLOT_NONE at the end. Shard locked. */
uint32_t qms_index_first(const struct qms_index *index, uint32_t bucket);
uint32_t qms_index_next(const struct qms_index *index, uint32_t slot);

#endif /* QMS_INDEX_H */
