/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "owner.h"
#include "transport/bench.h"

static void back_ends_are_found(void **state)
{
	size_t first = 0;

	(void)state;
	assert_ptr_equal(qmt_transport_find("tcp"), &qmt_tcp_ops);
	assert_ptr_equal(qmt_transport_find("shm"), &qmt_shm_ops);
	assert_null(qmt_transport_find(""));
	assert_null(qmt_transport_find(NULL));
	/* verbs first, then shm, where they are possible. */
#ifdef QMT_HAVE_VERBS
	assert_ptr_equal(qmt_transport_at(0), &qmt_verbs_ops);
	assert_ptr_equal(qmt_transport_find("verbs"), &qmt_verbs_ops);
	first = 1;
#endif
	assert_ptr_equal(qmt_transport_at(first), &qmt_shm_ops);
	assert_ptr_equal(qmt_transport_at(first + 1), &qmt_tcp_ops);
	assert_null(qmt_transport_at(first + 2));
	assert_null(qmt_transport_at(SIZE_MAX));
}

/* Slots that need not be filled say so in transport.h; callers never check the others. */
static void tables_are_complete(void **state)
{
	const struct qmt_transport_ops *ops;

	(void)state;
	for (size_t i = 0; (ops = qmt_transport_at(i)) != NULL; i++) {
		assert_non_null(ops->name);
		assert_true(ops->server_create && ops->server_destroy && ops->server_address &&
			    ops->server_register && ops->server_fence && ops->server_stats);
		assert_true(ops->endpoint_destroy && ops->endpoint_register && ops->endpoint_post &&
			    ops->endpoint_wait && ops->endpoint_cancel && ops->endpoint_alive);
		/* One way to connect, whole. */
		assert_int_equal(!ops->endpoint_create, ops->endpoint_offer != NULL);
		assert_int_equal(!ops->endpoint_offer, !ops->server_answer);
		assert_int_equal(!ops->endpoint_offer, !ops->endpoint_complete);
	}
}

static void run_gives_each_op_its_status(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op ops[3];
	uint8_t bytes[3] = {0};

	(void)state;
	owner_start(&owner, "tcp", 100);
	((uint8_t *)owner.memory.base)[99] = 42;
	endpoint = owner_connect(&owner);
	ops[0] = owner_op(&owner, QMT_READ, 0, &bytes[0], 1);
	ops[1] = owner_op(&owner, QMT_READ, 100, &bytes[1], 1); /* outside: not taken */
	ops[2] = owner_op(&owner, QMT_READ, 99, &bytes[2], 1);
	assert_int_equal(qmt_endpoint_run(owner.ops, endpoint, ops, 3), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(ops[0].status, QMLA_OK);
	assert_int_equal(ops[1].status, QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(ops[2].status, QMLA_OK);
	assert_int_equal(bytes[2], 42);
	assert_int_equal(qmt_endpoint_run(owner.ops, endpoint, ops, 0), QMLA_OK);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

/* The benchmark moves what it says and compares it; its figures are not judged here. */
static void the_benchmark_measures(void **state)
{
	struct qmt_bench_config config = {
		.total_bytes = 16 << 20, .block_bytes = 57344, .rounds = 2};
	struct qmt_bench_result result;

	(void)state;
	for (size_t i = 0; qmt_transport_at(i); i++) {
		const char *name = qmt_transport_at(i)->name;

		/* What needs a control plane is measured with one: `qmla bench rdma`. */
		if (qmt_transport_at(i)->endpoint_offer) {
			assert_int_equal(qmt_bench_fetch(name, &config, &result),
					 QMLA_ERR_UNSUPPORTED);
			continue;
		}
		assert_int_equal(qmt_bench_fetch(name, &config, &result), QMLA_OK);
		assert_string_equal(result.transport, name);
		assert_int_equal(result.block_bytes, 57344);
		assert_true(result.gbytes_per_s > 0);
		assert_true(result.limit_gbytes_per_s > 0);
		assert_true(result.ratio > 0);
	}
	assert_int_equal(qmt_bench_fetch("pigeon", &config, &result), QMLA_ERR_NOT_FOUND);
	config.block_bytes = UINT64_C(1) << 40;
	assert_int_equal(qmt_bench_fetch("tcp", &config, &result), QMLA_ERR_INVALID_ARGUMENT);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, remember_descriptors, check_descriptors)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(back_ends_are_found),
		CASE(tables_are_complete),
		CASE(run_gives_each_op_its_status),
		CASE(the_benchmark_measures),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
