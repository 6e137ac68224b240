/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "client/cache/placement.h"
#include "common/digest.h"
#include "tests/unit/client/cache/placement_vectors.h"

#define KEYS 20000

static const char *const names[] = {"10.0.0.1:7000", "10.0.0.2:7000", "c", "[fd00::7]:7000"};
static const double weights[] = {1.0, 2.0, 0.5, 1.0};

static void fill_places(struct qml_place places[4])
{
	for (size_t i = 0; i < 4; i++)
		places[i] = (struct qml_place){qml_place_seed(names[i]), weights[i]};
}

static void make_key(unsigned number, qmla_key_t *key)
{
	uint8_t digest[QMC_SHA256_BYTES];

	assert_int_equal(qmc_sha256(&number, sizeof(number), digest), QMLA_OK);
	memcpy(key->bytes, digest, sizeof(key->bytes));
}

static void test_vectors(void **state)
{
	struct qml_place places[4];

	(void)state;
	fill_places(places);
	for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
		qmla_key_t key;
		uint16_t rank[4];

		assert_int_equal(qmc_hex_decode(vectors[i].key, key.bytes, 16), QMLA_OK);
		qml_place_rank(places, 4, &key, 4, rank);
		for (size_t j = 0; j < 4; j++)
			assert_int_equal(rank[j], vectors[i].rank[j]);
		double score = qml_place_score(&places[rank[0]], &key);

		assert_true(fabs(score - vectors[i].score) <= 1e-12 * vectors[i].score);
	}
}

static void test_depth_is_a_prefix(void **state)
{
	struct qml_place places[4];

	(void)state;
	fill_places(places);
	for (unsigned n = 0; n < 500; n++) {
		uint16_t all[4], some[4];
		qmla_key_t key;

		make_key(n, &key);
		qml_place_rank(places, 4, &key, 4, all);
		for (size_t depth = 1; depth < 4; depth++) {
			qml_place_rank(places, 4, &key, depth, some);
			assert_memory_equal(some, all, depth * sizeof(all[0]));
		}
	}
}

/* Shares follow the weights: five standard deviations of a binomial. */
static void test_distribution(void **state)
{
	struct qml_place places[4];
	unsigned held[4] = {0};

	(void)state;
	fill_places(places);
	for (unsigned n = 0; n < KEYS; n++) {
		qmla_key_t key;
		uint16_t first;

		make_key(n, &key);
		qml_place_rank(places, 4, &key, 1, &first);
		held[first]++;
	}
	for (size_t i = 0; i < 4; i++) {
		double share = weights[i] / 4.5;

		assert_true(fabs(held[i] - KEYS * share) < 5 * sqrt(KEYS * share * (1 - share)));
	}
}

/* A node that leaves gives its keys to each key's second; nothing else moves. */
static void test_minimal_movement(void **state)
{
	struct qml_place places[4];
	unsigned moved = 0;

	(void)state;
	fill_places(places);
	for (unsigned n = 0; n < KEYS; n++) {
		uint16_t before[2], after;
		qmla_key_t key;

		make_key(n, &key);
		qml_place_rank(places, 4, &key, 2, before);
		qml_place_rank(places, 3, &key, 1, &after);
		assert_int_equal(after, before[0] == 3 ? before[1] : before[0]);
		moved += after != before[0];
	}
	assert_true(fabs(moved - KEYS / 4.5) < 5 * sqrt(KEYS / 4.5));
}

/* The order of the list does not matter. */
static void test_order_free(void **state)
{
	struct qml_place places[4], turned[4];

	(void)state;
	fill_places(places);
	for (size_t i = 0; i < 4; i++)
		turned[i] = places[3 - i];
	for (unsigned n = 0; n < 500; n++) {
		uint16_t a[4], b[4];
		qmla_key_t key;

		make_key(n, &key);
		qml_place_rank(places, 4, &key, 4, a);
		qml_place_rank(turned, 4, &key, 4, b);
		for (size_t i = 0; i < 4; i++)
			assert_int_equal(a[i], 3 - b[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors),      cmocka_unit_test(test_depth_is_a_prefix),
		cmocka_unit_test(test_distribution), cmocka_unit_test(test_minimal_movement),
		cmocka_unit_test(test_order_free),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
