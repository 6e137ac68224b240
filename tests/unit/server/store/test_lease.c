/* SPDX-License-Identifier: Apache-2.0 */
#include "../cmocka_first.h"

#include <string.h>

#include "server/store/lease.h"

#define OWNER 3u

struct seen {
	uint32_t slots[512];
	uint32_t count;
};

static void note(void *user, uint32_t owner, uint32_t slot)
{
	struct seen *seen = user;

	assert_int_equal(owner, OWNER);
	seen->slots[seen->count++] = slot;
}

static struct qms_lease_table *table_of(uint32_t leases, uint32_t entries)
{
	struct qms_lease_table *table;

	assert_int_equal(qms_lease_table_create(leases, entries, &table), QMLA_OK);
	return table;
}

static struct qms_lease_grant lease_of(struct qms_lease_table *table, uint32_t first,
				       uint32_t count, qmc_time_t expiry)
{
	struct qms_lease_grant grant;
	struct qms_lease *lease;

	assert_int_equal(qms_lease_begin(table, OWNER, &lease), QMLA_OK);
	for (uint32_t i = 0; i < count; i++) {
		assert_int_equal(qms_lease_make_room(table, lease), QMLA_OK);
		qms_lease_add(table, lease, first + i);
	}
	qms_lease_grant(table, lease, expiry, &grant);
	return grant;
}

