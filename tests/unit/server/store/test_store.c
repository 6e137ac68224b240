/* SPDX-License-Identifier: Apache-2.0 */
/* What the store promises, one behaviour a test. */
#include "../cmocka_first.h"

#include <string.h>

#include "support.h"

static struct qms_identity me;

static int setup(void **state)
{
	me = identity_of(1);
	*state = store_small(4, NULL);
	return *state ? 0 : -1;
}

static int teardown(void **state)
{
	bool sound = store_sound(*state);

	qms_store_destroy(*state);
	return sound ? 0 : -1;
}

static void nothing_is_visible_before_its_commit(void **state)
{
	struct qms_store *store = *state;
	struct qms_key key = key_of(1);
	struct qms_reserve_entry mine, second;
	struct qms_grant grant;

	assert_int_equal(qms_store_reserve(store, &me, &key, 1, 0, &mine, &grant), QMLA_OK);
	assert_int_equal(mine.status, QMLA_OK);
	assert_int_equal(mine.length, SLOT_BYTES);
	assert_int_equal(store_has(store, &me, 1), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qms_store_remove(store, &me, &key), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qms_store_pin(store, &me, &key, "x", 0), QMLA_ERR_NOT_FOUND);
	/* Another writer meanwhile is told to leave it. */
	assert_int_equal(qms_store_reserve(store, &me, &key, 1, 0, &second, &grant), QMLA_OK);
	assert_int_equal(second.status, QMLA_ERR_BUSY);
	assert_int_equal(grant.granted_ns, 0);
	assert_int_equal(qms_store_commit(store, mine.ticket, 42), QMLA_OK);
	assert_int_equal(store_has(store, &me, 1), QMLA_OK);
	assert_int_equal(qms_store_commit(store, mine.ticket, 42), QMLA_ERR_ALREADY_EXISTS);
	assert_int_equal(qms_store_reserve(store, &me, &key, 1, 0, &second, &grant), QMLA_OK);
	assert_int_equal(second.status, QMLA_ERR_ALREADY_EXISTS);
}

static void lookup_says_where_and_which_life(void **state)
{
	struct qms_store *store = *state;
	struct qms_key keys[3] = {key_of(1), key_of(2), key_of(3)};
	struct qms_reserve_entry reserved[3];
	struct qms_lookup_entry found[3];
	struct qms_grant grant;

	assert_int_equal(qms_store_reserve(store, &me, keys, 3, 0, reserved, &grant), QMLA_OK);
	for (int i = 0; i < 3; i++)
		assert_int_equal(qms_store_commit(store, reserved[i].ticket, 70u + (unsigned)i),
				 QMLA_OK);
	assert_int_equal(qms_store_lookup(store, &me, keys, 3, QMC_NS_PER_S, false, found, &grant),
			 QMLA_OK);
	assert_int_not_equal(grant.lease, 0);
	assert_int_equal(grant.granted_ns, QMC_NS_PER_S);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(found[i].status, QMLA_OK);
		assert_int_equal(found[i].offset, reserved[i].offset);
		assert_int_equal(found[i].length, SLOT_BYTES);
		assert_int_equal(found[i].generation, reserved[i].generation);
		assert_int_equal(found[i].digest, 70 + i);
	}
	assert_int_equal(qms_store_release(store, grant.lease), QMLA_OK);
	assert_int_equal(qms_store_release(store, grant.lease), QMLA_ERR_LEASE_EXPIRED);
}

