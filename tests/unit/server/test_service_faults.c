/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that go wrong: slower than their lease, stopped in the middle, bits
 * that flip. Blocks are 9.5 MB, more than a socket buffers, so that a peer that
 * does not read really holds the node up.
 */
#include "cmocka_first.h"

#include <stdlib.h>
#include <string.h>

#include "node_fixture.h"

#define OK    QMLA__V1__CODE__CODE_OK
#define SLOTS 4u

static int setup(void **state)
{
	static struct node node;
	struct qms_service_config config = node_config();
	struct qmk_layout layout;

	*state = &node;
	if (qmk_layout_init(QMK_FORMAT_C4R4, 256, 1024, 128, &layout) != QMLA_OK)
		return -1;
	config.store.max_identities = 1;
	config.store.pool_bytes = SLOTS * layout.block_bytes;
	if (!node_start(&node, &config))
		return -1;
	node.layout = layout;
	return node_connect(&node, "tcp") == QMLA_OK && node.slots == SLOTS ? 0 : -1;
}

static int teardown(void **state)
{
	struct node *node = *state;
	bool sound = node_sound(node);

	node_stop(node);
	return sound ? 0 : -1;
}

static bool no_lease(const struct qms_store_stats *stats)
{
	return stats->leases == 0;
}

static bool no_ticket(const struct qms_store_stats *stats)
{
	return stats->tickets == 0;
}

static bool nothing_used(const struct qms_store_stats *stats)
{
	return stats->used_bytes == 0;
}

static bool something_moves(const struct qms_store_stats *stats)
{
	return stats->inflight > 0;
}

/* Whatever was granted so far has ended: what the reaper does two minutes later. */
static void time_passes(struct node *node)
{
	qms_store_expire(qms_service_store(node->service), qmc_clock_now() + 120 * QMC_NS_PER_S);
}

static void op_fill(struct node *node, struct qmt_op *op, enum qmt_access access, uint64_t offset,
		    void *local, const ProtobufCBinaryData *capability)
{
	*op = (struct qmt_op){.access = access,
			      .remote = &node->region,
			      .remote_offset = offset,
			      .local = local,
			      .length = node->layout.block_bytes,
			      .deadline = qmc_clock_after(20 * QMC_NS_PER_S)};
	memcpy(op->capability, capability->data, sizeof(op->capability));
}

/* Scenarios 3, 4, 34: the reader is slow, its lease ends, the pool is needed by others. */
static void a_transfer_longer_than_its_lease_reads_no_other_block(void **state)
{
	struct node *node = *state;
	uint64_t bytes = node->layout.block_bytes;
	uint8_t *got = malloc(SLOTS * bytes), *expected = malloc(bytes);
	struct qmt_op ops[SLOTS];
	size_t whole = 0;

	for (uint64_t key = 0; key < SLOTS; key++)
		assert_int_equal(node_put(node, key), OK);
	Qmla__V1__LookupResponse *r = node_lookup(node, 0, SLOTS, 60000);

	for (size_t i = 0; i < SLOTS; i++) {
		struct qmt_op *done;

		op_fill(node, &ops[i], QMT_READ, r->entries[i]->offset, got + i * bytes,
			&r->capability);
		assert_int_equal(node->ops->endpoint_post(node->endpoint, &ops[i]), QMLA_OK);
		if (i == 0)
			node->ops->endpoint_wait(node->endpoint, qmc_clock_now(), &done);
	}
	assert_true(node_await(node, something_moves));
	time_passes(node);
	assert_true(node_await(node, no_lease));
	/* Whatever can be evicted now is replaced; what still moves must not be touched. */
	for (uint64_t key = 100; key < 120; key++) {
		Qmla__V1__ReserveResponse *reserved = node_reserve(node, key, 1, 60000);
		Qmla__V1__ReserveEntry *entry = reserved->entries[0];

		if (entry->code == OK) {
			void *base;
			uint64_t all;
			int fd;

			qms_store_region(qms_service_store(node->service), 0, &base, &all, &fd);
			memset((char *)base + entry->offset, 0xee, bytes);
		}
		qmp_message_free(&reserved->base);
	}
	for (size_t i = 0; i < SLOTS; i++) {
		struct qmt_op *done = NULL;

		assert_int_equal(node->ops->endpoint_wait(
					 node->endpoint, qmc_clock_after(20 * QMC_NS_PER_S), &done),
				 QMLA_OK);
		assert_non_null(done);
		if (done->status != QMLA_OK) /* authorised after the lease had ended */
			continue;
		node_block(node, (uint64_t)(done - ops), r->entries[done - ops]->generation,
			   expected);
		assert_memory_equal(done->local, expected, bytes);
		whole++;
	}
	assert_true(whole >= 1);
	qmp_message_free(&r->base);
	free(got);
	free(expected);
}

