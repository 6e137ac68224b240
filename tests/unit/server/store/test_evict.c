/* SPDX-License-Identifier: Apache-2.0 */
#include "../cmocka_first.h"

#include <string.h>

#include "server/store/evict.h"
#include "server/store/ghost.h"
#include "support.h"

#define SLOTS 100u

static struct qms_evict *made(uint32_t slots)
{
	struct qms_evict *evict;

	assert_int_equal(qms_evict_create(slots, &evict), QMLA_OK);
	return evict;
}

static void sound(struct qms_evict *evict, uint32_t slots)
{
	uint8_t member[1024] = {0};
	const char *why = "";

	assert_true(slots <= sizeof(member));
	if (!qms_evict_check(evict, member, &why))
		fail_msg("%s", why);
}

static void fill(struct qms_evict *evict, uint32_t slots)
{
	for (uint32_t i = 0; i < slots; i++)
		qms_evict_insert(evict, i, 1000 + i, (uint64_t)i << 32 | i);
}

static void unused_goes_oldest_first(void **state)
{
	struct qms_evict *evict = made(SLOTS);
	struct qms_evict_candidate candidate;

	(void)state;
	assert_false(qms_evict_next(evict, &candidate));
	fill(evict, SLOTS);
	for (uint32_t i = 0; i < SLOTS; i++) {
		assert_true(qms_evict_next(evict, &candidate));
		assert_int_equal(candidate.slot, i);
		assert_int_equal(candidate.generation, 1000 + i);
		assert_true(candidate.young);
		qms_evict_forget(evict, &candidate);
	}
	assert_false(qms_evict_next(evict, &candidate));
	sound(evict, SLOTS);
	qms_evict_destroy(evict);
	qms_evict_destroy(NULL);
}

/* One scan of new keys must not push out what is used: the point of S3-FIFO. */
static void used_survives_a_scan(void **state)
{
	struct qms_evict *evict = made(SLOTS);
	struct qms_evict_candidate candidate;
	struct qms_evict_counts counts;

	(void)state;
	fill(evict, SLOTS);
	for (uint32_t i = 0; i < 20; i++) {
		qms_evict_touch(evict, i);
		qms_evict_touch(evict, i);
	}
	/* A stream of 500 keys, each seen once, through the other 80 slots. */
	for (uint32_t i = 0; i < 500; i++) {
		assert_true(qms_evict_next(evict, &candidate));
		assert_true(candidate.slot >= 20);
		qms_evict_forget(evict, &candidate);
		qms_evict_insert(evict, candidate.slot, 5000 + i, (uint64_t)(5000 + i) << 32 | i);
	}
	qms_evict_count(evict, &counts);
	assert_int_equal(counts.main_slots, 20);
	assert_int_equal(counts.small_slots, 80);
	sound(evict, SLOTS);
	qms_evict_destroy(evict);
}

static void a_key_that_comes_back_enters_main(void **state)
{
	struct qms_evict *evict = made(SLOTS);
	struct qms_evict_candidate candidate;
	struct qms_evict_counts counts;

	(void)state;
	fill(evict, SLOTS);
	assert_true(qms_evict_next(evict, &candidate));
	qms_evict_forget(evict, &candidate);
	qms_evict_insert(evict, candidate.slot, 2000, candidate.hash);
	qms_evict_count(evict, &counts);
	assert_int_equal(counts.main_slots, 1);
	/* Only once: the ghost gave it up. */
	qms_evict_remove(evict, candidate.slot);
	qms_evict_insert(evict, candidate.slot, 2001, candidate.hash);
	qms_evict_count(evict, &counts);
	assert_int_equal(counts.main_slots, 0);
	qms_evict_destroy(evict);
}

static void main_gives_second_chances_but_ends(void **state)
{
	struct qms_evict *evict = made(512);
	struct qms_evict_candidate candidate;

	(void)state;
	fill(evict, 512);
	/* Everything is hot: the bound lets one go all the same. */
	for (uint32_t i = 0; i < 512; i++) {
		for (int use = 0; use < 3; use++)
			qms_evict_touch(evict, i);
	}
	assert_true(qms_evict_next(evict, &candidate));
	assert_int_equal(candidate.slot, QMS_EVICT_CHANCES);
	sound(evict, 512);
	qms_evict_destroy(evict);
}

static void parked_is_out_of_the_way_until_unparked(void **state)
{
	struct qms_evict *evict = made(3);
	struct qms_evict_candidate candidate;
	struct qms_evict_counts counts;

	(void)state;
	fill(evict, 3);
	assert_true(qms_evict_next(evict, &candidate));
	assert_int_equal(candidate.slot, 0);
	qms_evict_park(evict, &candidate);
	assert_true(qms_evict_next(evict, &candidate));
	assert_int_equal(candidate.slot, 1);
	qms_evict_park(evict, &candidate);
	qms_evict_count(evict, &counts);
	assert_int_equal(counts.parked_slots, 2);
	sound(evict, 3);
	/* Back at the old end: it goes before the younger slot 2. */
	qms_evict_unpark(evict, 0);
	assert_true(qms_evict_next(evict, &candidate));
	assert_int_equal(candidate.slot, 0);
	/* A parked one can be removed; unparking it afterwards does nothing. */
	qms_evict_remove(evict, 1);
	qms_evict_unpark(evict, 1);
	assert_true(qms_evict_next(evict, &candidate));
	assert_int_equal(candidate.slot, 2);
	assert_false(qms_evict_next(evict, &candidate));
	sound(evict, 3);
	qms_evict_destroy(evict);
}

static void removal_works_from_anywhere_in_a_queue(void **state)
{
	struct qms_evict *evict = made(5);
	struct qms_evict_candidate candidate;

	(void)state;
	fill(evict, 5);
	qms_evict_remove(evict, 2);
	qms_evict_remove(evict, 0);
	qms_evict_remove(evict, 4);
	qms_evict_remove(evict, 4);
	sound(evict, 5);
	assert_true(qms_evict_next(evict, &candidate));
	assert_int_equal(candidate.slot, 1);
	assert_true(qms_evict_next(evict, &candidate));
	assert_int_equal(candidate.slot, 3);
	qms_evict_destroy(evict);
}

static void ghost_remembers_as_many_as_it_says(void **state)
{
	struct qms_ghost *ghost;
	int remembered = 0;
	uint64_t hashes[2000];
	uint64_t random = 7;

	(void)state;
	assert_int_equal(qms_ghost_create(1000, &ghost), QMLA_OK);
	for (uint64_t i = 0; i < 2000; i++) {
		hashes[i] = random_next(&random);
		qms_ghost_add(ghost, hashes[i]);
	}
	for (uint64_t i = 0; i < 1000; i++)
		assert_false(qms_ghost_take(ghost, hashes[i]));
	for (uint64_t i = 1001; i < 2000; i++)
		remembered += qms_ghost_take(ghost, hashes[i]);
	/* Crowded buckets may forget a few. */
	assert_true(remembered > 900);
	assert_false(qms_ghost_take(ghost, 42));
	qms_ghost_destroy(ghost);
	qms_ghost_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unused_goes_oldest_first),
		cmocka_unit_test(used_survives_a_scan),
		cmocka_unit_test(a_key_that_comes_back_enters_main),
		cmocka_unit_test(main_gives_second_chances_but_ends),
		cmocka_unit_test(parked_is_out_of_the_way_until_unparked),
		cmocka_unit_test(removal_works_from_anywhere_in_a_queue),
		cmocka_unit_test(ghost_remembers_as_many_as_it_says),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
