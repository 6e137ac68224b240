/* SPDX-License-Identifier: Apache-2.0 */
#include "../cmocka_first.h"

#include <string.h>

#include "server/store/ticket.h"

#define OWNER 2u

/* What the callbacks saw, in order. */
struct seen {
	char trace[64];
	size_t count;
	struct qms_capability fenced;
};

static void note_drop(void *user, const struct qms_ticket_ref *ref)
{
	struct seen *seen = user;

	assert_int_equal(ref->owner, OWNER);
	seen->trace[seen->count++] = (char)('a' + ref->slot);
}

static void note_fence(void *user, const struct qms_capability *capability)
{
	struct seen *seen = user;

	seen->trace[seen->count++] = '|';
	seen->fenced = *capability;
}

static struct qms_ticket_table *table_of(uint32_t tickets)
{
	struct qms_ticket_table *table;

	assert_int_equal(qms_ticket_table_create(tickets, &table), QMLA_OK);
	return table;
}

/* A group over slots 0 … count - 1; ids[i] and numbers[i] belong to slot i. */
static struct qms_capability group_of(struct qms_ticket_table *table, uint32_t count,
				      qmc_time_t expiry, uint64_t *ids, uint32_t *numbers)
{
	struct qms_capability capability;
	uint32_t group;

	assert_int_equal(qms_ticket_group_open(table, OWNER, &group, &capability), QMLA_OK);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(qms_ticket_add(table, group, i, 900 + i, &ids[i], &numbers[i]),
				 QMLA_OK);
	qms_ticket_group_close(table, group, expiry);
	return capability;
}

static void commit_happens_once(void **state)
{
	struct qms_ticket_table *table = table_of(8);
	struct qms_ticket_end end;
	struct qms_ticket_ref ref;
	uint64_t ids[2];
	uint32_t numbers[2];

	(void)state;
	group_of(table, 2, 100, ids, numbers);
	assert_int_equal(qms_ticket_count(table), 2);
	assert_int_equal(qms_ticket_begin(table, ids[0], 50, &ref), QMLA_OK);
	assert_int_equal(ref.slot, 0);
	assert_int_equal(ref.generation, 900);
	assert_int_equal(qms_ticket_begin(table, ids[0], 50, &ref), QMLA_ERR_BUSY);
	qms_ticket_finish(table, &ref, true, &end);
	assert_false(end.last);
	/* A repeated commit, its answer lost on the way, is told that it won. */
	assert_int_equal(qms_ticket_begin(table, ids[0], 50, &ref), QMLA_ERR_ALREADY_EXISTS);
	assert_int_equal(qms_ticket_begin(table, ids[1], 50, &ref), QMLA_OK);
	qms_ticket_finish(table, &ref, true, &end);
	assert_true(end.last);
	assert_true(end.clean);
	assert_int_equal(qms_ticket_count(table), 0);
	assert_int_equal(qms_ticket_next_expiry(table), QMC_TIME_NEVER);
	qms_ticket_table_destroy(table);
	qms_ticket_table_destroy(NULL);
}

