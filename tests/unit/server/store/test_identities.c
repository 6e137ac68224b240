/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of several identities, and the fence between a writer and a slot's next life. */
#include "../cmocka_first.h"

#include <string.h>

#include "support.h"

struct world {
	struct qms_store *store;
	int fences;
	uint64_t token; /* of a write that the fence ends; 0: none */
	bool token_set;
	qmla_status_t verdict;
	struct qms_block_view seen;
};

static qmla_status_t verify(void *user, const struct qms_block_view *block)
{
	struct world *world = user;

	world->seen = *block;
	return world->verdict;
}

/* As a transport does: on return the write that was moving has finished. */
static void fence(void *user, const struct qms_capability *capability)
{
	struct world *world = user;

	(void)capability;
	world->fences++;
	if (world->token_set)
		qms_store_access_end(world->store, world->token);
	world->token_set = false;
}

static int setup(void **state)
{
	static struct world world;
	struct qms_store_config config = {.pool_bytes = 2 * 4 * SLOT_BYTES, .max_identities = 2};

	memset(&world, 0, sizeof(world));
	config.callbacks =
		(struct qms_store_callbacks){.user = &world, .verify = verify, .fence = fence};
	*state = &world;
	return qms_store_create(&config, &world.store) == QMLA_OK ? 0 : -1;
}

static int teardown(void **state)
{
	struct world *world = *state;
	bool sound = store_sound(world->store);

	qms_store_destroy(world->store);
	return sound ? 0 : -1;
}

static qmla_status_t open_with(struct qms_store *store, uint8_t number, uint64_t block_bytes,
			       struct qms_pool_info *info)
{
	struct qms_identity identity = identity_of(number);
	struct qms_layout layout = layout_of(block_bytes);

	return qms_store_open(store, &identity, &layout, info);
}

static void shares_are_equal_and_keys_apart(void **state)
{
	struct qms_store *store = ((struct world *)*state)->store;
	struct qms_identity one = identity_of(1), two = identity_of(2);
	struct qms_pool_info a, b, infos[4];
	size_t count = 4;

	assert_int_equal(open_with(store, 1, SLOT_BYTES, &a), QMLA_OK);
	assert_int_equal(open_with(store, 2, 2 * SLOT_BYTES, &b), QMLA_OK);
	assert_int_equal(a.slots, 4);
	assert_int_equal(b.slots, 2);
	assert_int_not_equal(a.region, b.region);
	assert_int_equal(store_put(store, &one, 5), QMLA_OK);
	assert_int_equal(store_has(store, &one, 5), QMLA_OK);
	assert_int_equal(store_has(store, &two, 5), QMLA_ERR_NOT_FOUND);
	qms_store_pools(store, infos, &count);
	assert_int_equal(count, 2);
	assert_int_equal(infos[0].used_slots + infos[1].used_slots, 1);
}

static void another_layout_of_an_identity_is_refused(void **state)
{
	struct qms_store *store = ((struct world *)*state)->store;
	struct qms_identity identity = identity_of(1);
	struct qms_layout layout = layout_of(SLOT_BYTES);
	struct qms_pool_info info;

	assert_int_equal(qms_store_open(store, &identity, &layout, &info), QMLA_OK);
	assert_int_equal(qms_store_open(store, &identity, &layout, &info), QMLA_OK);
	layout.fingerprint++;
	assert_int_equal(qms_store_open(store, &identity, &layout, &info),
			 QMLA_ERR_LAYOUT_MISMATCH);
	layout.fingerprint--;
	layout.layers++;
	assert_int_equal(qms_store_open(store, &identity, &layout, &info),
			 QMLA_ERR_LAYOUT_MISMATCH);
	assert_int_equal(open_with(store, 2, 4 * SLOT_BYTES + 1, &info), QMLA_ERR_TOO_LARGE);
}