static void a_hole_ends_the_run_when_asked(void **state)
{
	struct qms_store *store = *state;
	struct qms_key keys[4] = {key_of(1), key_of(2), key_of(3), key_of(4)};
	struct qms_lookup_entry found[4];
	struct qms_grant grant;
	struct qms_store_stats stats;

	assert_int_equal(store_put(store, &me, 1), QMLA_OK);
	assert_int_equal(store_put(store, &me, 3), QMLA_OK);
	assert_int_equal(qms_store_lookup(store, &me, keys, 4, QMC_NS_PER_S, true, found, &grant),
			 QMLA_OK);
	assert_int_equal(found[0].status, QMLA_OK);
	for (int i = 1; i < 4; i++)
		assert_int_equal(found[i].status, QMLA_ERR_NOT_FOUND);
	assert_int_equal(qms_store_release(store, grant.lease), QMLA_OK);
	assert_int_equal(qms_store_lookup(store, &me, keys, 4, QMC_NS_PER_S, false, found, &grant),
			 QMLA_OK);
	assert_int_equal(found[2].status, QMLA_OK);
	assert_int_equal(found[3].status, QMLA_ERR_NOT_FOUND);
	assert_int_equal(qms_store_release(store, grant.lease), QMLA_OK);
	/* Nothing found, nothing granted. */
	assert_int_equal(
		qms_store_lookup(store, &me, &keys[3], 1, QMC_NS_PER_S, false, found, &grant),
		QMLA_OK);
	assert_int_equal(grant.lease, 0);
	qms_store_stats(store, &stats);
	assert_int_equal(stats.leases, 0);
	assert_int_equal(stats.lookups, 9);
	assert_int_equal(stats.hits, 3);
}

static void a_duplicate_in_one_batch_is_busy(void **state)
{
	struct qms_store *store = *state;
	struct qms_key keys[3] = {key_of(1), key_of(1), key_of(2)};
	struct qms_reserve_entry entries[3];
	struct qms_lookup_entry found[3];
	struct qms_grant grant;

	assert_int_equal(qms_store_reserve(store, &me, keys, 3, 0, entries, &grant), QMLA_OK);
	assert_int_equal(entries[0].status, QMLA_OK);
	assert_int_equal(entries[1].status, QMLA_ERR_BUSY);
	assert_int_equal(entries[2].status, QMLA_OK);
	assert_int_equal(qms_store_commit(store, entries[0].ticket, 0), QMLA_OK);
	assert_int_equal(qms_store_abort(store, entries[2].ticket), QMLA_OK);
	/* A lookup may name a key twice; the lease covers it twice and ends once. */
	assert_int_equal(qms_store_lookup(store, &me, keys, 3, QMC_NS_PER_S, false, found, &grant),
			 QMLA_OK);
	assert_int_equal(found[0].offset, found[1].offset);
	assert_int_equal(qms_store_release(store, grant.lease), QMLA_OK);
}

static void a_full_pool_evicts_what_nobody_holds(void **state)
{
	struct qms_store *store = *state;
	struct qms_store_stats stats;

	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(store_put(store, &me, i), QMLA_OK);
	qms_store_stats(store, &stats);
	assert_int_equal(stats.blocks, 4);
	assert_int_equal(stats.evictions, 96);
	assert_int_equal(store_has(store, &me, 99), QMLA_OK);
	assert_int_equal(store_has(store, &me, 0), QMLA_ERR_NOT_FOUND);
}

static void everything_leased_is_a_clear_no_and_ends_with_the_lease(void **state)
{
	struct qms_store *store = *state;
	struct qms_key keys[4], more[3] = {key_of(10), key_of(1), key_of(11)};
	struct qms_reserve_entry entries[3];
	struct qms_lookup_entry found[4];
	struct qms_grant grant, writer;
	struct qms_store_stats stats;

	for (uint64_t i = 0; i < 4; i++) {
		keys[i] = key_of(i);
		assert_int_equal(store_put(store, &me, i), QMLA_OK);
	}
	assert_int_equal(qms_store_lookup(store, &me, keys, 4, QMC_NS_PER_S, false, found, &grant),
			 QMLA_OK);
	/* Only the suffix is refused, keys that exist still say so; again and again, promptly. */
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(qms_store_reserve(store, &me, more, 3, 0, entries, &writer),
				 QMLA_OK);
		assert_int_equal(entries[0].status, QMLA_ERR_RESOURCE_EXHAUSTED);
		assert_int_equal(entries[1].status, QMLA_ERR_ALREADY_EXISTS);
		assert_int_equal(entries[2].status, QMLA_ERR_RESOURCE_EXHAUSTED);
	}
	assert_in_range(qms_store_retry_hint(store), 10, 1000);
	qms_store_stats(store, &stats);
	assert_int_equal(stats.rejected_full, 2000);
	assert_int_equal(stats.evictions, 0);
	assert_true(store_sound(store));
	assert_int_equal(qms_store_release(store, grant.lease), QMLA_OK);
	assert_int_equal(qms_store_reserve(store, &me, more, 3, 0, entries, &writer), QMLA_OK);
	assert_int_equal(entries[0].status, QMLA_OK);
	assert_int_equal(entries[2].status, QMLA_OK);
}

