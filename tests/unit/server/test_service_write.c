/* SPDX-License-Identifier: Apache-2.0 */
/* Reserve, Commit, Abort, and writing under a ticket. */
#include "cmocka_first.h"

#include <stdlib.h>
#include <string.h>

#include "node_fixture.h"

#define OK        QMLA__V1__CODE__CODE_OK
#define EXISTS    QMLA__V1__CODE__CODE_ALREADY_EXISTS
#define NOT_FOUND QMLA__V1__CODE__CODE_NOT_FOUND
#define BUSY      QMLA__V1__CODE__CODE_BUSY
#define FULL      QMLA__V1__CODE__CODE_RESOURCE_EXHAUSTED
#define EXPIRED   QMLA__V1__CODE__CODE_LEASE_EXPIRED
#define SLOTS     4

static int setup(void **state)
{
	static struct node node;
	struct qms_service_config config = node_config_slots(SLOTS);

	*state = &node;
	if (!node_start(&node, &config) || node_connect(&node, "tcp") != QMLA_OK)
		return -1;
	return node.slots == SLOTS ? 0 : -1;
}

static int teardown(void **state)
{
	struct node *node = *state;
	bool sound = node_sound(node);

	node_stop(node);
	return sound ? 0 : -1;
}

static Qmla__V1__Code abort_ticket(struct node *node, uint64_t ticket)
{
	Qmla__V1__AbortRequest request = QMLA__V1__ABORT_REQUEST__INIT;
	Qmla__V1__AbortResponse *response;
	Qmla__V1__Code code;

	request.incarnation = node->incarnation;
	request.tickets = &ticket;
	request.n_tickets = 1;
	assert_int_equal(node_call(node, "Abort", &request.base,
				   &qmla__v1__abort_response__descriptor, &response),
			 QMLA_OK);
	code = response->codes[0];
	qmp_message_free(&response->base);
	return code;
}

static void two_writers_of_one_key(void **state)
{
	struct node *node = *state;
	uint8_t *block = malloc(node->layout.block_bytes);
	Qmla__V1__ReserveResponse *first = node_reserve(node, 1, 1, 5000);
	Qmla__V1__ReserveResponse *second = node_reserve(node, 1, 1, 5000);
	Qmla__V1__ReserveEntry *entry = first->entries[0];

	assert_int_equal(entry->code, OK);
	assert_int_equal(entry->length, node->layout.block_bytes);
	assert_int_equal(first->lease_ms, 5000);
	assert_int_equal(first->capability.len, 16);
	assert_int_equal(second->entries[0]->code, BUSY);
	assert_int_equal(second->capability.len, 0);
	qmp_message_free(&second->base);
	uint64_t digest = node_block(node, 1, entry->generation, block);

	assert_int_equal(
		node_move(node, QMT_WRITE, entry->offset, block, entry->length, &first->capability),
		QMLA_OK);
	assert_int_equal(node_has(node, 1), NOT_FOUND);
	assert_int_equal(node_commit(node, entry->ticket, digest), OK);
	assert_int_equal(node_has(node, 1), OK);
	/* The answer was lost and the client asks again: it has won, not failed. */
	assert_int_equal(node_commit(node, entry->ticket, digest), EXISTS);
	second = node_reserve(node, 1, 1, 5000);
	assert_int_equal(second->entries[0]->code, EXISTS);
	qmp_message_free(&second->base);
	qmp_message_free(&first->base);
	free(block);
}

/* What arrives must be what was promised: anything else is refused and leaves no trace. */
static void commit_refuses_what_is_not_the_block(void **state)
{
	struct node *node = *state;
	struct qmk_block_info info = {0};
	uint8_t *block = malloc(node->layout.block_bytes);

	for (int spoil = 0; spoil < 6; spoil++) {
		Qmla__V1__ReserveResponse *r = node_reserve(node, 1, 1, 5000);
		Qmla__V1__ReserveEntry *entry = r->entries[0];
		uint64_t generation = entry->generation + (spoil == 1);
		uint64_t digest = node_block(node, spoil == 2 ? 9 : 1, generation, block);
		static const Qmla__V1__Code expected[] = {
			QMLA__V1__CODE__CODE_CORRUPT, QMLA__V1__CODE__CODE_STALE,
			QMLA__V1__CODE__CODE_STALE,   QMLA__V1__CODE__CODE_IDENTITY_MISMATCH,
			QMLA__V1__CODE__CODE_CORRUPT, QMLA__V1__CODE__CODE_CORRUPT};

		assert_int_equal(entry->code, OK);
		if (spoil == 0)
			digest ^= 1;
		if (spoil == 3) {
			struct node_keys keys;

			node_keys_fill(&keys, 1, 1);
			memcpy(info.key, keys.bytes[0], 16);
			memset(info.identity, 1, 32);
			info.generation = entry->generation;
			qmk_block_seal(&node->layout, &info, block);
			digest = qmk_block_digest(&node->layout, block);
		}
		if (spoil == 4)
			block[40] ^= 4; /* in the header */
		if (spoil < 5)          /* 5: nothing written at all */
			assert_int_equal(node_move(node, QMT_WRITE, entry->offset, block,
						   entry->length, &r->capability),
					 QMLA_OK);
		assert_int_equal(node_commit(node, entry->ticket, digest), expected[spoil]);
		assert_int_equal(node_commit(node, entry->ticket, digest), EXPIRED);
		assert_int_equal(node_has(node, 1), NOT_FOUND);
		qmp_message_free(&r->base);
		/* So that "nothing written" finds no block of an earlier life either. */
		for (uint64_t key = 100; spoil == 3 && key < 108; key++)
			assert_int_equal(node_put(node, key), OK);
	}
	assert_int_equal(node_put(node, 1), OK);
	free(block);
}