static void only_an_idle_identity_makes_room(void **state)
{
	struct qms_store *store = ((struct world *)*state)->store;
	struct qms_identity one = identity_of(1), two = identity_of(2);
	struct qms_lookup_entry entry;
	struct qms_pool_info info;
	struct qms_grant grant;
	struct qms_key key = key_of(1);
	struct qms_store_stats stats;

	assert_int_equal(open_with(store, 1, SLOT_BYTES, &info), QMLA_OK);
	assert_int_equal(open_with(store, 2, SLOT_BYTES, &info), QMLA_OK);
	assert_int_equal(store_put(store, &one, 1), QMLA_OK);
	assert_int_equal(store_put(store, &two, 1), QMLA_OK);
	assert_int_equal(store_lease(store, &one, 1, &entry, &grant), QMLA_OK);
	assert_int_equal(qms_store_pin(store, &two, &key, "me", 0), QMLA_OK);
	assert_int_equal(open_with(store, 3, SLOT_BYTES, &info), QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(qms_store_unpin(store, &two, &key, "me"), QMLA_OK);
	assert_int_equal(open_with(store, 3, 2 * SLOT_BYTES, &info), QMLA_OK);
	assert_int_equal(info.slots, 2);
	/* Two is gone with its blocks, one and its lease are untouched. */
	assert_int_equal(store_has(store, &two, 1), QMLA_ERR_NOT_FOUND);
	assert_int_equal(store_has(store, &one, 1), QMLA_OK);
	assert_int_equal(qms_store_release(store, grant.lease), QMLA_OK);
	qms_store_stats(store, &stats);
	assert_int_equal(stats.dropped_identities, 1);
	/* Used lately is not idle, when a wait is asked for. */
	qms_store_set_limits(store, QMC_NS_PER_S, QMC_NS_PER_S, 3600 * QMC_NS_PER_S);
	assert_int_equal(open_with(store, 4, SLOT_BYTES, &info), QMLA_ERR_RESOURCE_EXHAUSTED);
}

static void commit_shows_the_block_to_the_judge(void **state)
{
	struct world *world = *state;
	struct qms_identity one = identity_of(1);
	struct qms_key key = key_of(3);
	struct qms_reserve_entry entry;
	struct qms_pool_info info;
	struct qms_grant grant;
	struct qms_store_stats stats;
	void *base;
	uint64_t bytes;
	int fd;

	assert_int_equal(open_with(world->store, 1, SLOT_BYTES, &info), QMLA_OK);
	assert_int_equal(qms_store_reserve(world->store, &one, &key, 1, 0, &entry, &grant),
			 QMLA_OK);
	world->verdict = QMLA_ERR_CORRUPT;
	assert_int_equal(qms_store_commit(world->store, entry.ticket, 99), QMLA_ERR_CORRUPT);
	qms_store_region(world->store, info.region, &base, &bytes, &fd);
	assert_ptr_equal(world->seen.data, (char *)base + entry.offset);
	assert_memory_equal(&world->seen.key, &key, sizeof(key));
	assert_memory_equal(&world->seen.identity, &one, sizeof(one));
	assert_int_equal(world->seen.generation, entry.generation);
	assert_int_equal(world->seen.digest, 99);
	/* Refused: not visible, the slot is free, the key can be written anew. */
	assert_int_equal(store_has(world->store, &one, 3), QMLA_ERR_NOT_FOUND);
	assert_int_equal(world->fences, 1);
	qms_store_stats(world->store, &stats);
	assert_int_equal(stats.used_bytes, 0);
	assert_int_equal(stats.corrupt_commits, 1);
	world->verdict = QMLA_OK;
	assert_int_equal(store_put(world->store, &one, 3), QMLA_OK);
}

/* The writer vanished in the middle of a write: fence first, then the slot. */
static void an_expired_ticket_is_fenced_before_its_slot_is_free(void **state)
{
	struct world *world = *state;
	struct qms_identity one = identity_of(1);
	struct qms_key key = key_of(3);
	struct qms_reserve_entry entry, again;
	struct qms_pool_info info;
	struct qms_grant grant;
	struct qms_store_stats stats;

	assert_int_equal(open_with(world->store, 1, SLOT_BYTES, &info), QMLA_OK);
	assert_int_equal(
		qms_store_reserve(world->store, &one, &key, 1, 5 * QMC_NS_PER_S, &entry, &grant),
		QMLA_OK);
	assert_int_equal(qms_store_access_begin(world->store, true, info.region, entry.offset, 64,
						&grant.capability, &world->token),
			 QMLA_OK);
	world->token_set = true;
	qms_store_expire(world->store, qmc_clock_now() + 4 * QMC_NS_PER_S);
	assert_int_equal(world->fences, 0);
	qms_store_expire(world->store, qmc_clock_now() + 6 * QMC_NS_PER_S);
	assert_int_equal(world->fences, 1);
	qms_store_stats(world->store, &stats);
	assert_int_equal(stats.used_bytes, 0);
	assert_int_equal(stats.expired_tickets, 1);
	assert_int_equal(qms_store_commit(world->store, entry.ticket, 0), QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(qms_store_reserve(world->store, &one, &key, 1, 0, &again, &grant),
			 QMLA_OK);
	assert_int_equal(again.status, QMLA_OK);
	assert_true(again.generation != entry.generation);
}

/* One ticket of a group is given up while its write moves: quarantine, not reuse. */
static void a_write_still_moving_keeps_the_slot_in_quarantine(void **state)
{
	struct world *world = *state;
	struct qms_identity one = identity_of(1);
	struct qms_key keys[2] = {key_of(1), key_of(2)};
	struct qms_reserve_entry entries[2];
	struct qms_store_stats stats;
	struct qms_pool_info info;
	struct qms_grant grant;
	uint64_t token;

	assert_int_equal(open_with(world->store, 1, SLOT_BYTES, &info), QMLA_OK);
	assert_int_equal(qms_store_reserve(world->store, &one, keys, 2, 0, entries, &grant),
			 QMLA_OK);
	assert_int_equal(qms_store_access_begin(world->store, true, info.region, entries[0].offset,
						64, &grant.capability, &token),
			 QMLA_OK);
	assert_int_equal(qms_store_abort(world->store, entries[0].ticket), QMLA_OK);
	assert_int_equal(world->fences, 0); /* the other ticket still writes */
	/* The key is free for another writer at once, the slot is not. */
	assert_int_equal(store_put(world->store, &one, 1), QMLA_OK);
	qms_store_stats(world->store, &stats);
	assert_int_equal(stats.used_bytes, 3 * SLOT_BYTES);
	assert_true(store_sound(world->store));
	assert_int_equal(qms_store_commit(world->store, entries[1].ticket, 0), QMLA_OK);
	assert_int_equal(world->fences, 1); /* the last of the group: cut off what is left */
	qms_store_access_end(world->store, token);
	qms_store_stats(world->store, &stats);
	assert_int_equal(stats.used_bytes, 2 * SLOT_BYTES);
}

static int rearmed;

static void rearm(void *user)
{
	(void)user;
	rearmed++;
}

static void the_reaper_is_woken_only_for_what_comes_sooner(void **state)
{
	struct qms_store_callbacks callbacks = {.rearm = rearm};
	struct qms_store *store = store_small(4, &callbacks);
	struct qms_identity one = identity_of(1);
	struct qms_lookup_entry entry;
	struct qms_grant grant;

	(void)state;
	assert_int_equal(store_put(store, &one, 1), QMLA_OK);
	rearmed = 0;
	qms_store_arm(store, qmc_clock_now() + 5 * QMC_NS_PER_S);
	assert_int_equal(store_lease(store, &one, 1, &entry, &grant), QMLA_OK); /* 10 s */
	assert_int_equal(rearmed, 0);
	qms_store_arm(store, qmc_clock_now() + 20 * QMC_NS_PER_S);
	assert_int_equal(store_lease(store, &one, 1, &entry, &grant), QMLA_OK);
	assert_int_equal(rearmed, 1);
	qms_store_expire(store, qmc_clock_now() + 60 * QMC_NS_PER_S);
	assert_true(store_sound(store));
	qms_store_destroy(store);
}

static void a_share_of_leased_slots_may_be_set(void **state)
{
	struct qms_store_config config = {
		.pool_bytes = 10 * SLOT_BYTES, .max_identities = 1, .max_leased_percent = 50};
	struct qms_identity one = identity_of(1);
	struct qms_lookup_entry found[8];
	struct qms_pool_info info;
	struct qms_key keys[8];
	struct qms_store *store;
	struct qms_grant grant;

	(void)state;
	assert_int_equal(qms_store_create(&config, &store), QMLA_OK);
	assert_int_equal(open_with(store, 1, SLOT_BYTES, &info), QMLA_OK);
	for (uint64_t i = 0; i < 8; i++) {
		keys[i] = key_of(i);
		assert_int_equal(store_put(store, &one, i), QMLA_OK);
	}
	assert_int_equal(qms_store_lookup(store, &one, keys, 8, QMC_NS_PER_S, false, found, &grant),
			 QMLA_OK);
	for (int i = 0; i < 8; i++)
		assert_int_equal(found[i].status, i < 5 ? QMLA_OK : QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(qms_store_release(store, grant.lease), QMLA_OK);
	assert_true(store_sound(store));
	qms_store_destroy(store);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(shares_are_equal_and_keys_apart),
		T(another_layout_of_an_identity_is_refused),
		T(only_an_idle_identity_makes_room),
		T(commit_shows_the_block_to_the_judge),
		T(an_expired_ticket_is_fenced_before_its_slot_is_free),
		T(a_write_still_moving_keeps_the_slot_in_quarantine),
		T(the_reaper_is_woken_only_for_what_comes_sooner),
		T(a_share_of_leased_slots_may_be_set),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