/* A leased block is never given away: its bytes stay until the lease ends. */
static void a_leased_slot_is_not_reused(void **state)
{
	struct qms_store *store = *state;
	struct qms_lookup_entry entry, now;
	struct qms_grant grant, other;

	assert_int_equal(store_put(store, &me, 7), QMLA_OK);
	assert_int_equal(store_lease(store, &me, 7, &entry, &grant), QMLA_OK);
	for (uint64_t i = 100; i < 300; i++) {
		assert_int_equal(store_put(store, &me, i), QMLA_OK);
		assert_int_equal(store_lease(store, &me, i, &now, &other), QMLA_OK);
		assert_int_not_equal(now.offset, entry.offset);
		assert_int_equal(qms_store_release(store, other.lease), QMLA_OK);
	}
	assert_int_equal(store_has(store, &me, 7), QMLA_OK);
	assert_int_equal(qms_store_release(store, grant.lease), QMLA_OK);
}

static void removing_a_leased_block_hides_it_and_keeps_its_bytes(void **state)
{
	struct qms_store *store = *state;
	struct qms_key key = key_of(7);
	struct qms_lookup_entry entry, now;
	struct qms_grant grant, other;
	struct qms_store_stats stats;
	uint64_t token;

	assert_int_equal(store_put(store, &me, 7), QMLA_OK);
	assert_int_equal(store_lease(store, &me, 7, &entry, &grant), QMLA_OK);
	assert_int_equal(qms_store_remove(store, &me, &key), QMLA_OK);
	assert_int_equal(qms_store_remove(store, &me, &key), QMLA_ERR_NOT_FOUND);
	assert_int_equal(store_has(store, &me, 7), QMLA_ERR_NOT_FOUND);
	/* The reader with the lease may still read... */
	assert_int_equal(
		qms_store_access_begin(store, false, 0, entry.offset, 1, &grant.capability, &token),
		QMLA_OK);
	/* ...and a new block of the same key stands elsewhere. */
	assert_int_equal(store_put(store, &me, 7), QMLA_OK);
	assert_int_equal(store_lease(store, &me, 7, &now, &other), QMLA_OK);
	assert_int_not_equal(now.offset, entry.offset);
	assert_int_equal(qms_store_release(store, other.lease), QMLA_OK);
	assert_int_equal(qms_store_release(store, grant.lease), QMLA_OK);
	/* Released, but still being moved: the slot waits. */
	qms_store_stats(store, &stats);
	assert_int_equal(stats.used_bytes, 2 * SLOT_BYTES);
	assert_int_equal(stats.inflight, 1);
	assert_true(store_sound(store));
	qms_store_access_end(store, token);
	qms_store_stats(store, &stats);
	assert_int_equal(stats.used_bytes, SLOT_BYTES);
}

