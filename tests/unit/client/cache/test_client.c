/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/log.h"
#include "tests/unit/client/cache/fixture.h"

static int setup(void **state)
{
	*state = fixture_create(3);
	return 0;
}

static int teardown(void **state)
{
	fixture_destroy(*state);
	return 0;
}

static const qmla_client_config_t good = {
	.struct_size = sizeof(qmla_client_config_t),
	.nodes = "127.0.0.1:1",
	.layout = {QMLA_FORMAT_C4R4, 4, 512, 64},
};

static void check_refused(const qmla_client_config_t *config, qmla_status_t expected)
{
	qmla_client_t *client = (qmla_client_t *)(uintptr_t)1;

	assert_int_equal(qmla_client_create(config, &client), expected);
	assert_ptr_equal(client, (void *)(uintptr_t)1);
}

static void test_config(void **state)
{
	qmla_client_config_t config = good;
	qmla_client_t *client;

	(void)state;
	assert_int_equal(qmla_client_create(&config, &client), QMLA_OK);
	qmla_client_destroy(client);
	qmla_client_destroy(NULL);
	check_refused(NULL, QMLA_ERR_INVALID_ARGUMENT);
	config.struct_size = 0;
	check_refused(&config, QMLA_ERR_INVALID_ARGUMENT);
	config.struct_size = sizeof(config) + 8;
	check_refused(&config, QMLA_ERR_INVALID_ARGUMENT);
	config = good;
	config.nodes = NULL;
	check_refused(&config, QMLA_ERR_INVALID_ARGUMENT);
	config.nodes = "nonsense";
	check_refused(&config, QMLA_ERR_INVALID_ARGUMENT);
	config = good;
	config.transport = "pigeon";
	check_refused(&config, QMLA_ERR_UNSUPPORTED);
	config = good;
	config.layout.rope_dim = 63;
	check_refused(&config, QMLA_ERR_INVALID_ARGUMENT);
	config = good;
	config.layout.format = (qmla_format_t)9;
	check_refused(&config, QMLA_ERR_INVALID_ARGUMENT);
	config = good;
	config.replicas = 1000;
	check_refused(&config, QMLA_ERR_INVALID_ARGUMENT);
	config = good;
	config.connections = 1000;
	check_refused(&config, QMLA_ERR_INVALID_ARGUMENT);
}

/* The sizes that the format promises: 292 and 164 bytes a token and layer, and the header. */
static void test_block_bytes(void **state)
{
	qmla_layout_t layout = {QMLA_FORMAT_C4R4, 27, 512, 64};

	(void)state;
	assert_in_range(qmla_layout_block_bytes(&layout), 27 * 18688 + 1, 27 * 18688 + 512);
	layout.format = QMLA_FORMAT_C2R4;
	assert_in_range(qmla_layout_block_bytes(&layout), 27 * 10496 + 1, 27 * 10496 + 512);
	layout.layers = 0;
	assert_int_equal(qmla_layout_block_bytes(&layout), 0);
	assert_int_equal(qmla_layout_block_bytes(NULL), 0);
}

/* A client of an older header has a shorter structure. */
static void test_older_header(void **state)
{
	qmla_client_config_t config = good;
	qmla_client_t *client;

	(void)state;
	config.struct_size = offsetof(qmla_client_config_t, connections);
	config.connections = 99999; /* past its end: not looked at */
	assert_int_equal(qmla_client_create(&config, &client), QMLA_OK);
	qmla_client_destroy(client);
}

static void test_remove_and_clear(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[12];
	uint64_t removed = 99;

	fixture_publish(f, 10);
	assert_int_equal(qmla_client_remove(f->client, f->keys + 8, 4, 1000, statuses), QMLA_OK);
	assert_int_equal(statuses[0], QMLA_OK);
	assert_int_equal(statuses[1], QMLA_OK);
	assert_int_equal(statuses[2], QMLA_ERR_NOT_FOUND);
	assert_int_equal(statuses[3], QMLA_ERR_NOT_FOUND);
	assert_int_equal(fixture_fetch(f, 10, 1000, NULL, NULL), 8);
	assert_int_equal(qmla_client_clear(f->client, 1000, &removed), QMLA_OK);
	assert_int_equal(removed, 8);
	assert_int_equal(fixture_fetch(f, 10, 1000, NULL, NULL), 0);
}

