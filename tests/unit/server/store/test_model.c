/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations against the reference: every answer must be one that it allows. */
#include "../cmocka_first.h"

#include <string.h>

#include "reference.h"
#include "support.h"

#define SLOTS 16
#define STEPS 60000

struct run {
	struct qms_store *store;
	struct qms_identity identity;
	struct reference model;
	uint64_t random;
};

static uint32_t below(struct run *run, uint32_t limit)
{
	return (uint32_t)(random_next(&run->random) % limit);
}

/* A key may vanish on its own only by eviction, and eviction only takes what nobody holds. */
static void evicted(struct run *run, int k)
{
	struct reference_key *key = &run->model.keys[k];

	assert_int_equal(key->state, VISIBLE);
	assert_false(key->pinned);
	assert_false(reference_leased(&run->model, key->offset));
	key->state = ABSENT;
}

static void reserve(struct run *run)
{
	int k = (int)below(run, REFERENCE_KEYS);
	struct reference_key *key = &run->model.keys[k];
	struct qms_key name = key_of((uint64_t)k);
	struct qms_reserve_entry entry;
	struct qms_grant grant;
	int victim;

	assert_int_equal(qms_store_reserve(run->store, &run->identity, &name, 1, 60 * QMC_NS_PER_S,
					   &entry, &grant),
			 QMLA_OK);
	switch (entry.status) {
	case QMLA_ERR_ALREADY_EXISTS:
		assert_int_equal(key->state, VISIBLE);
		return;
	case QMLA_ERR_BUSY:
		assert_int_equal(key->state, RESERVED);
		return;
	case QMLA_ERR_RESOURCE_EXHAUSTED:
		assert_int_equal(reference_held(&run->model), SLOTS);
		return;
	default:
		assert_int_equal(entry.status, QMLA_OK);
	}
	if (key->state == VISIBLE)
		evicted(run, k);
	assert_int_equal(key->state, ABSENT);
	/* Whoever stood in that slot must have been free to go. */
	assert_false(reference_leased(&run->model, entry.offset));
	victim = reference_key_at(&run->model, entry.offset);
	if (victim >= 0)
		evicted(run, victim);
	for (int other = 0; other < REFERENCE_KEYS; other++)
		assert_false(run->model.keys[other].state == RESERVED &&
			     run->model.keys[other].offset == entry.offset);
	*key = (struct reference_key){RESERVED, entry.ticket, entry.generation, entry.offset,
				      false};
}

static void finish(struct run *run)
{
	int k = (int)below(run, REFERENCE_KEYS);
	struct reference_key *key = &run->model.keys[k];

	if (key->state != RESERVED)
		return;
	if (below(run, 4) == 0) {
		assert_int_equal(qms_store_abort(run->store, key->ticket), QMLA_OK);
		key->state = ABSENT;
	} else {
		assert_int_equal(qms_store_commit(run->store, key->ticket, (uint64_t)k), QMLA_OK);
		key->state = VISIBLE;
	}
	assert_true(qms_store_commit(run->store, key->ticket, 0) != QMLA_OK);
}

static void check_found(struct run *run, int k, const struct qms_lookup_entry *entry)
{
	const struct reference_key *key = &run->model.keys[k];

	if (entry->status == QMLA_OK) {
		assert_int_equal(key->state, VISIBLE);
		assert_int_equal(entry->offset, key->offset);
		assert_int_equal(entry->generation, key->generation);
		assert_int_equal(entry->digest, k);
	} else {
		assert_int_equal(entry->status, QMLA_ERR_NOT_FOUND);
		if (key->state == VISIBLE)
			evicted(run, k);
	}
}

static void lookup(struct run *run)
{
	struct reference_lease *lease = reference_lease_new(&run->model);
	int64_t lease_ns = lease && below(run, 2) ? (1 + below(run, 20)) * QMC_NS_PER_S : 0;
	struct qms_lookup_entry entries[8];
	struct qms_key names[8];
	struct qms_grant grant;
	int count = 1 + (int)below(run, 8);
	int ks[8];

	for (int i = 0; i < count; i++) {
		ks[i] = (int)below(run, REFERENCE_KEYS);
		names[i] = key_of((uint64_t)ks[i]);
	}
	assert_int_equal(qms_store_lookup(run->store, &run->identity, names, (size_t)count,
					  lease_ns, false, entries, &grant),
			 QMLA_OK);
	if (grant.lease) {
		assert_true(lease_ns > 0);
		lease->id = grant.lease;
		lease->capability = grant.capability;
		lease->count = 0;
	}
	for (int i = 0; i < count; i++) {
		check_found(run, ks[i], &entries[i]);
		if (grant.lease && entries[i].status == QMLA_OK)
			lease->offsets[lease->count++] = entries[i].offset;
	}
	assert_true(!grant.lease || lease->count > 0);
}

