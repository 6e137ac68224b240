/* SPDX-License-Identifier: Apache-2.0 */
/* What calls to peers other than ours mean, and peers that lie. */
#include "cmocka_all.h"

#include <grpc/slice.h>
#include <string.h>

#include "common/status.h"
#include "proto/rpc_status.h"

static qmla_status_t read_status(grpc_status_code code, const char *details, const char *own,
				 bool cancelled_here)
{
	grpc_metadata entries[2] = {0};
	grpc_metadata_array trailing = {.count = own ? 2 : 0, .capacity = 2, .metadata = entries};

	if (own) {
		entries[0].key = grpc_slice_from_static_string("other");
		entries[0].value = grpc_slice_from_static_string("-1");
		entries[1].key = grpc_slice_from_static_string(QMP_STATUS_KEY);
		entries[1].value = grpc_slice_from_static_string(own);
	}
	return qmp_status_from_grpc(code, grpc_slice_from_static_string(details), &trailing,
				    cancelled_here);
}

static void test_codes_of_other_servers(void **state)
{
	static const struct {
		grpc_status_code code;
		qmla_status_t status;
	} cases[] = {
		{GRPC_STATUS_OK, QMLA_OK},
		{GRPC_STATUS_CANCELLED, QMLA_ERR_UNAVAILABLE},
		{GRPC_STATUS_UNKNOWN, QMLA_ERR_INTERNAL},
		{GRPC_STATUS_INVALID_ARGUMENT, QMLA_ERR_INVALID_ARGUMENT},
		{GRPC_STATUS_DEADLINE_EXCEEDED, QMLA_ERR_DEADLINE},
		{GRPC_STATUS_NOT_FOUND, QMLA_ERR_NOT_FOUND},
		{GRPC_STATUS_ALREADY_EXISTS, QMLA_ERR_ALREADY_EXISTS},
		{GRPC_STATUS_PERMISSION_DENIED, QMLA_ERR_PERMISSION},
		{GRPC_STATUS_RESOURCE_EXHAUSTED, QMLA_ERR_RESOURCE_EXHAUSTED},
		{GRPC_STATUS_FAILED_PRECONDITION, QMLA_ERR_INVALID_ARGUMENT},
		{GRPC_STATUS_ABORTED, QMLA_ERR_BUSY},
		{GRPC_STATUS_OUT_OF_RANGE, QMLA_ERR_TOO_LARGE},
		{GRPC_STATUS_UNIMPLEMENTED, QMLA_ERR_UNSUPPORTED},
		{GRPC_STATUS_INTERNAL, QMLA_ERR_INTERNAL},
		{GRPC_STATUS_UNAVAILABLE, QMLA_ERR_UNAVAILABLE},
		{GRPC_STATUS_DATA_LOSS, QMLA_ERR_CORRUPT},
		{GRPC_STATUS_UNAUTHENTICATED, QMLA_ERR_PERMISSION},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(read_status(cases[i].code, "", NULL, false), cases[i].status);
	assert_int_equal(read_status(GRPC_STATUS_CANCELLED, "", NULL, true), QMLA_ERR_CANCELLED);
	assert_int_equal(read_status(GRPC_STATUS_RESOURCE_EXHAUSTED,
				     "Received message larger than max (9 vs. 4)", NULL, false),
			 QMLA_ERR_TOO_LARGE);
}

static void test_our_own_status_wins(void **state)
{
	(void)state;
	assert_int_equal(read_status(GRPC_STATUS_FAILED_PRECONDITION, "", "-43", false),
			 QMLA_ERR_PEER_RESTARTED);
	assert_int_equal(read_status(GRPC_STATUS_UNAVAILABLE, "", "-44", false), QMLA_ERR_DRAINING);
}

static void test_a_status_that_makes_no_sense_is_ignored(void **state)
{
	static const char *const texts[] = {"",     "0",   "43",           "-43x", "x",
					    "-999", "-10", "-99999999999", "--43"};

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		assert_int_equal(read_status(GRPC_STATUS_ABORTED, "", texts[i], false),
				 QMLA_ERR_BUSY);
	/* Success is gRPC's to say. */
	assert_int_equal(read_status(GRPC_STATUS_OK, "", "-43", false), QMLA_OK);
}

static void test_every_status_has_a_code_of_failure(void **state)
{
	(void)state;
	assert_int_equal(qmp_grpc_code_from_status(QMLA_OK), GRPC_STATUS_OK);
	for (int value = -1; value > -99; value--) {
		if (qmc_status_is_known(value))
			assert_int_not_equal(qmp_grpc_code_from_status((qmla_status_t)value),
					     GRPC_STATUS_OK);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_codes_of_other_servers),
		cmocka_unit_test(test_our_own_status_wins),
		cmocka_unit_test(test_a_status_that_makes_no_sense_is_ignored),
		cmocka_unit_test(test_every_status_has_a_code_of_failure),
	};

	return cmocka_run_group_tests_name("rpc_status", tests, NULL, NULL);
}