static void a_lease_gives_back_what_it_covers(void **state)
{
	struct qms_lease_table *table = table_of(4, 1000);
	struct qms_lease_grant grant = lease_of(table, 100, 200, 50);
	struct seen seen = {.count = 0};
	uint32_t owner = 0;

	(void)state;
	assert_int_not_equal(grant.id, 0);
	assert_int_equal(qms_lease_count(table), 1);
	assert_int_equal(qms_lease_next_expiry(table), 50);
	assert_int_equal(qms_lease_release(table, grant.id, note, &seen, &owner), QMLA_OK);
	assert_int_equal(owner, OWNER);
	assert_int_equal(seen.count, 200);
	for (uint32_t i = 0; i < 200; i++)
		assert_int_equal(seen.slots[i], 100 + i);
	assert_int_equal(qms_lease_release(table, grant.id, note, &seen, &owner),
			 QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(qms_lease_release(table, 0, note, &seen, &owner), QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(qms_lease_release(table, UINT64_MAX, note, &seen, &owner),
			 QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(qms_lease_count(table), 0);
	qms_lease_table_destroy(table);
	qms_lease_table_destroy(NULL);
}

static void renewal_only_lengthens(void **state)
{
	struct qms_lease_table *table = table_of(4, 100);
	struct qms_lease_grant grant = lease_of(table, 0, 1, 100);

	(void)state;
	assert_int_equal(qms_lease_renew(table, grant.id, 10, 60), QMLA_OK);
	assert_int_equal(qms_lease_next_expiry(table), 100);
	assert_int_equal(qms_lease_renew(table, grant.id, 99, 150), QMLA_OK);
	assert_int_equal(qms_lease_next_expiry(table), 150);
	/* Past its time it is over, though nobody has collected it yet. */
	assert_int_equal(qms_lease_renew(table, grant.id, 150, 500), QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(qms_lease_renew(table, grant.id + 1, 0, 500), QMLA_ERR_LEASE_EXPIRED);
	qms_lease_table_destroy(table);
}

static void expiry_ends_what_is_due_and_no_more(void **state)
{
	struct qms_lease_table *table = table_of(4, 100);
	struct seen seen = {.count = 0};
	uint32_t owner = 0;

	(void)state;
	lease_of(table, 10, 1, 100);
	lease_of(table, 20, 1, 50);
	assert_false(qms_lease_expire(table, 49, note, &seen, &owner));
	assert_true(qms_lease_expire(table, 50, note, &seen, &owner));
	assert_int_equal(seen.slots[0], 20);
	assert_false(qms_lease_expire(table, 99, note, &seen, &owner));
	assert_true(qms_lease_expire(table, 1000, note, &seen, &owner));
	assert_int_equal(seen.slots[1], 10);
	qms_lease_table_destroy(table);
}

static void access_needs_the_capability_the_slot_and_the_time(void **state)
{
	struct qms_lease_table *table = table_of(4, 1000);
	struct qms_lease_grant a = lease_of(table, 0, 130, 100);
	struct qms_lease_grant b = lease_of(table, 500, 1, 100);
	struct qms_capability wrong = a.capability;
	struct seen seen = {.count = 0};
	uint32_t owner;

	(void)state;
	assert_memory_not_equal(&a.capability, &b.capability, sizeof(a.capability));
	for (uint32_t slot = 0; slot < 130; slot++)
		assert_int_equal(
			qms_lease_access(table, &a.capability, OWNER, slot, 99, note, &seen),
			QMLA_OK);
	assert_int_equal(seen.count, 130);
	assert_int_equal(qms_lease_access(table, &a.capability, OWNER, 130, 0, note, &seen),
			 QMLA_ERR_PERMISSION);
	assert_int_equal(qms_lease_access(table, &a.capability, OWNER, 500, 0, note, &seen),
			 QMLA_ERR_PERMISSION);
	assert_int_equal(qms_lease_access(table, &a.capability, OWNER + 1, 0, 0, note, &seen),
			 QMLA_ERR_PERMISSION);
	for (size_t i = 0; i < sizeof(wrong.bytes); i++) {
		wrong.bytes[i] ^= 1;
		assert_int_equal(qms_lease_access(table, &wrong, OWNER, 0, 0, note, &seen),
				 QMLA_ERR_PERMISSION);
		wrong.bytes[i] ^= 1;
	}
	memset(&wrong, 0xff, sizeof(wrong));
	assert_int_equal(qms_lease_access(table, &wrong, OWNER, 0, 0, note, &seen),
			 QMLA_ERR_PERMISSION);
	assert_int_equal(qms_lease_access(table, &a.capability, OWNER, 0, 100, note, &seen),
			 QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(qms_lease_release(table, a.id, note, &seen, &owner), QMLA_OK);
	/* Whoever comes late is told why. */
	assert_int_equal(qms_lease_access(table, &a.capability, OWNER, 0, 0, note, &seen),
			 QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(seen.count, 260);
	qms_lease_table_destroy(table);
}

static void full_tables_say_so_and_recover(void **state)
{
	struct qms_lease_table *table = table_of(2, 62);
	struct qms_lease_grant a = lease_of(table, 0, 62, 1);
	struct qms_lease *lease;
	struct seen seen = {.count = 0};
	uint32_t owner;

	(void)state;
	assert_int_equal(qms_lease_begin(table, OWNER, &lease), QMLA_OK);
	for (int i = 0; i < 62 * 2; i++) {
		assert_int_equal(qms_lease_make_room(table, lease), QMLA_OK);
		qms_lease_add(table, lease, 7);
	}
	assert_int_equal(qms_lease_make_room(table, lease), QMLA_ERR_RESOURCE_EXHAUSTED);
	qms_lease_cancel(table, lease, note, &seen);
	assert_int_equal(seen.count, 124);
	assert_int_equal(qms_lease_release(table, a.id, note, &seen, &owner), QMLA_OK);
	/* A thousand times round: nothing leaks. */
	for (int i = 0; i < 1000; i++) {
		seen.count = 0;
		a = lease_of(table, 0, 100, i);
		assert_int_equal(qms_lease_release(table, a.id, note, &seen, &owner), QMLA_OK);
		assert_int_equal(seen.count, 100);
	}
	lease_of(table, 0, 1, 1);
	lease_of(table, 0, 1, 1);
	assert_int_equal(qms_lease_begin(table, OWNER, &lease), QMLA_ERR_RESOURCE_EXHAUSTED);
	qms_lease_table_destroy(table);
}

static void an_id_is_not_used_again(void **state)
{
	struct qms_lease_table *table = table_of(1, 10);
	struct qms_lease_grant first = lease_of(table, 0, 1, 1);
	struct seen seen = {.count = 0};
	uint32_t owner;

	(void)state;
	assert_int_equal(qms_lease_release(table, first.id, note, &seen, &owner), QMLA_OK);
	for (int i = 0; i < 100; i++) {
		struct qms_lease_grant next = lease_of(table, 0, 1, 1);

		assert_int_not_equal(next.id, first.id);
		assert_int_equal(qms_lease_renew(table, first.id, 0, 9), QMLA_ERR_LEASE_EXPIRED);
		seen.count = 0;
		assert_int_equal(qms_lease_release(table, next.id, note, &seen, &owner), QMLA_OK);
	}
	qms_lease_table_destroy(table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lease_gives_back_what_it_covers),
		cmocka_unit_test(renewal_only_lengthens),
		cmocka_unit_test(expiry_ends_what_is_due_and_no_more),
		cmocka_unit_test(access_needs_the_capability_the_slot_and_the_time),
		cmocka_unit_test(full_tables_say_so_and_recover),
		cmocka_unit_test(an_id_is_not_used_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