static void release(struct run *run)
{
	struct reference_lease *lease = &run->model.leases[below(run, REFERENCE_LEASES)];

	if (lease->id)
		assert_int_equal(qms_store_release(run->store, lease->id), QMLA_OK);
	lease->id = 0;
}

static void remove_or_report(struct run *run)
{
	int k = (int)below(run, REFERENCE_KEYS);
	struct reference_key *key = &run->model.keys[k];
	struct qms_key name = key_of((uint64_t)k);
	bool report = below(run, 2);
	qmla_status_t status =
		report ? qms_store_report(run->store, &run->identity, &name, key->generation)
		       : qms_store_remove(run->store, &run->identity, &name);

	if (status == QMLA_OK) {
		assert_int_equal(key->state, VISIBLE);
		assert_true(report || !key->pinned);
		key->state = ABSENT;
		key->pinned = false;
	} else if (status == QMLA_ERR_BUSY) {
		assert_true(key->state == VISIBLE && key->pinned && !report);
	} else {
		assert_int_equal(status, QMLA_ERR_NOT_FOUND);
		if (key->state == VISIBLE)
			evicted(run, k);
	}
}

static void pin_or_unpin(struct run *run)
{
	int k = (int)below(run, REFERENCE_KEYS);
	struct reference_key *key = &run->model.keys[k];
	struct qms_key name = key_of((uint64_t)k);
	qmla_status_t status;

	if (below(run, 3) == 0) {
		status = qms_store_pin(run->store, &run->identity, &name, "model", 0);
		if (status == QMLA_OK) {
			assert_int_equal(key->state, VISIBLE);
			key->pinned = true;
		}
	} else {
		status = qms_store_unpin(run->store, &run->identity, &name, "model");
		assert_true((status == QMLA_OK) == (key->state == VISIBLE && key->pinned));
		if (status == QMLA_OK)
			key->pinned = false;
	}
	if (status != QMLA_OK) {
		assert_int_equal(status, QMLA_ERR_NOT_FOUND);
		if (key->state == VISIBLE && !key->pinned &&
		    store_has(run->store, &run->identity, (uint64_t)k) != QMLA_OK)
			evicted(run, k);
	}
}

static bool covers(const struct reference_lease *lease, uint64_t offset)
{
	for (int i = 0; i < lease->count; i++) {
		if (lease->offsets[i] == offset)
			return true;
	}
	return false;
}

/* A lease lets its holder read the slots it covers, also when their keys are gone, and no other. */
static void access(struct run *run)
{
	const struct reference_lease *lease = &run->model.leases[below(run, REFERENCE_LEASES)];
	uint64_t offset = below(run, SLOTS) * UINT64_C(4096);
	bool write = below(run, 4) == 0;
	qmla_status_t status;
	uint64_t token;

	status = qms_store_access_begin(run->store, write, 0, offset, 4096, &lease->capability,
					&token);
	if (status == QMLA_OK)
		qms_store_access_end(run->store, token);
	if (!write && lease->id && covers(lease, offset))
		assert_int_equal(status, QMLA_OK);
	else
		assert_true(status == QMLA_ERR_PERMISSION || status == QMLA_ERR_LEASE_EXPIRED);
}

static void step(struct run *run)
{
	switch (below(run, 14)) {
	case 0:
	case 1:
	case 2:
		reserve(run);
		break;
	case 3:
	case 4:
	case 5:
		finish(run);
		break;
	case 6:
	case 7:
		lookup(run);
		break;
	case 8:
	case 9:
		release(run);
		break;
	case 10:
		remove_or_report(run);
		break;
	case 11:
	case 12:
		access(run);
		break;
	default:
		pin_or_unpin(run);
	}
}

static void random_operations_agree_with_the_reference(void **state)
{
	for (uint64_t seed = 1; seed <= 3; seed++) {
		struct run run = {.store = store_small(SLOTS, NULL),
				  .identity = identity_of(1),
				  .random = seed};

		(void)state;
		run.model.slots = SLOTS;
		for (int i = 0; i < STEPS; i++) {
			step(&run);
			if (i % 64 == 0 && !store_sound(run.store))
				fail_msg("seed %llu, step %d", (unsigned long long)seed, i);
		}
		/* Time ends everything: nothing is held any more, every slot can be used. */
		qms_store_expire(run.store, qmc_clock_now() + 48 * 3600 * QMC_NS_PER_S);
		for (uint64_t k = 1000; k < 1000 + SLOTS; k++)
			assert_int_equal(store_put(run.store, &run.identity, k), QMLA_OK);
		assert_true(store_sound(run.store));
		qms_store_destroy(run.store);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_operations_agree_with_the_reference),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
