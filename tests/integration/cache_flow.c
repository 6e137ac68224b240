/* SPDX-License-Identifier: Apache-2.0 */
/* The library against real nodes: everything well, or wrong in the data only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache_rig.h"
#include "client/cache/thread.h"
#include "common/clock.h"
#include "common/log.h"

static void round_trip(const char *transport)
{
	struct rig *rig = rig_create(&(struct rig_plan){.transport = transport, .blocks = 100});
	qmla_node_status_t node;
	qmla_fetch_stats_t stats;
	size_t prefix, count = 1;

	assert_int_equal(rig_fetch(rig, 100, 2000, NULL, NULL), 0);
	rig_publish(rig, 60);
	assert_int_equal(rig_fetch(rig, 100, 2000, NULL, &stats), 60);
	assert_int_equal(stats.bytes, 60 * rig->bytes.block_bytes);
	rig_publish(rig, 100);
	assert_int_equal(rig_fetch(rig, 100, 2000, NULL, NULL), 100);
	assert_int_equal(qmla_client_lookup(rig->client, rig->keys, 100, 1000, &prefix), QMLA_OK);
	assert_int_equal(prefix, 100);
	assert_int_equal(qmla_client_status(rig->client, 1000, &node, &count), QMLA_OK);
	assert_int_equal(node.blocks, 100);
	assert_int_equal(node.commits, 100);
	if (transport)
		assert_string_equal(node.transport, transport);
	else
		assert_string_equal(node.transport, "shm"); /* the same machine */
	rig_destroy(rig);
}

static void test_round_trip_tcp(void **state)
{
	(void)state;
	round_trip("tcp");
}

static void test_round_trip_shm(void **state)
{
	(void)state;
	round_trip("shm");
}

static void test_round_trip_auto(void **state)
{
	(void)state;
	round_trip(NULL);
}

static void test_several_nodes(void **state)
{
	struct rig *rig = rig_create(&(struct rig_plan){.nodes = 3, .blocks = 90});
	qmla_node_status_t nodes[RIG_NODES];
	qmla_fetch_stats_t stats;
	size_t count = RIG_NODES;

	(void)state;
	rig_publish(rig, 90);
	assert_int_equal(rig_fetch(rig, 90, 2000, NULL, &stats), 90);
	assert_int_equal(stats.nodes, 3);
	assert_int_equal(qmla_client_status(rig->client, 1000, nodes, &count), QMLA_OK);
	for (size_t i = 0; i < 3; i++)
		assert_in_range(nodes[i].blocks, 15, 45);
	assert_int_equal(rig_blocks(rig), 90);
	rig_destroy(rig);
}

static void test_hole(void **state)
{
	struct rig *rig = rig_create(&(struct rig_plan){.nodes = 2});
	qmla_status_t statuses[32];
	uint64_t removed;

	(void)state;
	rig_publish(rig, 32);
	assert_int_equal(qmla_client_remove(rig->client, &rig->keys[11], 1, 1000, statuses),
			 QMLA_OK);
	assert_int_equal(rig_fetch(rig, 32, 2000, statuses, NULL), 11);
	assert_int_equal(statuses[11], QMLA_ERR_NOT_FOUND);
	/* The one that is missing is published, the others are there. */
	assert_int_equal(qmla_client_publish(rig->client, rig->keys, 32,
					     (const void *const *)rig->written, 2000, statuses),
			 QMLA_OK);
	assert_int_equal(statuses[11], QMLA_OK);
	assert_int_equal(statuses[12], QMLA_ERR_ALREADY_EXISTS);
	assert_int_equal(rig_fetch(rig, 32, 2000, NULL, NULL), 32);
	assert_int_equal(qmla_client_clear(rig->client, 2000, &removed), QMLA_OK);
	assert_int_equal(removed, 32);
	assert_int_equal(rig_fetch(rig, 32, 2000, NULL, NULL), 0);
	rig_destroy(rig);
}

/*
 * A page that differs from its checksum, through the real write path: the node
 * checks the header, so the reader finds it, reports it, and the block is gone.
 */
static void corrupt_block(const char *transport)
{
	struct rig *rig = rig_create(&(struct rig_plan){.transport = transport});
	uint8_t *page = (uint8_t *)rig->written[5] + rig->bytes.header_bytes;
	qmla_status_t statuses[32];
	qmla_node_status_t node;
	qmla_fetch_stats_t stats;
	size_t count = 1;

	page[4711] ^= 0x20;
	rig_publish(rig, 32);
	page[4711] ^= 0x20;
	assert_int_equal(rig_fetch(rig, 32, 2000, statuses, &stats), 5);
	assert_int_equal(statuses[5], QMLA_ERR_CORRUPT);
	assert_int_equal(stats.corrupt, 1);
	assert_int_equal(qmla_client_status(rig->client, 1000, &node, &count), QMLA_OK);
	assert_int_equal(node.corrupt_reports, 1);
	assert_int_equal(node.blocks, 31);
	/* Recomputed: published again, and good. */
	rig_publish(rig, 32);
	assert_int_equal(rig_fetch(rig, 32, 2000, NULL, NULL), 32);
	rig_destroy(rig);
}

