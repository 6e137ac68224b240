/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node and a client in one process, over fake verbs: which transport is chosen, what
 * happens when it fails, and when it comes back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <qmla/cache.h>

#include "common/clock.h"
#include "fake_verbs.h"
#include "kernels/block.h"
#include "server/service.h"

#define BLOCKS 16

struct stack {
	struct qms_service *service;
	char listen[64];
	qmla_client_t *client;
	qmla_client_config_t config;
	char nodes[64];
	struct qmk_layout bytes;
	qmla_key_t keys[BLOCKS];
	uint8_t *memory;
	void *written[BLOCKS], *read[BLOCKS];
};

static void set(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

static void start_node(struct stack *stack, const char *devices, int64_t identity_idle)
{
	const struct qms_service_config config = {
		.node_id = "node",
		.listen = stack->listen,
		.data = {.listen = "127.0.0.1:0", .shm_dir = "none", .rdma_devices = devices},
		.store = {.pool_bytes = 8u << 20,
			  .max_identities = 1,
			  .identity_idle_ns = identity_idle},
	};

	assert_int_equal(qms_service_create(&config, &stack->service), QMLA_OK);
	qms_service_set_ready(stack->service, true);
	snprintf(stack->listen, sizeof(stack->listen), "127.0.0.1:%u",
		 qms_service_port(stack->service));
}

static void make_blocks(struct stack *stack, const qmla_identity_t *identity)
{
	size_t block = stack->bytes.block_bytes;
	uint32_t tokens[64 * BLOCKS];

	for (uint32_t i = 0; i < 64 * BLOCKS; i++)
		tokens[i] = i;
	assert_int_equal(qmla_keys_compute(identity, "verbs", tokens, 64 * BLOCKS, stack->keys),
			 QMLA_OK);
	stack->memory = aligned_alloc(128, 2 * BLOCKS * block);
	assert_non_null(stack->memory);
	for (size_t i = 0; i < BLOCKS; i++) {
		struct qmk_block_info info = {.generation = 0};
		uint8_t *bytes = stack->memory + 2 * i * block;

		stack->written[i] = bytes;
		stack->read[i] = bytes + block;
		memset(bytes, (int)i + identity->bytes[0], block);
		memcpy(info.key, stack->keys[i].bytes, sizeof(info.key));
		memcpy(info.identity, identity->bytes, sizeof(info.identity));
		qmk_block_seal(&stack->bytes, &info, bytes);
	}
}

static void start_client(struct stack *stack, const char *transport, uint8_t identity)
{
	stack->config = (qmla_client_config_t){
		.struct_size = sizeof(stack->config),
		.nodes = stack->nodes,
		.layout = {QMLA_FORMAT_C4R4, 1, 512, 64},
		.transport = transport,
		.call_timeout_ms = 1000,
		.probe_interval_ms = 200,
	};
	memset(stack->config.identity.bytes, identity, sizeof(stack->config.identity.bytes));
	snprintf(stack->nodes, sizeof(stack->nodes), "%s", stack->listen);
	assert_int_equal(qmk_layout_init(QMK_FORMAT_C4R4, 1, 512, 64, &stack->bytes), QMLA_OK);
	make_blocks(stack, &stack->config.identity);
	assert_int_equal(qmla_client_create(&stack->config, &stack->client), QMLA_OK);
}

static void stop_client(struct stack *stack)
{
	qmla_client_destroy(stack->client);
	free(stack->memory);
}

static bool publish(struct stack *stack)
{
	qmla_status_t statuses[BLOCKS];

	if (qmla_client_publish(stack->client, stack->keys, BLOCKS,
				(const void *const *)stack->written, 10000, statuses) != QMLA_OK)
		return false;
	for (size_t i = 0; i < BLOCKS; i++) {
		if (statuses[i] != QMLA_OK && statuses[i] != QMLA_ERR_ALREADY_EXISTS)
			return false;
	}
	return true;
}

/* Blocks that came; each is what was written. */
static size_t fetch(struct stack *stack)
{
	size_t header = stack->bytes.header_bytes, prefix = 0;

	for (size_t i = 0; i < BLOCKS; i++)
		memset(stack->read[i], 0xee, stack->bytes.block_bytes);
	assert_int_equal(qmla_client_fetch(stack->client, stack->keys, BLOCKS, stack->read, 5000,
					   &prefix, NULL, NULL),
			 QMLA_OK);
	for (size_t i = 0; i < prefix; i++)
		assert_memory_equal((uint8_t *)stack->read[i] + header,
				    (uint8_t *)stack->written[i] + header,
				    stack->bytes.block_bytes - header);
	return prefix;
}

static qmla_node_status_t status_of(struct stack *stack)
{
	static qmla_node_status_t node;
	size_t count = 1;

	assert_int_equal(qmla_client_status(stack->client, 2000, &node, &count), QMLA_OK);
	return node;
}

static bool uses(struct stack *stack, const char *transport)
{
	return strcmp(status_of(stack).transport, transport) == 0;
}

/* Fetches until all come, and that by @transport, up to ten seconds. */
static bool comes_by(struct stack *stack, const char *transport)
{
	qmc_time_t end = qmc_clock_after(10 * QMC_NS_PER_S);

	while (qmc_clock_now() < end) {
		if (fetch(stack) == BLOCKS && uses(stack, transport))
			return true;
		qmc_clock_sleep_until(qmc_clock_after(50 * QMC_NS_PER_MS));
	}
	return false;
}

static int setup(void **state)
{
	struct stack *stack = calloc(1, sizeof(*stack));

	qmt_verbs_api_use(fake_start());
	set("QMLA_RDMA_DEVICES", NULL);
	strcpy(stack->listen, "127.0.0.1:0");
	*state = stack;
	return 0;
}

static int teardown(void **state)
{
	free(*state);
	return fake_stop() ? 0 : -1;
}

static void verbs_is_chosen_where_both_sides_have_it(void **state)
{
	struct stack *stack = *state;
	qmla_node_status_t node;
	int device = fake_add_roce("nic", 1);

	start_node(stack, NULL, 0);
	start_client(stack, NULL, 1);
	assert_int_equal(qmla_client_register_memory(stack->client, stack->memory,
						     2 * BLOCKS * stack->bytes.block_bytes),
			 QMLA_OK);
	assert_true(publish(stack));
	assert_int_equal(fetch(stack), BLOCKS);
	node = status_of(stack);
	assert_string_equal(node.transport, "verbs");
	assert_non_null(strstr(node.data_path, "nic port 1 gid 1 (RoCE v2 10.0.0.1)"));
	assert_non_null(strstr(node.data_path, "host memory"));
	assert_true(fake_bytes_read(device) >= BLOCKS * stack->bytes.block_bytes);
	assert_true(node.bytes_written >= BLOCKS * stack->bytes.block_bytes);
	stop_client(stack);
	qms_service_destroy(stack->service, QMC_NS_PER_S);
}

static void any_transport_can_be_forced(void **state)
{
	struct stack *stack = *state;

	fake_add_roce("nic", 1);
	start_node(stack, NULL, 0);
	start_client(stack, "tcp", 1);
	assert_true(publish(stack));
	assert_true(uses(stack, "tcp"));
	assert_int_equal(fake_qps(), 0);
	stop_client(stack);
	start_client(stack, "verbs", 1);
	assert_int_equal(fetch(stack), BLOCKS);
	assert_true(uses(stack, "verbs"));
	stop_client(stack);
	qms_service_destroy(stack->service, QMC_NS_PER_S);
}

/* aibrix #1171, #1228: no device must mean no RDMA, said clearly, and no crash. */
static void without_a_device_tcp_serves_and_force_is_refused(void **state)
{
	struct stack *stack = *state;
	qmla_client_t *client = NULL;

	start_node(stack, NULL, 0);
	start_client(stack, "auto", 1);
	assert_true(publish(stack));
	assert_int_equal(fetch(stack), BLOCKS);
	assert_true(uses(stack, "tcp"));
	stack->config.transport = "verbs";
	assert_int_equal(qmla_client_create(&stack->config, &client), QMLA_ERR_UNSUPPORTED);
	stop_client(stack);
	qms_service_destroy(stack->service, QMC_NS_PER_S);
}

static void a_handshake_that_fails_gives_way_to_tcp_and_is_tried_again(void **state)
{
	struct stack *stack = *state;
	int server = fake_add_roce("s", 1), client = fake_add_roce("c", 2);

	(void)server;
	set("QMLA_RDMA_DEVICES", "c");
	fake_get(client)->fabric = 1; /* both have verbs, and no way to each other */
	start_node(stack, "s", 0);
	start_client(stack, NULL, 1);
	assert_true(publish(stack));
	assert_int_equal(fetch(stack), BLOCKS);
	assert_true(uses(stack, "tcp"));
	fake_set_fabric(client, 0);
	assert_true(comes_by(stack, "verbs"));
	stop_client(stack);
	/* Forced, it is an honest failure. */
	fake_set_fabric(client, 1);
	start_client(stack, "verbs", 1);
	assert_int_equal(fetch(stack), 0);
	stop_client(stack);
	qms_service_destroy(stack->service, QMC_NS_PER_S);
}

/* Mooncake #3596: five times slower for ever after a flap. */
static void a_port_flap_costs_a_detour_and_no_more(void **state)
{
	struct stack *stack = *state;
	int server = fake_add_roce("s", 1), client = fake_add_roce("c", 2);

	set("QMLA_RDMA_DEVICES", "c");
	start_node(stack, "s", 0);
	start_client(stack, NULL, 1);
	assert_true(publish(stack));
	assert_true(comes_by(stack, "verbs"));
	fake_set_port(client, IBV_PORT_DOWN);
	assert_true(comes_by(stack, "tcp"));
	fake_set_port(client, IBV_PORT_ACTIVE);
	assert_true(comes_by(stack, "verbs"));
	fake_set_port(server, IBV_PORT_DOWN);
	assert_true(comes_by(stack, "tcp"));
	fake_set_port(server, IBV_PORT_ACTIVE);
	assert_true(comes_by(stack, "verbs"));
	stop_client(stack);
	qms_service_destroy(stack->service, QMC_NS_PER_S);
}

/* Mooncake #1336: another life of the node has another memory; nothing of the old is used. */
static void a_restarted_node_is_met_anew(void **state)
{
	struct stack *stack = *state;

	fake_add_roce("nic", 1);
	start_node(stack, NULL, 0);
	start_client(stack, NULL, 1);
	assert_true(publish(stack));
	assert_int_equal(fetch(stack), BLOCKS);
	qms_service_destroy(stack->service, 0);
	start_node(stack, NULL, 0);
	for (int i = 0; i < 50 && !publish(stack); i++)
		qmc_clock_sleep_until(qmc_clock_after(100 * QMC_NS_PER_MS));
	assert_true(comes_by(stack, "verbs"));
	stop_client(stack);
	qms_service_destroy(stack->service, QMC_NS_PER_S);
}

/* The only pool goes to another identity: whoever read the old one directly is cut off. */
static void a_pool_that_changes_hands_gives_nobody_the_others_blocks(void **state)
{
	struct stack *first = *state, *second = calloc(1, sizeof(*second));
	unsigned pairs;

	fake_add_roce("nic", 1);
	start_node(first, NULL, 1);
	start_client(first, "verbs", 1);
	assert_true(publish(first));
	assert_int_equal(fetch(first), BLOCKS);
	pairs = fake_qps();
	assert_true(pairs >= 2);
	/* Leases are released in the background. */
	qmc_clock_sleep_until(qmc_clock_after(500 * QMC_NS_PER_MS));
	strcpy(second->listen, first->listen);
	start_client(second, "verbs", 2);
	assert_true(publish(second));
	assert_int_equal(fetch(second), BLOCKS);
	/* The first's queue pairs at the node are gone, whatever it still believes. */
	for (int i = 0; i < 2000 && fake_qps() > pairs + 1; i++)
		qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_MS));
	assert_in_range(fake_qps(), 2, pairs + 1);
	stop_client(second);
	free(second);
	stop_client(first);
	qms_service_destroy(first->service, QMC_NS_PER_S);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(verbs_is_chosen_where_both_sides_have_it),
		CASE(any_transport_can_be_forced),
		CASE(without_a_device_tcp_serves_and_force_is_refused),
		CASE(a_handshake_that_fails_gives_way_to_tcp_and_is_tried_again),
		CASE(a_port_flap_costs_a_detour_and_no_more),
		CASE(a_restarted_node_is_met_anew),
		CASE(a_pool_that_changes_hands_gives_nobody_the_others_blocks),
	};

	if (argc > 1) /* one of them */
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
