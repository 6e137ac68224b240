/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <stdio.h>
#include <string.h>

struct qms_key key_of(uint64_t n)
{
	struct qms_key key;

	/* As crafted as can be: only the low bytes differ. */
	memset(&key, 0x5a, sizeof(key));
	memcpy(key.bytes, &n, sizeof(n));
	return key;
}

struct qms_identity identity_of(uint8_t n)
{
	struct qms_identity identity;

	memset(&identity, n, sizeof(identity));
	return identity;
}

struct qms_layout layout_of(uint64_t block_bytes)
{
	return (struct qms_layout){.format = 1,
				   .layers = 2,
				   .content_dim = 64,
				   .rope_dim = 32,
				   .page_tokens = 64,
				   .version = 1,
				   .fingerprint = 0x1234,
				   .block_bytes = block_bytes};
}

struct qms_store *store_small(uint32_t slots, const struct qms_store_callbacks *callbacks)
{
	struct qms_store_config config = {.pool_bytes = (uint64_t)slots * SLOT_BYTES,
					  .max_identities = 1};
	struct qms_identity identity = identity_of(1);
	struct qms_layout layout = layout_of(SLOT_BYTES);
	struct qms_pool_info info;
	struct qms_store *store;

	if (callbacks)
		config.callbacks = *callbacks;
	if (qms_store_create(&config, &store) != QMLA_OK)
		return NULL;
	if (qms_store_open(store, &identity, &layout, &info) != QMLA_OK) {
		qms_store_destroy(store);
		return NULL;
	}
	return store;
}

qmla_status_t store_put(struct qms_store *store, const struct qms_identity *identity, uint64_t key)
{
	struct qms_key k = key_of(key);
	struct qms_reserve_entry entry;
	struct qms_grant grant;
	qmla_status_t status = qms_store_reserve(store, identity, &k, 1, 0, &entry, &grant);

	if (status == QMLA_OK)
		status = entry.status;
	return status == QMLA_OK ? qms_store_commit(store, entry.ticket, key) : status;
}

qmla_status_t store_has(struct qms_store *store, const struct qms_identity *identity, uint64_t key)
{
	struct qms_key k = key_of(key);
	struct qms_lookup_entry entry;
	struct qms_grant grant;
	qmla_status_t status = qms_store_lookup(store, identity, &k, 1, 0, false, &entry, &grant);

	return status == QMLA_OK ? entry.status : status;
}

qmla_status_t store_lease(struct qms_store *store, const struct qms_identity *identity,
			  uint64_t key, struct qms_lookup_entry *entry, struct qms_grant *grant)
{
	struct qms_key k = key_of(key);
	qmla_status_t status =
		qms_store_lookup(store, identity, &k, 1, 10 * QMC_NS_PER_S, false, entry, grant);

	return status == QMLA_OK ? entry->status : status;
}

bool store_sound(struct qms_store *store)
{
	char why[256] = "";

	if (qms_store_check(store, why, sizeof(why)))
		return true;
	printf("broken invariant: %s\n", why);
	return false;
}

uint64_t random_next(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}
