/* SPDX-License-Identifier: Apache-2.0 */
/* Describe, Connect, Stats, health, and what they refuse. */
#include "cmocka_first.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node_fixture.h"

static int setup(void **state)
{
	static struct node node;
	struct qms_service_config config = node_config();

	*state = &node;
	return node_start(&node, &config) ? 0 : -1;
}

static int teardown(void **state)
{
	node_stop(*state);
	return 0;
}

static void describe_tells_who_is_there(void **state)
{
	struct node *node = *state;
	Qmla__V1__DescribeRequest request = QMLA__V1__DESCRIBE_REQUEST__INIT;
	Qmla__V1__DescribeResponse *r;

	assert_int_equal(node_connect(node, "tcp"), QMLA_OK);
	assert_int_equal(node_call(node, "Describe", &request.base,
				   &qmla__v1__describe_response__descriptor, &r),
			 QMLA_OK);
	assert_string_equal(r->node_id, "test-node");
	assert_string_equal(r->version, "0.1.0");
	assert_int_equal(r->incarnation, node->incarnation);
	assert_int_not_equal(r->incarnation, 0);
	assert_int_equal(r->protocol, 1);
	assert_int_equal(r->capacity_bytes, 4 << 20);
	assert_int_equal(r->max_batch_keys, 4096);
	assert_int_equal(r->max_lease_ms, 60000);
	assert_false(r->draining);
	assert_int_equal(r->n_transports, 1);
	assert_string_equal(r->transports[0], "tcp");
	assert_int_equal(r->n_pools, 1);
	assert_int_equal(r->pools[0]->identity.len, 32);
	assert_memory_equal(r->pools[0]->identity.data, node->identity.bytes, 32);
	assert_int_equal(r->pools[0]->layout->layers, 2);
	assert_int_equal(r->pools[0]->layout->fingerprint, qmk_layout_fingerprint(&node->layout));
	assert_int_equal(r->pools[0]->slot_bytes, node->layout.block_bytes);
	assert_int_equal(r->pools[0]->slots, (2 << 20) / node->layout.block_bytes);
	assert_int_equal(r->pools[0]->used_slots, 0);
	qmp_message_free(&r->base);
}

static void stats_count_what_happened(void **state)
{
	struct node *node = *state;
	Qmla__V1__StatsRequest request = QMLA__V1__STATS_REQUEST__INIT;
	Qmla__V1__StatsResponse *r;

	assert_int_equal(node_connect(node, "tcp"), QMLA_OK);
	assert_int_equal(node_put(node, 1), QMLA__V1__CODE__CODE_OK);
	assert_int_equal(node_has(node, 1), QMLA__V1__CODE__CODE_OK);
	assert_int_equal(node_has(node, 2), QMLA__V1__CODE__CODE_NOT_FOUND);
	assert_int_equal(
		node_call(node, "Stats", &request.base, &qmla__v1__stats_response__descriptor, &r),
		QMLA_OK);
	assert_int_equal(r->blocks, 1);
	assert_int_equal(r->used_bytes, node->layout.block_bytes);
	assert_int_equal(r->lookups, 2);
	assert_int_equal(r->hits, 1);
	assert_int_equal(r->reserves, 1);
	assert_int_equal(r->commits, 1);
	assert_int_equal(r->bytes_written, node->layout.block_bytes);
	assert_int_equal(r->bytes_read, 0);
	assert_int_equal(r->leases + r->tickets + r->pins, 0);
	assert_int_equal(r->n_pools, 1);
	assert_int_equal(r->pools[0]->used_slots, 1);
	qmp_message_free(&r->base);
}

/* A request that is right but for what a test spoils. */
struct connect {
	Qmla__V1__ConnectRequest request;
	Qmla__V1__Layout layout;
};

static void connect_fill(struct node *node, struct connect *c)
{
	qmla__v1__connect_request__init(&c->request);
	qmla__v1__layout__init(&c->layout);
	c->layout.format = node->layout.format;
	c->layout.layers = node->layout.layers;
	c->layout.content_dim = node->layout.content_dim;
	c->layout.rope_dim = node->layout.rope_dim;
	c->layout.page_tokens = QMK_PAGE_TOKENS;
	c->layout.version = QMK_FORMAT_VERSION;
	c->layout.fingerprint = qmk_layout_fingerprint(&node->layout);
	c->request.identity = node_identity(node);
	c->request.layout = &c->layout;
}

static qmla_status_t connect_call(struct node *node, struct connect *c)
{
	Qmla__V1__ConnectResponse *response;
	qmla_status_t status = node_call(node, "Connect", &c->request.base,
					 &qmla__v1__connect_response__descriptor, &response);

	if (response)
		qmp_message_free(&response->base);
	return status;
}