static void one_duplicate_in_a_batch(void **state)
{
	struct node *node = *state;
	Qmla__V1__ReserveRequest request = QMLA__V1__RESERVE_REQUEST__INIT;
	Qmla__V1__ReserveResponse *r;
	struct node_keys keys;

	node_keys_fill(&keys, 1, 3);
	keys.data[1] = keys.data[0];
	request.identity = node_identity(node);
	request.keys = keys.data;
	request.n_keys = 3;
	assert_int_equal(node_call(node, "Reserve", &request.base,
				   &qmla__v1__reserve_response__descriptor, &r),
			 QMLA_OK);
	assert_int_equal(r->entries[0]->code, OK);
	assert_int_equal(r->entries[1]->code, BUSY);
	assert_int_equal(r->entries[2]->code, OK);
	assert_int_equal(abort_ticket(node, r->entries[0]->ticket), OK);
	assert_int_equal(abort_ticket(node, r->entries[0]->ticket), EXPIRED);
	assert_int_equal(abort_ticket(node, r->entries[2]->ticket), OK);
	qmp_message_free(&r->base);
}

static void a_full_pool_with_everything_leased(void **state)
{
	struct node *node = *state;

	for (uint64_t key = 1; key <= SLOTS; key++)
		assert_int_equal(node_put(node, key), OK);
	Qmla__V1__LookupResponse *leased = node_lookup(node, 1, SLOTS, 60000);
	Qmla__V1__ReserveResponse *r = node_reserve(node, 3, 4, 1000);

	assert_int_equal(r->entries[0]->code, EXISTS);
	assert_int_equal(r->entries[1]->code, EXISTS);
	assert_int_equal(r->entries[2]->code, FULL);
	assert_int_equal(r->entries[3]->code, FULL);
	assert_in_range(r->retry_after_ms, 10, 1000);
	qmp_message_free(&r->base);
	assert_int_equal(node_release(node, leased->lease), OK);
	qmp_message_free(&leased->base);
	r = node_reserve(node, 5, 2, 1000);
	assert_int_equal(r->entries[0]->code, OK);
	assert_int_equal(r->entries[1]->code, OK);
	assert_int_equal(r->retry_after_ms, 0);
	abort_ticket(node, r->entries[0]->ticket);
	abort_ticket(node, r->entries[1]->ticket);
	qmp_message_free(&r->base);
}

static bool no_ticket(const struct qms_store_stats *stats)
{
	return stats->tickets == 0;
}

static bool nothing_used(const struct qms_store_stats *stats)
{
	return stats->used_bytes == 0;
}

/* Scenario: the writer died between Reserve and Commit. */
static void a_forgotten_ticket_gives_the_slot_back(void **state)
{
	struct node *node = *state;
	Qmla__V1__ReserveResponse *r = node_reserve(node, 1, SLOTS, 50);
	struct qms_store_stats stats;
	uint8_t byte = 0;

	assert_int_equal(r->n_entries, SLOTS);
	assert_true(node_await(node, no_ticket));
	assert_true(node_await(node, nothing_used));
	qms_store_stats(qms_service_store(node->service), &stats);
	assert_int_equal(stats.expired_tickets, SLOTS);
	/* The late writer harms nobody. */
	assert_int_not_equal(
		node_move(node, QMT_WRITE, r->entries[0]->offset, &byte, 1, &r->capability),
		QMLA_OK);
	assert_int_equal(node_commit(node, r->entries[0]->ticket, 0), EXPIRED);
	assert_int_equal(node_put(node, 1), OK);
	qmp_message_free(&r->base);
}