static void test_corrupt_tcp(void **state)
{
	(void)state;
	corrupt_block("tcp");
}

static void test_corrupt_shm(void **state)
{
	(void)state;
	corrupt_block("shm");
}

struct writer {
	struct rig *rig;
	qmla_client_t *client;
	qmla_status_t statuses[32];
	qmla_status_t status;
	pthread_t thread;
};

static void *write_blocks(void *user)
{
	struct writer *writer = user;

	writer->status = qmla_client_publish(writer->client, writer->rig->keys, 32,
					     (const void *const *)writer->rig->written, 5000,
					     writer->statuses);
	return NULL;
}

/* Two processes' worth of writers at once: each key is written once, both are content. */
static void test_two_writers(void **state)
{
	struct rig *rig = rig_create(&(struct rig_plan){.nodes = 2});
	struct writer writers[4];

	(void)state;
	for (size_t round = 0; round < 5; round++) {
		for (size_t i = 0; i < 4; i++) {
			writers[i].rig = rig;
			writers[i].client = rig_client(rig);
		}
		for (size_t i = 0; i < 4; i++)
			assert_int_equal(
				qml_thread_start(&writers[i].thread, write_blocks, &writers[i]),
				QMLA_OK);
		for (size_t i = 0; i < 4; i++) {
			pthread_join(writers[i].thread, NULL);
			assert_int_equal(writers[i].status, QMLA_OK);
			qmla_client_destroy(writers[i].client);
		}
		for (size_t k = 0; k < 32; k++) {
			size_t wrote = 0;

			for (size_t i = 0; i < 4; i++)
				wrote += writers[i].statuses[k] == QMLA_OK;
			assert_int_equal(wrote, 1);
		}
		assert_int_equal(rig_fetch(rig, 32, 2000, NULL, NULL), 32);
		assert_int_equal(qmla_client_clear(rig->client, 2000, NULL), QMLA_OK);
	}
	rig_destroy(rig);
}

static void test_duplicate_in_batch(void **state)
{
	struct rig *rig = rig_create(&(struct rig_plan){0});
	qmla_key_t keys[3] = {rig->keys[0], rig->keys[0], rig->keys[1]};
	const void *blocks[3] = {rig->written[0], rig->written[0], rig->written[1]};
	void *into[3] = {rig->read[0], rig->read[1], rig->read[2]};
	qmla_status_t statuses[3];
	size_t prefix;

	(void)state;
	assert_int_equal(qmla_client_publish(rig->client, keys, 3, blocks, 2000, statuses),
			 QMLA_OK);
	assert_int_equal(statuses[0], QMLA_OK);
	assert_int_equal(statuses[1], QMLA_ERR_ALREADY_EXISTS);
	assert_int_equal(statuses[2], QMLA_OK);
	assert_int_equal(qmla_client_fetch(rig->client, keys, 3, into, 2000, &prefix, NULL, NULL),
			 QMLA_OK);
	assert_int_equal(prefix, 3);
	assert_memory_equal(into[0], into[1], rig->bytes.block_bytes);
	rig_destroy(rig);
}

/* Another identity has other keys and another pool; neither sees the other's blocks. */
static void test_identities_apart(void **state)
{
	const char *const flags[] = {"--max-identities", "2", NULL};
	struct rig *rig = rig_create(&(struct rig_plan){.flags = flags});
	qmla_client_config_t config = rig->config;
	qmla_client_t *other;
	size_t prefix = 9;

	(void)state;
	rig_publish(rig, 8);
	config.identity.bytes[0] ^= 1;
	assert_int_equal(qmla_client_create(&config, &other), QMLA_OK);
	assert_int_equal(qmla_client_lookup(other, rig->keys, 8, 2000, &prefix), QMLA_OK);
	assert_int_equal(prefix, 0);
	qmla_client_destroy(other);
	/* The same identity with another layout is refused, and is a miss. */
	config = rig->config;
	config.layout.format = QMLA_FORMAT_C2R4;
	assert_int_equal(qmla_client_create(&config, &other), QMLA_OK);
	prefix = 9;
	assert_int_equal(qmla_client_lookup(other, rig->keys, 8, 2000, &prefix), QMLA_OK);
	assert_int_equal(prefix, 0);
	qmla_client_destroy(other);
	assert_int_equal(rig_fetch(rig, 8, 2000, NULL, NULL), 8);
	rig_destroy(rig);
}