/* Scenario 36: a writer stops in the middle and its ticket ends. */
static void a_writer_that_stalls_is_fenced_and_its_slot_comes_back(void **state)
{
	struct node *node = *state;
	uint64_t bytes = node->layout.block_bytes;
	uint8_t *block = calloc(1, bytes);
	Qmla__V1__ReserveResponse *r = node_reserve(node, 1, SLOTS, 60000);
	struct qmt_op ops[SLOTS];
	struct qmt_op *done;

	for (size_t i = 0; i < SLOTS; i++) {
		op_fill(node, &ops[i], QMT_WRITE, r->entries[i]->offset, block, &r->capability);
		assert_int_equal(node->ops->endpoint_post(node->endpoint, &ops[i]), QMLA_OK);
	}
	/* Sends what fits at once, and then nothing more. */
	node->ops->endpoint_wait(node->endpoint, qmc_clock_now(), &done);
	assert_true(node_await(node, something_moves));
	time_passes(node);
	assert_true(node_await(node, no_ticket));
	assert_true(node_await(node, nothing_used));
	for (size_t i = 0; i < SLOTS; i++)
		assert_int_equal(node_commit(node, r->entries[i]->ticket, 0),
				 QMLA__V1__CODE__CODE_LEASE_EXPIRED);
	assert_int_equal(node_connect(node, "tcp"), QMLA_OK);
	for (uint64_t key = 1; key <= SLOTS; key++)
		assert_int_equal(node_put(node, key), OK);
	qmp_message_free(&r->base);
	free(block);
}

/* Scenario 43: the peer goes away in the middle of a read; nothing stays held. */
static void a_reader_that_vanishes_lets_go(void **state)
{
	struct node *node = *state;
	uint8_t *got = malloc(2 * node->layout.block_bytes);
	struct qms_store_stats stats;
	struct qmt_op ops[2];
	struct qmt_op *done;

	assert_int_equal(node_put(node, 1), OK);
	Qmla__V1__LookupResponse *r = node_lookup(node, 1, 1, 60000);

	for (size_t i = 0; i < 2; i++) {
		op_fill(node, &ops[i], QMT_READ, r->entries[0]->offset,
			got + i * node->layout.block_bytes, &r->capability);
		assert_int_equal(node->ops->endpoint_post(node->endpoint, &ops[i]), QMLA_OK);
	}
	node->ops->endpoint_wait(node->endpoint, qmc_clock_now(), &done);
	assert_true(node_await(node, something_moves));
	node->ops->endpoint_destroy(node->endpoint);
	node->endpoint = NULL;
	assert_int_equal(node_release(node, r->lease), OK);
	assert_true(node_sound(node));
	qms_store_stats(qms_service_store(node->service), &stats);
	assert_int_equal(stats.leases + stats.inflight, 0);
	qmp_message_free(&r->base);
	free(got);
}