static void writes_reach_only_what_the_ticket_covers(void **state)
{
	struct node *node = *state;
	uint64_t length = node->layout.block_bytes;
	uint8_t *block = malloc(length + 1);
	Qmla__V1__ReserveResponse *one = node_reserve(node, 1, 1, 5000);
	Qmla__V1__ReserveResponse *two = node_reserve(node, 2, 1, 5000);
	uint64_t digest = node_block(node, 1, one->entries[0]->generation, block);

	assert_int_equal(node_move(node, QMT_WRITE, two->entries[0]->offset, block, length,
				   &one->capability),
			 QMLA_ERR_PERMISSION);
	assert_int_equal(
		node_move(node, QMT_READ, one->entries[0]->offset, block, 1, &one->capability),
		QMLA_ERR_PERMISSION);
	/* In two pieces, as a client may. */
	digest = node_block(node, 1, one->entries[0]->generation, block);
	assert_int_equal(
		node_move(node, QMT_WRITE, one->entries[0]->offset, block, 1000, &one->capability),
		QMLA_OK);
	assert_int_equal(node_move(node, QMT_WRITE, one->entries[0]->offset + 1000, block + 1000,
				   length - 1000, &one->capability),
			 QMLA_OK);
	assert_int_equal(node_commit(node, one->entries[0]->ticket, digest), OK);
	assert_int_not_equal(
		node_move(node, QMT_WRITE, one->entries[0]->offset, block, 1, &one->capability),
		QMLA_OK);
	abort_ticket(node, two->entries[0]->ticket);
	qmp_message_free(&one->base);
	qmp_message_free(&two->base);
	free(block);
}

static void handles_of_another_life_are_refused(void **state)
{
	struct node *node = *state;
	Qmla__V1__CommitRequest request = QMLA__V1__COMMIT_REQUEST__INIT;
	Qmla__V1__CommitResponse *response;

	request.incarnation = node->incarnation ^ 1;
	assert_int_equal(node_call(node, "Commit", &request.base,
				   &qmla__v1__commit_response__descriptor, &response),
			 QMLA_ERR_PEER_RESTARTED);
	assert_non_null(strstr(node->detail, "connect again"));
	request.incarnation = node->incarnation;
	assert_int_equal(node_call(node, "Commit", &request.base,
				   &qmla__v1__commit_response__descriptor, &response),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(node_commit(node, 0, 0), EXPIRED);
	assert_int_equal(node_commit(node, UINT64_MAX, 0), EXPIRED);
	assert_int_equal(abort_ticket(node, 12345), EXPIRED);
}

static void a_draining_node_takes_no_new_work_and_finishes_the_old(void **state)
{
	struct node *node = *state;
	Qmla__V1__DescribeRequest describe = QMLA__V1__DESCRIBE_REQUEST__INIT;
	Qmla__V1__DescribeResponse *described;
	uint8_t *block = malloc(node->layout.block_bytes);
	Qmla__V1__ReserveRequest request = QMLA__V1__RESERVE_REQUEST__INIT;
	Qmla__V1__ReserveResponse *open_one, *refused;
	struct node_keys keys;

	assert_int_equal(node_put(node, 1), OK);
	open_one = node_reserve(node, 2, 1, 5000);
	assert_false(qms_service_idle(node->service));
	qms_service_drain(node->service, qmc_clock_after(10 * QMC_NS_PER_S));
	node_keys_fill(&keys, 3, 1);
	request.identity = node_identity(node);
	request.keys = keys.data;
	request.n_keys = 1;
	assert_int_equal(node_call(node, "Reserve", &request.base,
				   &qmla__v1__reserve_response__descriptor, &refused),
			 QMLA_ERR_DRAINING);
	assert_null(node_lookup(node, 1, 1, 1000)); /* no new lease... */
	assert_int_equal(node_has(node, 1), OK);    /* ...but an answer */
	assert_int_equal(node_call(node, "Describe", &describe.base,
				   &qmla__v1__describe_response__descriptor, &described),
			 QMLA_OK);
	assert_true(described->draining);
	qmp_message_free(&described->base);
	uint64_t digest = node_block(node, 2, open_one->entries[0]->generation, block);

	assert_int_equal(node_move(node, QMT_WRITE, open_one->entries[0]->offset, block,
				   node->layout.block_bytes, &open_one->capability),
			 QMLA_OK);
	assert_int_equal(node_commit(node, open_one->entries[0]->ticket, digest), OK);
	assert_true(qms_service_idle(node->service));
	qmp_message_free(&open_one->base);
	free(block);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(two_writers_of_one_key),
		T(commit_refuses_what_is_not_the_block),
		T(one_duplicate_in_a_batch),
		T(a_full_pool_with_everything_leased),
		T(a_forgotten_ticket_gives_the_slot_back),
		T(writes_reach_only_what_the_ticket_covers),
		T(handles_of_another_life_are_refused),
		T(a_draining_node_takes_no_new_work_and_finishes_the_old),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