static void leases_are_bounded_and_expire(void **state)
{
	struct qms_store *store = *state;
	struct qms_lookup_entry entry;
	struct qms_store_stats stats;
	struct qms_grant grant;
	struct qms_key key = key_of(1);
	int64_t granted = 0;
	qmc_time_t now;

	assert_int_equal(store_put(store, &me, 1), QMLA_OK);
	assert_int_equal(
		qms_store_lookup(store, &me, &key, 1, 3600 * QMC_NS_PER_S, false, &entry, &grant),
		QMLA_OK);
	assert_int_equal(grant.granted_ns, 60 * QMC_NS_PER_S);
	assert_int_equal(qms_store_renew(store, grant.lease, 3600 * QMC_NS_PER_S, &granted),
			 QMLA_OK);
	assert_int_equal(granted, 60 * QMC_NS_PER_S);
	now = qmc_clock_now();
	assert_true(qms_store_expire(store, now) > now + 59 * QMC_NS_PER_S);
	assert_int_equal(qms_store_expire(store, now + 61 * QMC_NS_PER_S), QMC_TIME_NEVER);
	assert_int_equal(qms_store_renew(store, grant.lease, QMC_NS_PER_S, &granted),
			 QMLA_ERR_LEASE_EXPIRED);
	qms_store_stats(store, &stats);
	assert_int_equal(stats.leases, 0);
	assert_int_equal(stats.expired_leases, 1);
}

