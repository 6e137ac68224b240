/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/index.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/digest.h"

#define SECRET_BYTES 192

struct entry {
	struct qms_key key;
	uint32_t next;
};

/* A cache line each, so that two shards do not share one. */
struct shard {
	pthread_mutex_t lock;
} __attribute__((aligned(64)));

struct qms_index {
	struct shard shards[QMS_INDEX_SHARDS];
	uint8_t secret[SECRET_BYTES];
	/* Slot + 1 of the first entry, 0: empty. Relaxed: the shard's lock orders all but guesses.
	 */
	_Atomic uint32_t *buckets;
	uint32_t mask;
	struct entry *entries; /* one a slot; next is slot + 1 or 0 */
};

static uint32_t bucket_count(uint32_t slots)
{
	uint32_t count = QMS_INDEX_SHARDS;

	while (count < slots && count < UINT32_C(1) << 31)
		count *= 2;
	return count;
}

qmla_status_t qms_index_create(uint32_t slots, struct qms_index **index)
{
	uint32_t buckets = bucket_count(slots);
	struct qms_index *made;
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	made = aligned_alloc(64, sizeof(*made));
	if (!made)
		return QMLA_ERR_NO_MEMORY;
	memset(made, 0, sizeof(*made));
	made->mask = buckets - 1;
	made->buckets = calloc(buckets, sizeof(*made->buckets));
	made->entries = calloc(slots, sizeof(*made->entries));
	if (!made->buckets || !made->entries)
		goto err_free;
	status = qmc_random_bytes(made->secret, sizeof(made->secret));
	if (status != QMLA_OK)
		goto err_free;
	for (uint32_t i = 0; i < QMS_INDEX_SHARDS; i++)
		pthread_mutex_init(&made->shards[i].lock, NULL);
	*index = made;
	return QMLA_OK;

err_free:
	free(made->buckets);
	free(made->entries);
	free(made);
	return status;
}

void qms_index_destroy(struct qms_index *index)
{
	if (!index)
		return;
	for (uint32_t i = 0; i < QMS_INDEX_SHARDS; i++)
		pthread_mutex_destroy(&index->shards[i].lock);
	free(index->buckets);
	free(index->entries);
	free(index);
}

uint64_t qms_index_hash(const struct qms_index *index, const struct qms_key *key)
{
	return XXH3_64bits_withSecret(key->bytes, sizeof(key->bytes), index->secret,
				      sizeof(index->secret));
}

void qms_index_prefetch(const struct qms_index *index, uint64_t hash)
{
	__builtin_prefetch(&index->buckets[(uint32_t)hash & index->mask]);
}

static uint32_t head_of(const struct qms_index *index, uint64_t bucket)
{
	return atomic_load_explicit(&index->buckets[(uint32_t)bucket & index->mask],
				    memory_order_relaxed);
}

uint32_t qms_index_guess(const struct qms_index *index, uint64_t hash)
{
	uint32_t at = head_of(index, hash);

	if (at != 0)
		__builtin_prefetch(&index->entries[at - 1]);
	return at - 1; /* 0 - 1 is QMS_SLOT_NONE */
}

/* The low bits choose the bucket and, lower still, the shard: a bucket has one lock. */
void qms_index_lock(struct qms_index *index, uint64_t hash)
{
	pthread_mutex_lock(&index->shards[hash % QMS_INDEX_SHARDS].lock);
}

void qms_index_unlock(struct qms_index *index, uint64_t hash)
{
	pthread_mutex_unlock(&index->shards[hash % QMS_INDEX_SHARDS].lock);
}

uint32_t qms_index_find(const struct qms_index *index, uint64_t hash, const struct qms_key *key)
{
	uint32_t at = head_of(index, hash);

	while (at != 0) {
		const struct entry *entry = &index->entries[at - 1];

		if (memcmp(entry->key.bytes, key->bytes, sizeof(key->bytes)) == 0)
			return at - 1;
		at = entry->next;
	}
	return QMS_SLOT_NONE;
}

static void set_head(struct qms_index *index, uint64_t hash, uint32_t at)
{
	atomic_store_explicit(&index->buckets[(uint32_t)hash & index->mask], at,
			      memory_order_relaxed);
}

void qms_index_insert(struct qms_index *index, uint64_t hash, const struct qms_key *key,
		      uint32_t slot)
{
	struct entry *entry = &index->entries[slot];

	entry->key = *key;
	entry->next = head_of(index, hash);
	set_head(index, hash, slot + 1);
}

void qms_index_remove(struct qms_index *index, uint64_t hash, uint32_t slot)
{
	uint32_t at = head_of(index, hash);

	if (at == slot + 1) {
		set_head(index, hash, index->entries[slot].next);
		return;
	}
	while (index->entries[at - 1].next != slot + 1)
		at = index->entries[at - 1].next;
	index->entries[at - 1].next = index->entries[slot].next;
}

const struct qms_key *qms_index_key(const struct qms_index *index, uint32_t slot)
{
	return &index->entries[slot].key;
}

uint32_t qms_index_buckets(const struct qms_index *index)
{
	return index->mask + 1;
}

uint32_t qms_index_first(const struct qms_index *index, uint32_t bucket)
{
	return head_of(index, bucket) - 1; /* 0 - 1 is QMS_SLOT_NONE */
}

uint32_t qms_index_next(const struct qms_index *index, uint32_t slot)
{
	return index->entries[slot].next - 1;
}
