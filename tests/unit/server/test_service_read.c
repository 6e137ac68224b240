/* SPDX-License-Identifier: Apache-2.0 */
/* Lookup, Renew, Release, and reading under a lease. */
#include "cmocka_first.h"

#include <stdlib.h>
#include <string.h>

#include "node_fixture.h"

#define OK        QMLA__V1__CODE__CODE_OK
#define NOT_FOUND QMLA__V1__CODE__CODE_NOT_FOUND
#define EXPIRED   QMLA__V1__CODE__CODE_LEASE_EXPIRED

static int setup(void **state)
{
	static struct node node;
	struct qms_service_config config = node_config();

	*state = &node;
	return node_start(&node, &config) && node_connect(&node, "tcp") == QMLA_OK ? 0 : -1;
}

static int teardown(void **state)
{
	struct node *node = *state;
	bool sound = node_sound(node);

	node_stop(node);
	return sound ? 0 : -1;
}

static void a_written_block_is_read_back_bit_by_bit(void **state)
{
	struct node *node = *state;
	size_t bytes = node->layout.block_bytes;
	uint8_t *got = malloc(bytes), *expected = malloc(bytes);

	for (uint64_t key = 1; key <= 3; key++)
		assert_int_equal(node_put(node, key), OK);
	Qmla__V1__LookupResponse *r = node_lookup(node, 1, 4, 1000);

	assert_non_null(r);
	assert_int_equal(r->incarnation, node->incarnation);
	assert_int_not_equal(r->lease, 0);
	assert_int_equal(r->lease_ms, 1000);
	assert_int_equal(r->capability.len, 16);
	assert_int_equal(r->n_entries, 4);
	assert_int_equal(r->entries[3]->code, NOT_FOUND);
	for (uint64_t i = 0; i < 3; i++) {
		Qmla__V1__LookupEntry *entry = r->entries[i];

		assert_int_equal(entry->code, OK);
		assert_int_equal(entry->length, bytes);
		assert_int_equal(entry->digest,
				 node_block(node, i + 1, entry->generation, expected));
		assert_int_equal(
			node_move(node, QMT_READ, entry->offset, got, bytes, &r->capability),
			QMLA_OK);
		assert_memory_equal(got, expected, bytes);
	}
	assert_int_equal(node_release(node, r->lease), OK);
	assert_int_equal(node_release(node, r->lease), EXPIRED);
	/* The right ends with the lease. */
	assert_int_not_equal(
		node_move(node, QMT_READ, r->entries[0]->offset, got, bytes, &r->capability),
		QMLA_OK);
	qmp_message_free(&r->base);
	free(got);
	free(expected);
}

static void presence_alone_gives_no_right(void **state)
{
	struct node *node = *state;
	uint8_t byte;

	assert_int_equal(node_put(node, 1), OK);
	Qmla__V1__LookupResponse *r = node_lookup(node, 1, 1, 0);

	assert_int_equal(r->entries[0]->code, OK);
	assert_int_equal(r->lease, 0);
	assert_int_equal(r->capability.len, 0);
	assert_int_not_equal(
		node_move(node, QMT_READ, r->entries[0]->offset, &byte, 1, &r->capability),
		QMLA_OK);
	qmp_message_free(&r->base);
}

static void lookup_checks_what_it_is_given(void **state)
{
	struct node *node = *state;
	Qmla__V1__LookupRequest request = QMLA__V1__LOOKUP_REQUEST__INIT;
	Qmla__V1__LookupResponse *r;
	struct node_keys keys;
	ProtobufCBinaryData many[4097];

#define CALL() node_call(node, "Lookup", &request.base, &qmla__v1__lookup_response__descriptor, &r)
	node_keys_fill(&keys, 0, 2);
	request.identity = node_identity(node);
	assert_int_equal(CALL(), QMLA_ERR_INVALID_ARGUMENT); /* no keys */
	assert_non_null(strstr(node->detail, "keys is empty"));
	request.keys = keys.data;
	request.n_keys = 2;
	keys.data[1].len = 15;
	assert_int_equal(CALL(), QMLA_ERR_INVALID_ARGUMENT);
	assert_non_null(strstr(node->detail, "keys[1] has 15 bytes"));
	keys.data[1].len = 0;
	assert_int_equal(CALL(), QMLA_ERR_INVALID_ARGUMENT);
	for (int i = 0; i < 4097; i++)
		many[i] = keys.data[0];
	request.keys = many;
	request.n_keys = 4097;
	assert_int_equal(CALL(), QMLA_ERR_TOO_LARGE);
	assert_non_null(strstr(node->detail, "4096"));
	request.n_keys = 4096;
	assert_int_equal(CALL(), QMLA_OK);
	assert_int_equal(r->n_entries, 4096);
	qmp_message_free(&r->base);
	request.identity.len = 16;
	assert_int_equal(CALL(), QMLA_ERR_INVALID_ARGUMENT);
	memset(node->identity.bytes, 7, 32);
	request.identity = node_identity(node);
	assert_int_equal(CALL(), QMLA_ERR_NOT_FOUND); /* never connected */
	assert_non_null(strstr(node->detail, "Connect"));
#undef CALL
}