/*
 * A transfer longer than its lease: renewed all the way. How long a transfer takes
 * is the machine's affair, so the lease grows until renewals can keep up; a lease
 * that could not be kept must have been a clean miss (rig_fetch checks the bytes).
 */
static void test_lease_shorter_than_transfer(void **state)
{
	struct rig *rig = rig_create(&(struct rig_plan){.layers = 27,
							.blocks = 200,
							.pool = "192MiB",
							.transport = "tcp",
							.connections = 1});
	qmla_fetch_stats_t stats = {0};
	size_t prefix = 0;

	(void)state;
	rig_publish(rig, 200);
	for (uint32_t lease_ms = 20; lease_ms < 3000; lease_ms *= 2) {
		qmla_client_destroy(rig->client);
		rig->config.lease_ms = lease_ms;
		rig->client = rig_client(rig);
		prefix = rig_fetch(rig, 200, 20000, NULL, &stats);
		if (prefix == 200)
			break;
	}
	assert_int_equal(prefix, 200);
	assert_true(stats.renewals > 0);
	rig_destroy(rig);
}

static void test_pin(void **state)
{
	struct rig *rig = rig_create(&(struct rig_plan){.nodes = 2});
	qmla_status_t statuses[4];

	(void)state;
	rig_publish(rig, 3);
	assert_int_equal(qmla_client_pin(rig->client, rig->keys, 4, "test", 60000, 1000, statuses),
			 QMLA_OK);
	assert_int_equal(statuses[2], QMLA_OK);
	assert_int_equal(statuses[3], QMLA_ERR_NOT_FOUND);
	assert_int_equal(qmla_client_remove(rig->client, rig->keys, 3, 1000, statuses),
			 QMLA_ERR_BUSY);
	assert_int_equal(qmla_client_unpin(rig->client, rig->keys, 3, "test", 1000, statuses),
			 QMLA_OK);
	/* A pin whose owner died ends by itself. */
	assert_int_equal(qmla_client_pin(rig->client, rig->keys, 1, "dead", 300, 1000, statuses),
			 QMLA_OK);
	assert_int_equal(qmla_client_remove(rig->client, rig->keys, 1, 1000, statuses),
			 QMLA_ERR_BUSY);
	qmc_clock_sleep_until(qmc_clock_after(500 * QMC_NS_PER_MS));
	assert_int_equal(qmla_client_remove(rig->client, rig->keys, 3, 1000, statuses), QMLA_OK);
	rig_destroy(rig);
}

static void test_watch(void **state)
{
	struct rig *rig = rig_create(&(struct rig_plan){.nodes = 2});
	size_t inserted = 0, removed = 0, synced = 0;
	qmla_watch_t *watch;
	qmla_event_t event;

	(void)state;
	rig_publish(rig, 10);
	assert_int_equal(qmla_watch_open(rig->client, true, &watch), QMLA_OK);
	while (synced < 2 || inserted < 10) {
		assert_int_equal(qmla_watch_next(watch, 5000, &event), QMLA_OK);
		inserted += event.kind == QMLA_EVENT_INSERTED;
		synced += event.kind == QMLA_EVENT_SYNCED;
	}
	assert_int_equal(inserted, 10);
	rig_publish(rig, 12);
	assert_int_equal(qmla_client_remove(rig->client, rig->keys, 1, 1000, NULL), QMLA_OK);
	while (removed < 1 || inserted < 12) {
		assert_int_equal(qmla_watch_next(watch, 5000, &event), QMLA_OK);
		inserted += event.kind == QMLA_EVENT_INSERTED;
		removed += event.kind == QMLA_EVENT_REMOVED;
	}
	qmla_watch_close(watch);
	rig_destroy(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip_tcp),
		cmocka_unit_test(test_round_trip_shm),
		cmocka_unit_test(test_round_trip_auto),
		cmocka_unit_test(test_several_nodes),
		cmocka_unit_test(test_hole),
		cmocka_unit_test(test_corrupt_tcp),
		cmocka_unit_test(test_corrupt_shm),
		cmocka_unit_test(test_two_writers),
		cmocka_unit_test(test_duplicate_in_batch),
		cmocka_unit_test(test_identities_apart),
		cmocka_unit_test(test_lease_shorter_than_transfer),
		cmocka_unit_test(test_pin),
		cmocka_unit_test(test_watch),
	};

	if (!rig_available())
		return 77;
	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