static void access_is_bound_to_slot_kind_and_capability(void **state)
{
	struct qms_store *store = *state;
	struct qms_key key = key_of(2);
	struct qms_reserve_entry writing;
	struct qms_lookup_entry entry;
	struct qms_grant reader, writer;
	uint64_t token = 77;

	assert_int_equal(store_put(store, &me, 1), QMLA_OK);
	assert_int_equal(store_lease(store, &me, 1, &entry, &reader), QMLA_OK);
	assert_int_equal(qms_store_reserve(store, &me, &key, 1, 0, &writing, &writer), QMLA_OK);
#define TRY(write, region, offset, length, capability)                                             \
	qms_store_access_begin(store, write, region, offset, length, capability, &token)
	assert_int_equal(TRY(true, 0, entry.offset, 1, &reader.capability), QMLA_ERR_PERMISSION);
	assert_int_equal(TRY(false, 0, writing.offset, 1, &writer.capability), QMLA_ERR_PERMISSION);
	assert_int_equal(TRY(false, 0, writing.offset, 1, &reader.capability), QMLA_ERR_PERMISSION);
	assert_int_equal(TRY(true, 0, entry.offset, 1, &writer.capability), QMLA_ERR_PERMISSION);
	assert_int_equal(TRY(false, 1, entry.offset, 1, &reader.capability), QMLA_ERR_PERMISSION);
	assert_int_equal(TRY(false, UINT64_MAX, entry.offset, 1, &reader.capability),
			 QMLA_ERR_PERMISSION);
	assert_int_equal(TRY(false, 0, entry.offset, SLOT_BYTES + 1, &reader.capability),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(TRY(false, 0, entry.offset + 1, SLOT_BYTES, &reader.capability),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(TRY(false, 0, UINT64_MAX - 1, 2, &reader.capability),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(token, 77);
	assert_int_equal(TRY(true, 0, writing.offset, SLOT_BYTES, &writer.capability), QMLA_OK);
	/* A write that moves holds the commit up. */
	assert_int_equal(qms_store_commit(store, writing.ticket, 0), QMLA_ERR_BUSY);
	qms_store_access_end(store, token);
	assert_int_equal(qms_store_commit(store, writing.ticket, 0), QMLA_OK);
	assert_int_equal(TRY(true, 0, writing.offset, SLOT_BYTES, &writer.capability),
			 QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(TRY(false, 0, entry.offset, SLOT_BYTES, &reader.capability), QMLA_OK);
	qms_store_access_end(store, token);
	assert_int_equal(qms_store_release(store, reader.lease), QMLA_OK);
	assert_int_equal(TRY(false, 0, entry.offset, 1, &reader.capability),
			 QMLA_ERR_LEASE_EXPIRED);
#undef TRY
}

static void abort_frees_the_key_at_once(void **state)
{
	struct qms_store *store = *state;
	struct qms_key key = key_of(1);
	struct qms_reserve_entry entry;
	struct qms_grant grant;
	struct qms_store_stats stats;

	assert_int_equal(qms_store_reserve(store, &me, &key, 1, 0, &entry, &grant), QMLA_OK);
	assert_int_equal(qms_store_abort(store, entry.ticket), QMLA_OK);
	assert_int_equal(qms_store_abort(store, entry.ticket), QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(qms_store_commit(store, entry.ticket, 0), QMLA_ERR_LEASE_EXPIRED);
	qms_store_stats(store, &stats);
	assert_int_equal(stats.used_bytes, 0);
	assert_int_equal(store_put(store, &me, 1), QMLA_OK);
}

static void pins_keep_a_block_and_end_by_themselves(void **state)
{
	struct qms_store *store = *state;
	struct qms_key key = key_of(1);
	char long_owner[QMS_OWNER_MAX + 1];
	struct qms_store_stats stats;
	uint64_t removed, busy;

	memset(long_owner, 'x', sizeof(long_owner));
	long_owner[QMS_OWNER_MAX] = '\0';
	assert_int_equal(store_put(store, &me, 1), QMLA_OK);
	assert_int_equal(qms_store_pin(store, &me, &key, "", 0), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qms_store_pin(store, &me, &key, long_owner, 0), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qms_store_pin(store, &me, &key, "a", QMC_NS_PER_S), QMLA_OK);
	assert_int_equal(qms_store_pin(store, &me, &key, "b", 10 * QMC_NS_PER_S), QMLA_OK);
	for (uint64_t i = 10; i < 50; i++)
		assert_int_equal(store_put(store, &me, i), QMLA_OK);
	assert_int_equal(store_has(store, &me, 1), QMLA_OK);
	assert_int_equal(qms_store_remove(store, &me, &key), QMLA_ERR_BUSY);
	qms_store_remove_all(store, &me, &removed, &busy);
	assert_int_equal(removed, 3);
	assert_int_equal(busy, 1);
	assert_int_equal(qms_store_unpin(store, &me, &key, "c"), QMLA_ERR_NOT_FOUND);
	assert_true(store_sound(store));
	qms_store_expire(store, qmc_clock_now() + 2 * QMC_NS_PER_S);
	assert_int_equal(qms_store_unpin(store, &me, &key, "a"), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qms_store_remove(store, &me, &key), QMLA_ERR_BUSY);
	assert_int_equal(qms_store_unpin(store, &me, &key, "b"), QMLA_OK);
	assert_int_equal(qms_store_remove(store, &me, &key), QMLA_OK);
	qms_store_stats(store, &stats);
	assert_int_equal(stats.pins, 0);
	assert_int_equal(stats.expired_pins, 1);
}

/* Scenario 42: a pool full of pins answers at once, again and again, and recovers. */
static void everything_pinned_is_a_clear_no(void **state)
{
	struct qms_store *store = *state;
	struct qms_key key;

	for (uint64_t i = 0; i < 4; i++) {
		key = key_of(i);
		assert_int_equal(store_put(store, &me, i), QMLA_OK);
		assert_int_equal(qms_store_pin(store, &me, &key, "a", QMC_NS_PER_S), QMLA_OK);
	}
	for (uint64_t i = 100; i < 1100; i++)
		assert_int_equal(store_put(store, &me, i), QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_true(store_sound(store));
	qms_store_expire(store, qmc_clock_now() + 2 * QMC_NS_PER_S);
	for (uint64_t i = 100; i < 110; i++)
		assert_int_equal(store_put(store, &me, i), QMLA_OK);
}

static void a_bad_block_goes_unless_it_was_replaced(void **state)
{
	struct qms_store *store = *state;
	struct qms_key key = key_of(1);
	struct qms_lookup_entry entry, again;
	struct qms_grant grant;
	struct qms_store_stats stats;

	assert_int_equal(store_put(store, &me, 1), QMLA_OK);
	assert_int_equal(store_lease(store, &me, 1, &entry, &grant), QMLA_OK);
	assert_int_equal(qms_store_release(store, grant.lease), QMLA_OK);
	assert_int_equal(qms_store_pin(store, &me, &key, "a", 0), QMLA_OK);
	assert_int_equal(qms_store_report(store, &me, &key, entry.generation + 1), QMLA_ERR_STALE);
	assert_int_equal(store_has(store, &me, 1), QMLA_OK);
	assert_int_equal(qms_store_report(store, &me, &key, entry.generation), QMLA_OK);
	assert_int_equal(store_has(store, &me, 1), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qms_store_report(store, &me, &key, entry.generation), QMLA_ERR_NOT_FOUND);
	/* Written anew, perhaps in the same slot: a late report of the old life harms nobody. */
	assert_int_equal(store_put(store, &me, 1), QMLA_OK);
	assert_int_equal(store_lease(store, &me, 1, &again, &grant), QMLA_OK);
	assert_int_not_equal(again.generation, entry.generation);
	assert_int_equal(qms_store_release(store, grant.lease), QMLA_OK);
	assert_int_equal(qms_store_report(store, &me, &key, entry.generation), QMLA_ERR_STALE);
	assert_int_equal(store_has(store, &me, 1), QMLA_OK);
	qms_store_stats(store, &stats);
	assert_int_equal(stats.corrupt_reports, 1);
	assert_int_equal(stats.pins, 0);
}

static void an_unknown_identity_is_named(void **state)
{
	struct qms_store *store = *state;
	struct qms_identity other = identity_of(9);
	struct qms_key key = key_of(1);
	struct qms_reserve_entry reserved;
	struct qms_grant grant;

	assert_int_equal(store_has(store, &other, 1), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qms_store_reserve(store, &other, &key, 1, 0, &reserved, &grant),
			 QMLA_ERR_NOT_FOUND);
	assert_int_equal(qms_store_remove(store, &other, &key), QMLA_ERR_NOT_FOUND);
}

static void a_scan_sees_every_visible_key_once(void **state)
{
	struct qms_store *store = store_small(2000, NULL);
	struct qms_event events[300];
	struct qms_reserve_entry hidden;
	struct qms_scan scan = {0};
	struct qms_key key = key_of(5000);
	struct qms_grant grant;
	bool seen[2000] = {false};
	size_t total = 0, count;

	(void)state;
	for (uint64_t i = 0; i < 1500; i++)
		assert_int_equal(store_put(store, &me, i), QMLA_OK);
	assert_int_equal(qms_store_reserve(store, &me, &key, 1, 0, &hidden, &grant), QMLA_OK);
	while ((count = qms_store_scan(store, &me, &scan, events, 300)) > 0) {
		for (size_t i = 0; i < count; i++) {
			uint64_t n;

			memcpy(&n, events[i].key.bytes, sizeof(n));
			assert_true(n < 1500 && !seen[n]);
			seen[n] = true;
		}
		total += count;
	}
	assert_int_equal(total, 1500);
	qms_store_destroy(store);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(nothing_is_visible_before_its_commit),
		T(lookup_says_where_and_which_life),
		T(a_hole_ends_the_run_when_asked),
		T(a_duplicate_in_one_batch_is_busy),
		T(a_full_pool_evicts_what_nobody_holds),
		T(everything_leased_is_a_clear_no_and_ends_with_the_lease),
		T(a_leased_slot_is_not_reused),
		T(removing_a_leased_block_hides_it_and_keeps_its_bytes),
		T(leases_are_bounded_and_expire),
		T(access_is_bound_to_slot_kind_and_capability),
		T(abort_frees_the_key_at_once),
		T(pins_keep_a_block_and_end_by_themselves),
		T(everything_pinned_is_a_clear_no),
		T(a_bad_block_goes_unless_it_was_replaced),
		T(an_unknown_identity_is_named),
		T(a_scan_sees_every_visible_key_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
