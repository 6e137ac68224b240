/* SPDX-License-Identifier: Apache-2.0 */
/** @file Small stores and keys for the store's tests. */
#ifndef TEST_STORE_SUPPORT_H
#define TEST_STORE_SUPPORT_H

#include "server/store/store.h"

#define SLOT_BYTES 4096u

/** Key number @p n; different numbers give different keys. */
struct qms_key key_of(uint64_t n);
struct qms_identity identity_of(uint8_t n);
struct qms_layout layout_of(uint64_t block_bytes);

/** A store of one identity with @p slots slots of SLOT_BYTES; NULL when it cannot be made. */
struct qms_store *store_small(uint32_t slots, const struct qms_store_callbacks *callbacks);

/** Reserves and commits one key; the first status that is not OK. */
qmla_status_t store_put(struct qms_store *store, const struct qms_identity *identity, uint64_t key);

/** Lookup of one key without lease. */
qmla_status_t store_has(struct qms_store *store, const struct qms_identity *identity, uint64_t key);

/** Lookup of one key with a lease. */
qmla_status_t store_lease(struct qms_store *store, const struct qms_identity *identity,
			  uint64_t key, struct qms_lookup_entry *entry, struct qms_grant *grant);

/** qms_store_check that prints why it failed. */
bool store_sound(struct qms_store *store);

/** A small generator (splitmix64), for tests that repeat from a seed. */
uint64_t random_next(uint64_t *state);

#endif /* TEST_STORE_SUPPORT_H */