/* A bit flips in the pool: the reader's check finds it, its report drops the block. */
static void a_flipped_bit_is_found_and_dropped(void **state)
{
	struct node *node = *state;
	struct qmk_block_info info = {0};
	uint8_t *got = malloc(node->layout.block_bytes);
	Qmla__V1__ReportRequest request = QMLA__V1__REPORT_REQUEST__INIT;
	Qmla__V1__ReportItem item = QMLA__V1__REPORT_ITEM__INIT;
	Qmla__V1__ReportItem *items[] = {&item};
	Qmla__V1__ReportResponse *reported;
	struct node_keys keys;
	uint64_t all;
	void *base;
	int fd;

	assert_int_equal(node_put(node, 1), OK);
	Qmla__V1__LookupResponse *r = node_lookup(node, 1, 1, 60000);

	node_keys_fill(&keys, 1, 1);
	memcpy(info.key, keys.bytes[0], 16);
	memcpy(info.identity, node->identity.bytes, 32);
	info.generation = r->entries[0]->generation;
	qms_store_region(qms_service_store(node->service), 0, &base, &all, &fd);
	((uint8_t *)base)[r->entries[0]->offset + node->layout.block_bytes / 2] ^= 0x10;
	assert_int_equal(node_move(node, QMT_READ, r->entries[0]->offset, got,
				   node->layout.block_bytes, &r->capability),
			 QMLA_OK);
	assert_int_equal(qmk_block_check(&node->layout, &info, got), QMLA_ERR_CORRUPT);
	item.key = keys.data[0];
	item.generation = info.generation;
	item.reason = QMLA__V1__CODE__CODE_CORRUPT;
	request.identity = node_identity(node);
	request.incarnation = node->incarnation;
	request.items = items;
	request.n_items = 1;
	assert_int_equal(node_call(node, "Report", &request.base,
				   &qmla__v1__report_response__descriptor, &reported),
			 QMLA_OK);
	assert_int_equal(reported->codes[0], OK);
	assert_int_equal(node_has(node, 1), QMLA__V1__CODE__CODE_NOT_FOUND);
	assert_int_equal(node_release(node, r->lease), OK);
	assert_int_equal(node_put(node, 1), OK);
	qmp_message_free(&reported->base);
	qmp_message_free(&r->base);
	free(got);
}

/* Scenario 14: sizes of 64 bits from end to end. The pool's memory is taken on use, so 5 GiB cost
 * little. */
static void blocks_past_four_gibibytes_are_as_good_as_others(void **state)
{
	struct qms_service_config config = node_config();
	struct qmk_layout layout = ((struct node *)*state)->layout;
	uint8_t *block = malloc(layout.block_bytes), *got = malloc(layout.block_bytes);
	Qmla__V1__ReserveResponse *r;
	Qmla__V1__ReserveEntry *entry;
	struct node big;
	uint64_t digest, key = 0;

	config.store.max_identities = 1;
	config.store.max_tickets = 1024;
	config.store.pool_bytes = UINT64_C(5) << 30;
	assert_true(node_start(&big, &config));
	big.layout = layout;
	assert_int_equal(node_connect(&big, "tcp"), QMLA_OK);
	for (;; key += BATCH) {
		r = node_reserve(&big, key, BATCH, 60000);
		assert_non_null(r);
		entry = r->entries[BATCH - 1];
		assert_int_equal(entry->code, OK);
		if (entry->offset > UINT64_C(1) << 32)
			break;
		qmp_message_free(&r->base);
	}
	key += BATCH - 1;
	digest = node_block(&big, key, entry->generation, block);
	assert_int_equal(
		node_move(&big, QMT_WRITE, entry->offset, block, entry->length, &r->capability),
		QMLA_OK);
	assert_int_equal(node_commit(&big, entry->ticket, digest), OK);
	Qmla__V1__LookupResponse *found = node_lookup(&big, key, 1, 60000);

	assert_int_equal(found->entries[0]->offset, entry->offset);
	assert_int_equal(
		node_move(&big, QMT_READ, entry->offset, got, entry->length, &found->capability),
		QMLA_OK);
	assert_memory_equal(got, block, layout.block_bytes);
	qmp_message_free(&found->base);
	qmp_message_free(&r->base);
	node_stop(&big);
	free(block);
	free(got);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_transfer_longer_than_its_lease_reads_no_other_block),
		T(a_writer_that_stalls_is_fenced_and_its_slot_comes_back),
		T(a_reader_that_vanishes_lets_go),
		T(a_flipped_bit_is_found_and_dropped),
		T(blocks_past_four_gibibytes_are_as_good_as_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