static void connect_refuses_what_does_not_fit(void **state)
{
	struct node *node = *state;
	struct qmk_layout other;
	struct connect c;
	char *unknown[] = {(char *)(uintptr_t) "verbs"};

	connect_fill(node, &c);
	c.request.identity.len = 31;
	assert_int_equal(connect_call(node, &c), QMLA_ERR_INVALID_ARGUMENT);
	assert_non_null(strstr(node->detail, "identity has 31 bytes"));

	connect_fill(node, &c);
	c.request.layout = NULL;
	assert_int_equal(connect_call(node, &c), QMLA_ERR_INVALID_ARGUMENT);
	assert_non_null(strstr(node->detail, "layout is missing"));

	connect_fill(node, &c);
	c.layout.fingerprint++;
	assert_int_equal(connect_call(node, &c), QMLA_ERR_LAYOUT_MISMATCH);
	assert_non_null(strstr(node->detail, "fingerprint"));

	connect_fill(node, &c);
	c.layout.version = 99;
	assert_int_equal(connect_call(node, &c), QMLA_ERR_LAYOUT_MISMATCH);

	connect_fill(node, &c);
	c.layout.page_tokens = 32;
	assert_int_equal(connect_call(node, &c), QMLA_ERR_LAYOUT_MISMATCH);

	connect_fill(node, &c);
	c.layout.layers = 100000;
	assert_int_equal(connect_call(node, &c), QMLA_ERR_INVALID_ARGUMENT);

	connect_fill(node, &c);
	c.request.transports = unknown;
	c.request.n_transports = 1;
	assert_int_equal(connect_call(node, &c), QMLA_ERR_UNSUPPORTED);

	/* The identity is open now; the same with another, well-formed layout is a mismatch. */
	assert_int_equal(qmk_layout_init(QMK_FORMAT_C2R4, 2, 64, 32, &other), QMLA_OK);
	connect_fill(node, &c);
	c.layout.format = QMK_FORMAT_C2R4;
	c.layout.fingerprint = qmk_layout_fingerprint(&other);
	assert_int_equal(connect_call(node, &c), QMLA_ERR_LAYOUT_MISMATCH);
	assert_non_null(strstr(node->detail, "another layout"));

	/* A block that does not fit a share of the memory. */
	assert_int_equal(qmk_layout_init(QMK_FORMAT_C4R4, 256, 1024, 128, &other), QMLA_OK);
	connect_fill(node, &c);
	memset(node->identity.bytes, 9, 32);
	c.layout.layers = 256;
	c.layout.content_dim = 1024;
	c.layout.rope_dim = 128;
	c.layout.fingerprint = qmk_layout_fingerprint(&other);
	assert_int_equal(connect_call(node, &c), QMLA_ERR_TOO_LARGE);
	assert_non_null(strstr(node->detail, "--pool-size"));
}

static void identities_beyond_the_limit_are_refused_with_the_remedy(void **state)
{
	struct node *node = *state;
	struct connect c;

	for (uint8_t i = 1; i <= 3; i++) {
		memset(node->identity.bytes, i, 32);
		connect_fill(node, &c);
		/* Used a moment ago: not idle, when a wait is asked for. */
		qms_store_set_limits(qms_service_store(node->service), QMC_NS_PER_S, QMC_NS_PER_S,
				     3600 * QMC_NS_PER_S);
		assert_int_equal(connect_call(node, &c),
				 i < 3 ? QMLA_OK : QMLA_ERR_RESOURCE_EXHAUSTED);
	}
	assert_non_null(strstr(node->detail, "--max-identities"));
}

static void shm_is_offered_only_on_the_same_machine(void **state)
{
	struct qms_service_config config = node_config();
	char folder[] = "/tmp/qmla-node-test-XXXXXX";
	struct node shm;
	struct connect c;
	char *wish[] = {(char *)(uintptr_t) "shm"};

	(void)state;
	assert_non_null(mkdtemp(folder));
	config.data.shm_dir = folder;
	assert_true(node_start(&shm, &config));
	connect_fill(&shm, &c);
	c.request.transports = wish;
	c.request.n_transports = 1;
	assert_int_equal(connect_call(&shm, &c), QMLA_ERR_UNSUPPORTED); /* no host_id */
	c.request.host_id = (char *)(uintptr_t) "00000000-0000-0000-0000-000000000000";
	assert_int_equal(connect_call(&shm, &c), QMLA_ERR_UNSUPPORTED);
	assert_int_equal(node_connect(&shm, "shm"), QMLA_OK);
	assert_int_equal(node_put(&shm, 1), QMLA__V1__CODE__CODE_OK);
	assert_int_equal(node_has(&shm, 1), QMLA__V1__CODE__CODE_OK);
	node_stop(&shm);
	assert_int_equal(rmdir(folder), 0); /* the socket went with the node */
}

static void health_follows_readiness(void **state)
{
	struct node *node = *state;
	qmc_time_t soon = qmc_clock_after(5 * QMC_NS_PER_S);

	assert_int_equal(qmp_health_check(node->channel, "", soon), QMLA_OK);
	assert_int_equal(qmp_health_check(node->channel, "qmla.v1.Cache", soon), QMLA_OK);
	qms_service_drain(node->service, qmc_clock_after(QMC_NS_PER_S));
	assert_int_equal(qmp_health_check(node->channel, "", soon), QMLA_ERR_UNAVAILABLE);
}

static void ipv6_serves_like_ipv4(void **state)
{
	struct qms_service_config config = node_config();
	struct node node;

	(void)state;
	config.listen = "[::1]:0";
	config.data.listen = "[::1]:0";
	if (!node_start(&node, &config)) {
		print_message("no IPv6 on this machine\n");
		skip();
	}
	assert_int_equal(node_connect(&node, "tcp"), QMLA_OK);
	assert_int_equal(node_put(&node, 1), QMLA__V1__CODE__CODE_OK);
	node_stop(&node);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(describe_tells_who_is_there),
		T(stats_count_what_happened),
		T(connect_refuses_what_does_not_fit),
		T(identities_beyond_the_limit_are_refused_with_the_remedy),
		T(shm_is_offered_only_on_the_same_machine),
		T(health_follows_readiness),
		T(ipv6_serves_like_ipv4),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
