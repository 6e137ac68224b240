/* SPDX-License-Identifier: Apache-2.0 */
#include "../cmocka_first.h"

#include "server/store/pin.h"

static struct qms_pin_table *table_of(uint32_t pins)
{
	struct qms_pin_table *table;

	assert_int_equal(qms_pin_table_create(pins, &table), QMLA_OK);
	return table;
}

static void owners_count_apart(void **state)
{
	struct qms_pin_table *table = table_of(8);
	uint32_t head = QMS_PIN_NONE;
	bool added = false;

	(void)state;
	assert_int_equal(qms_pin_add(table, 0, 5, 77, &head, "a", 100, &added), QMLA_OK);
	assert_true(added);
	assert_int_equal(qms_pin_add(table, 0, 5, 77, &head, "b", 200, &added), QMLA_OK);
	assert_true(added);
	assert_int_equal(qms_pin_add(table, 0, 5, 77, &head, "a", 300, &added), QMLA_OK);
	assert_false(added);
	assert_int_equal(qms_pin_count(table), 2);
	assert_int_equal(qms_pin_list_length(table, head), 2);
	assert_int_equal(qms_pin_next_expiry(table), 200);
	assert_false(qms_pin_remove(table, &head, "c"));
	assert_true(qms_pin_remove(table, &head, "a"));
	assert_false(qms_pin_remove(table, &head, "a"));
	assert_int_equal(qms_pin_clear(table, &head), 1);
	assert_int_equal(head, QMS_PIN_NONE);
	assert_int_equal(qms_pin_count(table), 0);
	qms_pin_table_destroy(table);
	qms_pin_table_destroy(NULL);
}

static void expiry_takes_only_what_is_still_due(void **state)
{
	struct qms_pin_table *table = table_of(8);
	uint32_t head = QMS_PIN_NONE;
	struct qms_pin_due due;
	bool added;

	(void)state;
	assert_int_equal(qms_pin_add(table, 4, 5, 77, &head, "a", 100, &added), QMLA_OK);
	assert_false(qms_pin_due(table, 99, &due));
	assert_true(qms_pin_due(table, 100, &due));
	assert_int_equal(due.owner, 4);
	assert_int_equal(due.slot, 5);
	assert_int_equal(due.hash, 77);
	/* Renewed between the look and the lock. */
	assert_int_equal(qms_pin_add(table, 4, 5, 77, &head, "a", 200, &added), QMLA_OK);
	assert_false(qms_pin_expire(table, 100, &head, &due));
	/* Taken away and made again: another pin in the same place. */
	assert_true(qms_pin_due(table, 200, &due));
	assert_true(qms_pin_remove(table, &head, "a"));
	assert_int_equal(qms_pin_add(table, 4, 5, 77, &head, "b", 200, &added), QMLA_OK);
	assert_false(qms_pin_expire(table, 200, &head, &due));
	assert_true(qms_pin_due(table, 200, &due));
	assert_true(qms_pin_expire(table, 200, &head, &due));
	assert_int_equal(head, QMS_PIN_NONE);
	assert_false(qms_pin_due(table, 1000, &due));
	qms_pin_table_destroy(table);
}

static void a_full_table_says_so_and_recovers(void **state)
{
	struct qms_pin_table *table = table_of(2);
	uint32_t heads[3] = {0};
	bool added = false;

	(void)state;
	for (int round = 0; round < 100; round++) {
		assert_int_equal(qms_pin_add(table, 0, 0, 0, &heads[0], "a", 1, &added), QMLA_OK);
		assert_int_equal(qms_pin_add(table, 0, 1, 0, &heads[1], "a", 1, &added), QMLA_OK);
		assert_int_equal(qms_pin_add(table, 0, 2, 0, &heads[2], "a", 1, &added),
				 QMLA_ERR_RESOURCE_EXHAUSTED);
		assert_int_equal(heads[2], QMS_PIN_NONE);
		/* Renewing needs no room. */
		assert_int_equal(qms_pin_add(table, 0, 0, 0, &heads[0], "a", 9, &added), QMLA_OK);
		assert_int_equal(qms_pin_clear(table, &heads[0]), 1);
		assert_int_equal(qms_pin_clear(table, &heads[1]), 1);
	}
	qms_pin_table_destroy(table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(owners_count_apart),
		cmocka_unit_test(expiry_takes_only_what_is_still_due),
		cmocka_unit_test(a_full_table_says_so_and_recovers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