static void a_lease_is_renewed_and_capped(void **state)
{
	struct node *node = *state;
	Qmla__V1__RenewRequest request = QMLA__V1__RENEW_REQUEST__INIT;
	Qmla__V1__RenewResponse *renewed;

	assert_int_equal(node_put(node, 1), OK);
	Qmla__V1__LookupResponse *r = node_lookup(node, 1, 1, 3600 * 1000);
	uint64_t leases[] = {r->lease, r->lease + 1};

	assert_int_equal(r->lease_ms, 60000);
	request.incarnation = node->incarnation;
	request.leases = leases;
	request.n_leases = 2;
	request.lease_ms = 5000;
	assert_int_equal(node_call(node, "Renew", &request.base,
				   &qmla__v1__renew_response__descriptor, &renewed),
			 QMLA_OK);
	assert_int_equal(renewed->codes[0], OK);
	assert_int_equal(renewed->codes[1], EXPIRED);
	assert_int_equal(renewed->lease_ms, 5000);
	qmp_message_free(&renewed->base);
	request.incarnation++;
	assert_int_equal(node_call(node, "Renew", &request.base,
				   &qmla__v1__renew_response__descriptor, &renewed),
			 QMLA_ERR_PEER_RESTARTED);
	request.incarnation--;
	request.n_leases = 0;
	assert_int_equal(node_call(node, "Renew", &request.base,
				   &qmla__v1__renew_response__descriptor, &renewed),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(node_release(node, r->lease), OK);
	qmp_message_free(&r->base);
}

static bool no_lease(const struct qms_store_stats *stats)
{
	return stats->leases == 0;
}

/* Scenario: a batch slower than its lease. The reader is told, the block is not lost. */
static void a_lease_ends_by_itself(void **state)
{
	struct node *node = *state;
	uint8_t byte;

	assert_int_equal(node_put(node, 1), OK);
	Qmla__V1__LookupResponse *r = node_lookup(node, 1, 1, 30);

	assert_true(node_await(node, no_lease));
	assert_int_equal(node_move(node, QMT_READ, r->entries[0]->offset, &byte, 1, &r->capability),
			 QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(node_has(node, 1), OK);
	qmp_message_free(&r->base);
}

static void reads_reach_only_what_the_lease_covers(void **state)
{
	struct node *node = *state;
	uint64_t length = node->layout.block_bytes;
	uint8_t *buffer = malloc(2 * length);

	assert_int_equal(node_put(node, 1), OK);
	assert_int_equal(node_put(node, 2), OK);
	Qmla__V1__LookupResponse *one = node_lookup(node, 1, 1, 1000);
	Qmla__V1__LookupResponse *two = node_lookup(node, 2, 1, 1000);
	uint64_t first = one->entries[0]->offset, second = two->entries[0]->offset;

	assert_int_not_equal(first, second);
	assert_int_equal(node_move(node, QMT_READ, second, buffer, length, &one->capability),
			 QMLA_ERR_PERMISSION);
	assert_int_not_equal(node_move(node, QMT_READ, first, buffer, length + 1, &one->capability),
			     QMLA_OK);
	assert_int_equal(node_move(node, QMT_WRITE, first, buffer, length, &one->capability),
			 QMLA_ERR_PERMISSION);
	assert_int_equal(node_move(node, QMT_READ, first + 5, buffer, length - 5, &one->capability),
			 QMLA_OK);
	assert_int_equal(node_has(node, 1), OK);
	assert_int_equal(node_release(node, one->lease), OK);
	assert_int_equal(node_release(node, two->lease), OK);
	qmp_message_free(&one->base);
	qmp_message_free(&two->base);
	free(buffer);
}

static void too_many_leases_are_refused_until_some_end(void **state)
{
	struct node *node = *state;
	uint64_t leases[64];

	assert_int_equal(node_put(node, 1), OK);
	for (int i = 0; i < 64; i++) {
		Qmla__V1__LookupResponse *r = node_lookup(node, 1, 1, 60000);

		assert_non_null(r);
		leases[i] = r->lease;
		qmp_message_free(&r->base);
	}
	assert_null(node_lookup(node, 1, 1, 60000));
	assert_non_null(strstr(node->detail, "full"));
	assert_int_equal(node_has(node, 1), OK); /* presence needs none */
	for (int i = 0; i < 64; i++)
		assert_int_equal(node_release(node, leases[i]), OK);
	Qmla__V1__LookupResponse *r = node_lookup(node, 1, 1, 60000);

	assert_non_null(r);
	assert_int_equal(node_release(node, r->lease), OK);
	qmp_message_free(&r->base);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_written_block_is_read_back_bit_by_bit),
		T(presence_alone_gives_no_right),
		T(lookup_checks_what_it_is_given),
		T(a_lease_is_renewed_and_capped),
		T(a_lease_ends_by_itself),
		T(reads_reach_only_what_the_lease_covers),
		T(too_many_leases_are_refused_until_some_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
