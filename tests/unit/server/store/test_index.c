/* SPDX-License-Identifier: Apache-2.0 */
#include "../cmocka_first.h"

#include <string.h>

#include "server/store/index.h"
#include "support.h"

#define SLOTS 10000u

static void keys_are_found_until_removed(void **state)
{
	struct qms_index *index;

	(void)state;
	assert_int_equal(qms_index_create(SLOTS, &index), QMLA_OK);
	for (uint32_t i = 0; i < SLOTS; i++) {
		struct qms_key key = key_of(i);
		uint64_t hash = qms_index_hash(index, &key);

		assert_int_equal(qms_index_find(index, hash, &key), QMS_SLOT_NONE);
		qms_index_insert(index, hash, &key, SLOTS - 1 - i);
	}
	for (uint32_t i = 0; i < SLOTS; i += 2) {
		struct qms_key key = key_of(i);

		qms_index_remove(index, qms_index_hash(index, &key), SLOTS - 1 - i);
	}
	for (uint32_t i = 0; i < SLOTS; i++) {
		struct qms_key key = key_of(i);
		uint32_t slot = qms_index_find(index, qms_index_hash(index, &key), &key);

		assert_int_equal(slot, i % 2 ? SLOTS - 1 - i : QMS_SLOT_NONE);
		if (i % 2)
			assert_memory_equal(qms_index_key(index, slot), &key, sizeof(key));
	}
	qms_index_destroy(index);
	qms_index_destroy(NULL);
}

static void a_key_that_differs_in_one_bit_is_another(void **state)
{
	struct qms_key key = key_of(1);
	struct qms_index *index;

	(void)state;
	assert_int_equal(qms_index_create(4, &index), QMLA_OK);
	qms_index_insert(index, qms_index_hash(index, &key), &key, 2);
	for (int bit = 0; bit < 128; bit++) {
		struct qms_key other = key;

		other.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(qms_index_find(index, qms_index_hash(index, &other), &other),
				 QMS_SLOT_NONE);
		/* Also when it lands in the same bucket. */
		assert_int_equal(qms_index_find(index, qms_index_hash(index, &key), &other),
				 QMS_SLOT_NONE);
	}
	qms_index_destroy(index);
}

static void hashes_depend_on_a_secret(void **state)
{
	struct qms_index *a, *b;
	int equal = 0;

	(void)state;
	assert_int_equal(qms_index_create(16, &a), QMLA_OK);
	assert_int_equal(qms_index_create(16, &b), QMLA_OK);
	for (uint64_t i = 0; i < 64; i++) {
		struct qms_key key = key_of(i);

		equal += qms_index_hash(a, &key) == qms_index_hash(b, &key);
	}
	assert_int_equal(equal, 0);
	qms_index_destroy(a);
	qms_index_destroy(b);
}

/* Keys that differ in few bits spread as random ones do: no bucket is long. */
static void chains_stay_short_for_crafted_keys(void **state)
{
	struct qms_index *index;
	uint32_t longest = 0;
	uint32_t walked = 0;

	(void)state;
	assert_int_equal(qms_index_create(SLOTS, &index), QMLA_OK);
	for (uint32_t i = 0; i < SLOTS; i++) {
		struct qms_key key = key_of((uint64_t)i << 40);

		qms_index_insert(index, qms_index_hash(index, &key), &key, i);
	}
	for (uint32_t b = 0; b < qms_index_buckets(index); b++) {
		uint32_t length = 0;

		for (uint32_t s = qms_index_first(index, b); s != QMS_SLOT_NONE;
		     s = qms_index_next(index, s))
			length++;
		walked += length;
		if (length > longest)
			longest = length;
	}
	assert_int_equal(walked, SLOTS);
	/* Poisson with mean 0.61: over 12 has a chance under 1e-9 a bucket. */
	assert_true(longest <= 12);
	qms_index_destroy(index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_are_found_until_removed),
		cmocka_unit_test(a_key_that_differs_in_one_bit_is_another),
		cmocka_unit_test(hashes_depend_on_a_secret),
		cmocka_unit_test(chains_stay_short_for_crafted_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