static void test_pin(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[4];

	fixture_publish(f, 3);
	assert_int_equal(qmla_client_pin(f->client, f->keys, 4, "me", 1000, 1000, statuses),
			 QMLA_OK);
	assert_int_equal(statuses[2], QMLA_OK);
	assert_int_equal(statuses[3], QMLA_ERR_NOT_FOUND);
	assert_int_equal(qmla_client_unpin(f->client, f->keys, 4, "me", 1000, statuses), QMLA_OK);
	assert_int_equal(statuses[0], QMLA_OK);
}

/* With a node dead, what it may hold is not called removed. */
static void test_remove_with_dead_node(void **state)
{
	struct fixture *f = *state;
	qmla_status_t statuses[10];
	uint64_t removed;

	fixture_publish(f, 10);
	fake_node_stop(f->nodes[0]);
	f->nodes[0] = NULL;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(qmla_client_remove(f->client, f->keys, 10, 1000, statuses),
				 QMLA_ERR_UNAVAILABLE);
		assert_int_equal(statuses[0], QMLA_ERR_UNAVAILABLE);
	}
	assert_int_equal(qmla_client_clear(f->client, 1000, &removed), QMLA_ERR_UNAVAILABLE);
}

static void test_status(void **state)
{
	struct fixture *f = *state;
	qmla_node_status_t nodes[4];
	size_t count = 2;

	fixture_publish(f, 10);
	assert_int_equal(qmla_client_status(f->client, 1000, nodes, &count), QMLA_ERR_TOO_LARGE);
	count = 4;
	assert_int_equal(qmla_client_status(f->client, 1000, nodes, &count), QMLA_OK);
	assert_int_equal(count, 3);
	assert_string_equal(nodes[1].address, "n1");
	assert_string_equal(nodes[1].node_id, "fake");
	assert_int_equal(nodes[0].blocks + nodes[1].blocks + nodes[2].blocks, 10);
	fake_node_stop(f->nodes[1]);
	f->nodes[1] = NULL;
	count = 4;
	assert_int_equal(qmla_client_status(f->client, 1000, nodes, &count), QMLA_OK);
	assert_int_equal(nodes[1].status, QMLA_ERR_UNAVAILABLE);
	assert_int_equal(nodes[2].status, QMLA_OK);
}

/* Asking how a node does must not open a pool on it. */
static void test_status_opens_nothing(void **state)
{
	struct fixture *f = *state;
	qmla_node_status_t nodes[3];
	size_t count = 3;

	assert_int_equal(qmla_client_status(f->client, 1000, nodes, &count), QMLA_OK);
	assert_int_equal(atomic_load(&f->nodes[0]->counts.connects), 0);
}

/* Left out, then found well again by the probe, without anyone asking for keys. */
static void test_probe_brings_back(void **state)
{
	struct fixture *f = *state;
	uint16_t port = fake_node_port(f->nodes[0]);
	size_t prefix;

	fake_node_stop(f->nodes[0]);
	f->nodes[0] = NULL;
	assert_int_equal(qmla_client_lookup(f->client, f->keys, 40, 1000, &prefix), QMLA_OK);
	f->nodes[0] = fake_node_start(&f->layout, port);
	assert_true(fixture_reaches(&f->nodes[0]->counts.describes, 1));
	/* The node has answered; when the client has taken that in, its share of keys goes there.
	 */
	for (int i = 0; i < 200 && fake_node_blocks(f->nodes[0]) == 0; i++) {
		fixture_publish(f, 40);
		qmc_clock_sleep_until(qmc_clock_after(10 * QMC_NS_PER_MS));
	}
	assert_true(fake_node_blocks(f->nodes[0]) > 0);
}

int main(void)
{
#define THREE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config),
		cmocka_unit_test(test_block_bytes),
		cmocka_unit_test(test_older_header),
		THREE(test_remove_and_clear),
		THREE(test_pin),
		THREE(test_remove_with_dead_node),
		THREE(test_status),
		THREE(test_status_opens_nothing),
		THREE(test_probe_brings_back),
	};

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