static void an_ended_ticket_commits_no_more(void **state)
{
	struct qms_ticket_table *table = table_of(8);
	struct qms_ticket_end end;
	struct qms_ticket_ref ref;
	uint64_t ids[1];
	uint32_t numbers[1];

	(void)state;
	group_of(table, 1, 100, ids, numbers);
	assert_int_equal(qms_ticket_begin(table, ids[0], 100, &ref), QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(qms_ticket_begin(table, 0, 0, &ref), QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(qms_ticket_begin(table, UINT64_MAX, 0, &ref), QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(qms_ticket_begin(table, ids[0], 99, &ref), QMLA_OK);
	qms_ticket_finish(table, &ref, false, &end);
	assert_true(end.last);
	assert_false(end.clean);
	assert_int_equal(qms_ticket_begin(table, ids[0], 0, &ref), QMLA_ERR_LEASE_EXPIRED);
	qms_ticket_table_destroy(table);
}

static void expiry_fences_before_it_drops(void **state)
{
	struct qms_ticket_table *table = table_of(8);
	struct qms_capability capability;
	struct seen seen = {.count = 0};
	uint64_t ids[3];
	uint32_t numbers[3];

	(void)state;
	capability = group_of(table, 3, 100, ids, numbers);
	assert_false(qms_ticket_expire(table, 99, note_fence, note_drop, &seen));
	assert_true(qms_ticket_expire(table, 100, note_fence, note_drop, &seen));
	assert_int_equal(seen.count, 4);
	assert_int_equal(seen.trace[0], '|');
	assert_memory_equal(&seen.fenced, &capability, sizeof(capability));
	assert_false(qms_ticket_expire(table, 1000, note_fence, note_drop, &seen));
	assert_int_equal(qms_ticket_count(table), 0);
	qms_ticket_table_destroy(table);
}

/* A commit that began in time ends well although the group expires under it. */
static void expiry_leaves_a_running_commit_alone(void **state)
{
	struct qms_ticket_table *table = table_of(8);
	struct seen seen = {.count = 0};
	struct qms_ticket_end end;
	struct qms_ticket_ref ref;
	uint64_t ids[2];
	uint32_t numbers[2];

	(void)state;
	group_of(table, 2, 100, ids, numbers);
	assert_int_equal(qms_ticket_begin(table, ids[1], 99, &ref), QMLA_OK);
	assert_true(qms_ticket_expire(table, 100, note_fence, note_drop, &seen));
	assert_int_equal(seen.count, 2);
	assert_int_equal(seen.trace[1], 'a');
	qms_ticket_finish(table, &ref, true, &end);
	assert_true(end.last);
	/* One that is reopened instead is collected by the next round. */
	group_of(table, 1, 200, ids, numbers);
	assert_int_equal(qms_ticket_begin(table, ids[0], 199, &ref), QMLA_OK);
	assert_true(qms_ticket_expire(table, 200, note_fence, note_drop, &seen));
	qms_ticket_reopen(table, &ref);
	assert_int_equal(qms_ticket_begin(table, ids[0], 199, &ref), QMLA_ERR_LEASE_EXPIRED);
	assert_true(qms_ticket_expire(table, 200, note_fence, note_drop, &seen));
	assert_int_equal(qms_ticket_count(table), 0);
	qms_ticket_table_destroy(table);
}

static qmla_status_t try_access(struct qms_ticket_table *table,
				const struct qms_capability *capability, uint32_t owner,
				uint32_t slot, uint32_t number, qmc_time_t now, struct seen *seen)
{
	struct qms_ticket_ref ref = {.owner = owner, .slot = slot, .number = number};

	return qms_ticket_access(table, capability, &ref, now, note_drop, seen);
}

static void access_needs_all_of_it(void **state)
{
	struct qms_ticket_table *table = table_of(8);
	struct qms_capability a, b, wrong;
	struct seen seen = {.count = 0};
	struct qms_ticket_end end;
	struct qms_ticket_ref ref;
	uint64_t ids[2], other_ids[1];
	uint32_t n[2], other[1];

	(void)state;
	a = group_of(table, 2, 100, ids, n);
	b = group_of(table, 1, 100, other_ids, other);
	assert_int_equal(try_access(table, &a, OWNER, 0, n[0], 99, &seen), QMLA_OK);
	assert_int_equal(try_access(table, &a, OWNER, 1, n[1], 99, &seen), QMLA_OK);
	assert_int_equal(seen.count, 2);
	assert_int_equal(try_access(table, &a, OWNER, 1, n[0], 99, &seen), QMLA_ERR_PERMISSION);
	assert_int_equal(try_access(table, &a, OWNER + 1, 0, n[0], 99, &seen), QMLA_ERR_PERMISSION);
	assert_int_equal(try_access(table, &b, OWNER, 0, n[0], 99, &seen), QMLA_ERR_PERMISSION);
	assert_int_equal(try_access(table, &a, OWNER, 0, 7, 99, &seen), QMLA_ERR_PERMISSION);
	assert_int_equal(try_access(table, &a, OWNER, 0, UINT32_MAX, 99, &seen),
			 QMLA_ERR_PERMISSION);
	wrong = a;
	wrong.bytes[15] ^= 0x80;
	assert_int_equal(try_access(table, &wrong, OWNER, 0, n[0], 99, &seen), QMLA_ERR_PERMISSION);
	memset(&wrong, 0xee, sizeof(wrong));
	assert_int_equal(try_access(table, &wrong, OWNER, 0, n[0], 99, &seen), QMLA_ERR_PERMISSION);
	assert_int_equal(try_access(table, &a, OWNER, 0, n[0], 100, &seen), QMLA_ERR_LEASE_EXPIRED);
	/* During and after commit nobody writes. */
	assert_int_equal(qms_ticket_begin(table, ids[0], 50, &ref), QMLA_OK);
	assert_int_equal(try_access(table, &a, OWNER, 0, n[0], 50, &seen), QMLA_ERR_LEASE_EXPIRED);
	qms_ticket_finish(table, &ref, true, &end);
	assert_int_equal(try_access(table, &a, OWNER, 0, n[0], 50, &seen), QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(try_access(table, &a, OWNER, 1, n[1], 50, &seen), QMLA_OK);
	qms_ticket_table_destroy(table);
}

static void full_table_says_so_and_recovers(void **state)
{
	struct qms_ticket_table *table = table_of(3);
	struct qms_capability capability;
	struct seen seen = {.count = 0};
	uint64_t ids[3], more;
	uint32_t numbers[3], group, number;

	(void)state;
	for (int round = 0; round < 500; round++) {
		group_of(table, 3, 100, ids, numbers);
		assert_int_equal(qms_ticket_group_open(table, OWNER, &group, &capability), QMLA_OK);
		assert_int_equal(qms_ticket_add(table, group, 9, 1, &more, &number),
				 QMLA_ERR_RESOURCE_EXHAUSTED);
		qms_ticket_group_close(table, group, 100); /* empty: it vanishes */
		seen.count = 0;
		assert_true(qms_ticket_expire(table, 100, note_fence, note_drop, &seen));
		assert_int_equal(seen.count, 4);
	}
	/* A retracted ticket leaves nothing behind. */
	assert_int_equal(qms_ticket_group_open(table, OWNER, &group, &capability), QMLA_OK);
	assert_int_equal(qms_ticket_add(table, group, 9, 1, &more, &number), QMLA_OK);
	qms_ticket_retract(table, more);
	qms_ticket_group_close(table, group, 100);
	assert_int_equal(qms_ticket_count(table), 0);
	assert_int_equal(qms_ticket_next_expiry(table), QMC_TIME_NEVER);
	qms_ticket_table_destroy(table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(commit_happens_once),
		cmocka_unit_test(an_ended_ticket_commits_no_more),
		cmocka_unit_test(expiry_fences_before_it_drops),
		cmocka_unit_test(expiry_leaves_a_running_commit_alone),
		cmocka_unit_test(access_needs_all_of_it),
		cmocka_unit_test(full_table_says_so_and_recovers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
